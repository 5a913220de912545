// liblz4, loaded when it is first needed: the two functions of its stable block interface that are used here.
#pragma once

#include <string>

namespace tpu_sync_native {

struct Lz4Library {
  // As in lz4.h: LZ4_compress_default returns 0 when `target_bytes` is not enough, LZ4_decompress_safe a
  // negative number for a block that is not one.
  using Function = int (*)(const char* source, char* target, int source_bytes, int target_bytes);
  Function compress = nullptr;
  Function decompress = nullptr;
  std::string error;  // why they are null
};

// Never unloaded. Tests give another name.
Lz4Library LoadLz4(const char* library_name = "liblz4.so.1");

}  // namespace tpu_sync_native
