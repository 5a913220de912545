// Committed chunks on their way to storage: a bounded queue that Store::Commit fills and never waits for, and
// one thread that pins, appends and unpins in batches of one namespace, in the order of commits, so that a
// prompt's chunks lie together. What does not fit, is evicted before its turn, lies on storage already, or
// cannot be written now is dropped and counted by reason.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "arena/arena.h"
#include "storage/context.h"
#include "store/store.h"

namespace tpu_sync_native {

class Demoter {
 public:
  Demoter(std::shared_ptr<StorageContext> context, Store& store, std::shared_ptr<Arena> arena);
  ~Demoter();  // Stop(0)
  void Start();
  // Finishes what is queued and seals, at most for so long; true when it did.
  bool Stop(uint64_t wait_ms);

  // With the store's mutex held: never blocks, never calls the store.
  void Offer(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots);
  // Until everything offered so far is written and synced, or dropped; false when the time is over first.
  bool Flush(uint64_t wait_ms);
  // The namespace was cleared: what is queued of it is dropped, its open segment is sealed.
  void Clear(uint32_t ns);
  uint64_t queued_bytes() const;
  // Copy-forward by the reclaimer: verified bytes of a chunk to be appended again, after the demotes. False:
  // no room in the queue.
  bool OfferBytes(uint32_t ns, std::string_view key, std::shared_ptr<const uint8_t[]> bytes);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
