// Chunks on their way from storage to slots that the store has reserved for them. Leases go before
// prefetches; within a job chunks become readable in prefix order, one by one, so that a load streams. A job
// is split into runs of neighbours in a segment; up to load_threads runs are read at once. A promote ends
// exactly once: Store::EndPromotes, with success, failure, or because nothing of its job was read for
// promote_deadline_ms (then the slot is kept aside, quarantined, until the read that still runs has returned,
// for it may write into it).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "arena/arena.h"
#include "storage/context.h"
#include "store/store.h"

namespace tpu_sync_native {

class Promoter {
 public:
  Promoter(std::shared_ptr<StorageContext> context, Store& store, std::shared_ptr<Arena> arena);
  ~Promoter();  // Stop(0)
  void Start();
  // Everything still queued or running has failed; waits this long for reads that run. True: none is left.
  bool Stop(uint64_t wait_ms);

  // With the store's mutex held: never blocks, never calls the store. False: full or down, nothing queued.
  bool Offer(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency);
  // The same: what waits to be promoted into these slots is leased now.
  void Hurry(std::span<const uint32_t> slots);
  uint64_t queued_chunks() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
