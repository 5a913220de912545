// Fingerprints of chunks evicted not long ago, four bytes for each; approximate on purpose.
#pragma once

#include <cstdint>

#include "base/zeroed_array.h"

namespace tpu_sync_native {

// A direct-mapped table: a newer eviction overwrites an older one in the same cell. An entry is 16 bits of
// fingerprint and 16 bits of time, counted in evictions / step. Not thread-safe.
class Ghosts {
 public:
  explicit Ghosts(uint32_t count) : table_(count), step_(count / 4096 + 1) {}

  uint64_t bytes() const { return table_.size() * sizeof(uint32_t); }

  void Add(uint32_t fingerprint);
  // Whether the fingerprint was added within the last `evictions_max` calls of Add; forgets it if so.
  bool TakeRecent(uint32_t fingerprint, uint32_t evictions_max);

 private:
  static uint32_t Mark(uint32_t fingerprint) { return fingerprint | 1; }  // never 0
  uint32_t CellOf(uint32_t fingerprint) const {
    return static_cast<uint32_t>((uint64_t{fingerprint} * table_.size()) >> 32);
  }
  uint16_t now() const { return static_cast<uint16_t>(evictions_ / step_); }

  ZeroedArray<uint32_t> table_;
  const uint32_t step_;
  uint64_t evictions_ = 0;
};

}  // namespace tpu_sync_native
