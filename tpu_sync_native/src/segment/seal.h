// Seals: what makes a record that somebody without the key has written or changed a miss.
//
//   extracted  = HMAC-SHA256("kvtier storage seal 1", key of the root)
//   record key = HMAC-SHA256(extracted, "payload" mode namespace salt 1)    salt: 32 random bytes per record
//   header key = HMAC-SHA256(extracted, "header" namespace 1)
//   payload_tag = AES-256-GCM under the record key; mac: of the stored bytes; encrypt: it encrypts them
//   header_tag  = HMAC-SHA256(header key, the header's 256 bytes with header_tag and header_crc zero)
//
// A record key seals one payload, so its nonce may be constant. The payload is sealed before it is known
// where the record will lie; the header's tag binds it to that place, as it covers salt and payload_tag.
// docs/formats/segment.md says what is promised of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "segment/layout.h"

namespace tpu_sync_native {

struct PayloadSeal {
  uint8_t salt[kSealSaltBytes];
  uint8_t tag[kSealTagBytes];
};

// Of one root. Thread-safe; no call blocks.
class Sealer {
 public:
  static constexpr size_t kKeyBytes = 32;

  // How new records are sealed; both kinds are read. Null and why, in words, when the key has another length
  // or OpenSSL is not there.
  static std::shared_ptr<const Sealer> Make(std::string_view key, Seal seal, std::string* why);
  ~Sealer();
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;

  Seal seal() const { return seal_; }

  // Encrypted bytes go to `target`, which may be `source` and is not touched by kMac. False: it cannot be
  // done (no memory, no randomness); then the record must not be written.
  bool SealPayload(const uint8_t namespace_id[16], const uint8_t* source, uint64_t bytes, uint8_t* target,
                   PayloadSeal* seal) const;
  // Fills in header_tag; every other field but header_crc is there.
  bool SealHeader(RecordHeader* header) const;

  // Whether a header is sealed, by this key, and as it was.
  bool HeaderHolds(const RecordHeader& header) const;
  // Whether the payload of such a header is as it was; decrypts it in place. When false its bytes are
  // anything.
  bool OpenPayload(const RecordHeader& header, uint8_t* payload) const;

 private:
  explicit Sealer(Seal seal) : seal_(seal) {}
  bool RecordKey(Seal seal, const uint8_t namespace_id[16], const uint8_t salt[kSealSaltBytes],
                 uint8_t key[kKeyBytes]) const;
  bool HeaderTag(const RecordHeader& header, uint8_t tag[kSealHeaderTagBytes]) const;

  const Seal seal_;
  uint8_t extracted_[kKeyBytes] = {};
};

}  // namespace tpu_sync_native
