// A key as the index handles it: zero-padded words for comparing, two buckets and a tag for finding.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "index/meta_view.h"

namespace tpu_sync_native {

struct HashedKey {
  uint64_t words[kKeyBytesMax / 8];  // zero-padded
  uint32_t bytes;
  uint32_t buckets[2];
  uint16_t tag;          // never 0
  uint32_t fingerprint;  // for policies that remember what they evicted
};

inline constexpr uint32_t kInlineWords = kKeyBytesInline / 8;

namespace internal {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Maps 32 random bits onto [0, count) without a division.
inline uint32_t Scale(uint32_t random, uint32_t count) {
  return static_cast<uint32_t>((uint64_t{random} * count) >> 32);
}

}  // namespace internal

// Fills buckets, tag and fingerprint from words and bytes. Keys are mostly digests, but nobody promises it,
// so all of the key goes through a multiplicative hash seeded with the arena's id.
inline void HashKey(const MetaView& view, uint32_t ns, HashedKey* key) {
  constexpr uint64_t kOdd[] = {0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
                               0xd6e8feb86659fd93};
  const uint64_t* w = key->words;
  const uint64_t seed0 = view.seed(0);
  const uint64_t seed1 = view.seed(1);
  uint64_t hash = internal::Mix(w[0] ^ seed0, w[1] ^ seed1 ^ kOdd[0]);
  hash += internal::Mix(w[2] ^ seed1, w[3] ^ seed0 ^ kOdd[1]);
  if (key->bytes > 32) {
    hash = internal::Mix(hash ^ w[4], w[5] ^ kOdd[2]) + internal::Mix(w[6] ^ seed0, w[7] ^ seed1 ^ kOdd[3]);
  }
  hash = internal::Mix(hash ^ kOdd[2], ((uint64_t{ns} << 8) | key->bytes) ^ kOdd[3]);
  const uint64_t more = internal::Mix(hash ^ kOdd[1], seed1 ^ kOdd[0]);
  key->buckets[0] = internal::Scale(static_cast<uint32_t>(hash), view.bucket_count());
  key->buckets[1] = internal::Scale(static_cast<uint32_t>(more), view.bucket_count());
  key->tag = static_cast<uint16_t>(more >> 48);
  key->tag = static_cast<uint16_t>(key->tag + (key->tag == 0));
  key->fingerprint = static_cast<uint32_t>(hash >> 32);
}

// False when the key's length is outside kKeyBytesMin..kKeyBytesMax; then nothing is written.
inline bool MakeKey(const MetaView& view, uint32_t ns, std::string_view bytes, HashedKey* key) {
  if (bytes.size() < kKeyBytesMin || bytes.size() > kKeyBytesMax) return false;
  if (bytes.size() == 32) {  // the common length, copied without a call
    std::memcpy(key->words, bytes.data(), 32);
    std::memset(key->words + 4, 0, sizeof(key->words) - 32);
  } else {
    std::memset(key->words, 0, sizeof(key->words));
    std::memcpy(key->words, bytes.data(), bytes.size());
  }
  key->bytes = static_cast<uint32_t>(bytes.size());
  HashKey(view, ns, key);
  return true;
}

}  // namespace tpu_sync_native
