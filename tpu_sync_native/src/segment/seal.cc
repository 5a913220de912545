#include "segment/seal.h"

#include <algorithm>
#include <cstring>

#include "segment/crypto_library.h"

namespace tpu_sync_native {
namespace {

constexpr int kGcmGetTag = 0x10, kGcmSetTag = 0x11;  // EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG
constexpr uint64_t kStepBytes = 1 << 30;             // lengths are ints there
constexpr uint8_t kNonce[12] = {};                   // a key seals one payload
constexpr std::string_view kExtractSalt = "kvtier storage seal 1";

bool Hmac(const void* key, size_t key_bytes, std::string_view data, uint8_t out[32]) {
  const CryptoLibrary& crypto = Crypto();
  unsigned int bytes = 0;
  return crypto.hmac(crypto.sha256(), key, static_cast<int>(key_bytes),
                     reinterpret_cast<const unsigned char*>(data.data()), data.size(), out,
                     &bytes) != nullptr &&
         bytes == 32;
}

// What no optimiser may leave out.
void Wipe(void* data, size_t bytes) { explicit_bzero(data, bytes); }

// One pass of AES-256-GCM. mac: the bytes are authenticated and stay as they are.
class Gcm {
 public:
  Gcm(bool encrypts, Seal seal) : encrypts_(encrypts), seal_(seal), context_(Crypto().context_new()) {}
  ~Gcm() { Crypto().context_free(context_); }
  Gcm(const Gcm&) = delete;
  Gcm& operator=(const Gcm&) = delete;

  bool Run(const uint8_t key[Sealer::kKeyBytes], const uint8_t* source, uint64_t bytes, uint8_t* target) {
    const CryptoLibrary& crypto = Crypto();
    if (context_ == nullptr) return false;
    const auto init = encrypts_ ? crypto.encrypt_init : crypto.decrypt_init;
    const auto update = encrypts_ ? crypto.encrypt_update : crypto.decrypt_update;
    if (init(context_, crypto.aes_256_gcm(), nullptr, key, kNonce) != 1) return false;
    for (uint64_t at = 0; at < bytes;) {
      const uint64_t step = std::min(bytes - at, kStepBytes);
      uint8_t* const out = seal_ == Seal::kMac ? nullptr : target + at;
      int done = 0;
      if (update(context_, out, &done, source + at, static_cast<int>(step)) != 1) return false;
      at += step;
    }
    return true;
  }
  bool TakeTag(uint8_t tag[kSealTagBytes]) {
    uint8_t nothing[16];
    int done = 0;
    return Crypto().encrypt_final(context_, nothing, &done) == 1 &&
           Crypto().context_ctrl(context_, kGcmGetTag, kSealTagBytes, tag) == 1;
  }
  bool TagHolds(const uint8_t tag[kSealTagBytes]) {
    uint8_t wanted[kSealTagBytes], nothing[16];
    std::memcpy(wanted, tag, sizeof(wanted));
    int done = 0;
    return Crypto().context_ctrl(context_, kGcmSetTag, kSealTagBytes, wanted) == 1 &&
           Crypto().decrypt_final(context_, nothing, &done) == 1;
  }

 private:
  const bool encrypts_;
  const Seal seal_;
  void* const context_;
};

}  // namespace

std::shared_ptr<const Sealer> Sealer::Make(std::string_view key, Seal seal, std::string* why) {
  if (key.size() != kKeyBytes) {
    *why = "the key has " + std::to_string(key.size()) + " bytes; 32 are wanted";
    return nullptr;
  }
  *why = Crypto().error;
  if (!why->empty()) return nullptr;
  const std::shared_ptr<Sealer> sealer(new Sealer(seal));
  if (!Hmac(kExtractSalt.data(), kExtractSalt.size(), key, sealer->extracted_)) {
    *why = "OpenSSL makes no HMAC-SHA256";
    return nullptr;
  }
  return sealer;
}

Sealer::~Sealer() { Wipe(extracted_, sizeof(extracted_)); }

bool Sealer::RecordKey(Seal seal, const uint8_t namespace_id[16], const uint8_t salt[kSealSaltBytes],
                       uint8_t key[kKeyBytes]) const {
  std::string info = "payload";
  info += static_cast<char>(seal);
  info.append(reinterpret_cast<const char*>(namespace_id), 16);
  info.append(reinterpret_cast<const char*>(salt), kSealSaltBytes);
  info += '\1';
  return Hmac(extracted_, sizeof(extracted_), info, key);
}

bool Sealer::HeaderTag(const RecordHeader& header, uint8_t tag[kSealHeaderTagBytes]) const {
  std::string info = "header";
  info.append(reinterpret_cast<const char*>(header.namespace_id), 16);
  info += '\1';
  uint8_t key[kKeyBytes];
  RecordHeader plain = header;
  plain.header_crc = 0;
  std::memset(plain.header_tag, 0, sizeof(plain.header_tag));
  static_assert(sizeof(plain) == kRecordHeaderBytes);
  const bool made = Hmac(extracted_, sizeof(extracted_), info, key) &&
                    Hmac(key, sizeof(key), {reinterpret_cast<const char*>(&plain), sizeof(plain)}, tag);
  Wipe(key, sizeof(key));
  return made;
}

bool Sealer::SealPayload(const uint8_t namespace_id[16], const uint8_t* source, uint64_t bytes,
                         uint8_t* target, PayloadSeal* seal) const {
  uint8_t key[kKeyBytes];
  if (Crypto().random(seal->salt, sizeof(seal->salt)) != 1) return false;
  Gcm gcm(/*encrypts=*/true, seal_);
  const bool made = RecordKey(seal_, namespace_id, seal->salt, key) && gcm.Run(key, source, bytes, target) &&
                    gcm.TakeTag(seal->tag);
  Wipe(key, sizeof(key));
  return made;
}

bool Sealer::SealHeader(RecordHeader* header) const { return HeaderTag(*header, header->header_tag); }

bool Sealer::HeaderHolds(const RecordHeader& header) const {
  uint8_t tag[kSealHeaderTagBytes];
  return header.seal != static_cast<uint32_t>(Seal::kNone) && HeaderTag(header, tag) &&
         Crypto().compare(tag, header.header_tag, sizeof(tag)) == 0;
}

bool Sealer::OpenPayload(const RecordHeader& header, uint8_t* payload) const {
  const Seal seal = static_cast<Seal>(header.seal);
  uint8_t key[kKeyBytes];
  Gcm gcm(/*encrypts=*/false, seal);
  const bool holds = RecordKey(seal, header.namespace_id, header.salt, key) &&
                     gcm.Run(key, payload, header.stored_bytes, payload) && gcm.TagHolds(header.payload_tag);
  Wipe(key, sizeof(key));
  return holds;
}

}  // namespace tpu_sync_native
