// What the host tier and the tier below it (storage) owe each other.
//
// The store knows slots, leases and what is readable; the lower tier knows media. A promote is the lower
// tier's: the store reserves a slot for it (state kPromoting, which readers may lease at once and copy from
// as soon as it is kCommitted), the lower tier fills it and says so. A demote is a copy of a committed chunk:
// the lower tier pins it for as long as it reads the slot.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/keys.h"
#include "tpu_sync_native/meta_layout.h"

namespace tpu_sync_native {

// Where a chunk lies in the lower tier; opaque to the store. 0 is nowhere.
using Location = uint64_t;

struct PromoteChunk {
  SlotRef ref;  // where to: reserved, state kPromoting, under this generation
  Location from = 0;
  uint8_t key_bytes = 0;
  uint8_t key[kKeyBytesMax];  // so that the record that is read can be compared in full
};

enum class Urgency : uint8_t { kLease = 0, kPrefetch = 1 };

class LowerTier {
 public:
  virtual ~LowerTier() = default;

  // All are called with the store's mutex held: they answer from memory, never block, never throw, and
  // never call the store.

  // For key i from `first` on: where[i - first], 0 when this tier does not hold it. Stops after the first 0;
  // returns how many leading ones were found. A hint: a promote of it may still fail.
  virtual uint32_t Find(uint32_t ns, const KeyBatch& keys, uint32_t first, Location* where) const = 0;
  // Queues promotes, in the order in which their chunks are to become readable. Each is ended by
  // Store::EndPromotes, from another thread. False: the queue is full or the tier is down; nothing was
  // queued.
  virtual bool Promote(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency) = 0;
  // These slots, whose promotes are under way, are leased now: what was asked for as a prefetch is no longer.
  virtual void Hurry(std::span<const uint32_t> slots) { (void)slots; }
  // These were committed, in prefix order, under `epoch`: to be demoted if there is time.
  virtual void Committed(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots) = 0;
  // The namespace was cleared: what lies below of it is not to be found from now on, and what was committed
  // before is never to be found. What is committed after this call is of the new epoch.
  virtual void Cleared(uint32_t ns) { (void)ns; }
  // What NamespaceRecord::epoch_below is to say now; 0: nothing new.
  virtual uint64_t EpochWord(uint32_t ns) const { return (void)ns, 0; }
  // This tier has nothing of the namespace, and never will: it is of no epoch here.
  virtual bool Refuses(uint32_t ns) const { return (void)ns, false; }
};

// A committed chunk, pinned for the lower tier.
struct DemoteChunk {
  SlotRef ref;
  uint8_t key_bytes = 0;
  uint8_t key[kKeyBytesMax];
};

}  // namespace tpu_sync_native
