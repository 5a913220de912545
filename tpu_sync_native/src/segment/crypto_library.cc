#include "segment/crypto_library.h"

#include <dlfcn.h>

#include <type_traits>

namespace tpu_sync_native {

CryptoLibrary LoadCrypto(const char* library_name) {
  CryptoLibrary library;
  void* const handle = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    library.error = std::string("OpenSSL 3 is not available: ") + (why != nullptr ? why : library_name);
    return library;
  }
  CryptoLibrary found;
  std::string missing;
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  take(found.context_new, "EVP_CIPHER_CTX_new");
  take(found.context_free, "EVP_CIPHER_CTX_free");
  take(found.context_ctrl, "EVP_CIPHER_CTX_ctrl");
  take(found.aes_256_gcm, "EVP_aes_256_gcm");
  take(found.encrypt_init, "EVP_EncryptInit_ex");
  take(found.encrypt_update, "EVP_EncryptUpdate");
  take(found.encrypt_final, "EVP_EncryptFinal_ex");
  take(found.decrypt_init, "EVP_DecryptInit_ex");
  take(found.decrypt_update, "EVP_DecryptUpdate");
  take(found.decrypt_final, "EVP_DecryptFinal_ex");
  take(found.sha256, "EVP_sha256");
  take(found.hmac, "HMAC");
  take(found.random, "RAND_bytes");
  take(found.compare, "CRYPTO_memcmp");
  if (missing.empty()) return found;
  library.error = std::string("OpenSSL 3 is not available: ") + library_name + " has no " + missing;
  return library;
}

const CryptoLibrary& Crypto() {
  static const CryptoLibrary library = LoadCrypto();
  return library;
}

}  // namespace tpu_sync_native
