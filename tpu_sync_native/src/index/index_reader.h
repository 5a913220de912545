// The read side of the shared block index: engines use it on their read-only mapping, the daemon on its own.
//
// Nothing read here is trusted: every offset, slot number and length is checked before use, every wait is
// bounded, and a value that makes no sense reads as a miss. A found key is compared in full.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/keys.h"
#include "index/meta_view.h"
#include "tpu_sync_native/readiness.h"

namespace tpu_sync_native {

// Thread-safe and lock-free; borrows the mapping, which must outlive it.
class IndexReader {
 public:
  // Throws std::invalid_argument when the header does not describe a file of `meta_bytes`.
  IndexReader(const std::byte* meta, uint64_t meta_bytes) : view_(meta, meta_bytes) {}
  explicit IndexReader(const MetaView& view) : view_(view) {}

  // Leading keys that are committed. A key of a wrong length, an unknown namespace: a miss.
  uint32_t LongestPrefix(uint32_t ns, const KeyBatch& keys) const { return LeadingHits(ns, keys, nullptr); }
  // The same, and writes the hits' slots to `refs` (room for keys.count entries) unless it is null.
  uint32_t LeadingHits(uint32_t ns, const KeyBatch& keys, SlotRef* refs) const;
  // The slot's state if it is of this generation, else kFree.
  SlotState StateOf(uint32_t slot, uint32_t generation) const;
  // Whether the slot is reserved, promoting or committed under this very generation still.
  bool Unchanged(uint32_t slot, uint32_t generation) const {
    return ReadinessOf(slot, generation) != Readiness::kLost;
  }
  // Asked before and after a copy out of the slot: only bytes that were kReady at both times are the chunk's.
  Readiness ReadinessOf(uint32_t slot, uint32_t generation) const;
  // Whether it is reserved under this generation: then its lease's holders may write it.
  bool Writable(uint32_t slot, uint32_t generation) const;
  // Bytes of the chunk that the slot holds at `offset` under this generation; 0 when it does not.
  uint64_t ChunkBytes(uint32_t slot, uint32_t generation, uint64_t offset) const;

  // Sleeps until promotes have ended since `promotes_ended` was read, at most until deadline_ns (steady).
  // Read the counter first, then the slots, then wait. May return earlier.
  uint32_t promotes_ended() const { return view_.header().promotes_ended.load(std::memory_order_acquire); }
  void AwaitPromotes(uint32_t promotes_ended, uint64_t deadline_ns) const;

  const MetaView& view() const { return view_; }

 private:
  MetaView view_;
};

}  // namespace tpu_sync_native
