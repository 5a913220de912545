// The multiplicative hash the tables share.
#pragma once

#include <cstdint>

namespace tpu_sync_native {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Maps 32 random bits onto [0, count) without a division.
inline uint32_t Scale(uint32_t random, uint32_t count) {
  return static_cast<uint32_t>((uint64_t{random} * count) >> 32);
}

}  // namespace tpu_sync_native
