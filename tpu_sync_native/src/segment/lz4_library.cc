#include "segment/lz4_library.h"

#include <dlfcn.h>

namespace tpu_sync_native {

Lz4Library LoadLz4(const char* library_name) {
  Lz4Library library;
  void* const handle = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    library.error = std::string("lz4 is not available: ") + (why != nullptr ? why : library_name);
    return library;
  }
  const auto compress = reinterpret_cast<Lz4Library::Function>(dlsym(handle, "LZ4_compress_default"));
  const auto decompress = reinterpret_cast<Lz4Library::Function>(dlsym(handle, "LZ4_decompress_safe"));
  if (compress == nullptr || decompress == nullptr) {
    library.error = std::string("lz4 is not available: ") + library_name +
                    " has no LZ4_compress_default and LZ4_decompress_safe";
    return library;
  }
  library.compress = compress;
  library.decompress = decompress;
  return library;
}

}  // namespace tpu_sync_native
