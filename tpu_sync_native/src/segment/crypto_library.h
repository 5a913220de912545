// libcrypto of OpenSSL 3, loaded when it is first needed: the functions that seals are made of. A release of
// 3.x keeps their meaning (its versioned name is its promise), so no header of it is wanted to build.
#pragma once

#include <cstddef>
#include <string>

namespace tpu_sync_native {

struct CryptoLibrary {
  // As in openssl/evp.h, hmac.h, rand.h and crypto.h; contexts, ciphers and digests are opaque.
  void* (*context_new)() = nullptr;
  void (*context_free)(void*) = nullptr;
  int (*context_ctrl)(void*, int type, int argument, void* pointer) = nullptr;
  const void* (*aes_256_gcm)() = nullptr;
  using Init = int (*)(void*, const void* cipher, void* engine, const unsigned char* key,
                       const unsigned char* iv);
  using Update = int (*)(void*, unsigned char* out, int* out_bytes, const unsigned char* in, int in_bytes);
  using Final = int (*)(void*, unsigned char* out, int* out_bytes);
  Init encrypt_init = nullptr, decrypt_init = nullptr;
  Update encrypt_update = nullptr, decrypt_update = nullptr;
  Final encrypt_final = nullptr, decrypt_final = nullptr;
  const void* (*sha256)() = nullptr;
  unsigned char* (*hmac)(const void* digest, const void* key, int key_bytes, const unsigned char* data,
                         size_t bytes, unsigned char* out, unsigned int* out_bytes) = nullptr;
  int (*random)(unsigned char* out, int bytes) = nullptr;
  int (*compare)(const void* a, const void* b, size_t bytes) = nullptr;  // in constant time
  std::string error;                                                     // why they are null
};

// Never unloaded. Tests give another name.
CryptoLibrary LoadCrypto(const char* library_name = "libcrypto.so.3");
// The one of this process.
const CryptoLibrary& Crypto();

}  // namespace tpu_sync_native
