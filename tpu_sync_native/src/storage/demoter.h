// Committed chunks on their way to storage: a bounded queue that Store::Commit fills and never waits for, and
// for each namespace a lane that takes batches from it, in the order of commits, so that a prompt's chunks
// lie together. What does not fit, is evicted before its turn, lies on storage already, or cannot be written
// now is dropped and counted by reason.
//
//   Offer -> queue -Prepare task-> pinned, checksummed -Append task-> written, unpinned -Sync-> found
//
// A lane has at most one task of each kind, so one batch is prepared while the one before is written; at most
// store_threads lanes write at once. A turn is one batch where others wait for theirs, and goes on where
// nobody does; while promotes are under way one lane writes, one batch a tick. An append that hangs holds the
// pins of its batch, because the medium may still read them; its turn is given to the others at once, its
// lane dropped when it has taken too long. Stop leaves it behind; when it returns, it finds no store any
// more, and what it holds (arena, writer) goes with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "arena/arena.h"
#include "storage/context.h"
#include "store/store.h"

namespace tpu_sync_native {

class Demoter {
 public:
  Demoter(std::shared_ptr<StorageContext> context, Store& store, std::shared_ptr<Arena> arena);
  ~Demoter();  // Stop(0)
  // no_space: called, on a pool thread, when an append found none.
  void Start(std::function<void()> no_space = nullptr);
  // Finishes what is queued and seals, at most for so long; true when it did.
  bool Stop(uint64_t wait_ms);

  // Both with the store's mutex held: they never block and never call the store.
  void Offer(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots);
  // The namespace was cleared: what is queued of it is dropped, its open segment is sealed.
  void Clear(uint32_t ns);

  // Until everything offered so far is written and synced, or dropped; false when the time is over first, or
  // the demoter stops.
  bool Flush(uint64_t wait_ms);
  uint64_t queued_bytes() const;
  // Copy-forward by the reclaimer: verified bytes of a chunk to be appended again, after the demotes, under
  // the epoch of the segment they were read from or not at all. False: no room in the queue.
  bool OfferBytes(uint32_t ns, uint64_t epoch, std::string_view key, std::shared_ptr<const uint8_t[]> bytes);
  // For the reclaimer, which deletes sealed segments alone: the open ones of this namespace, or of all
  // (kNoNamespace), are sealed by the next tick unless they are written to just now.
  void SealOpen(uint32_t ns);
  // Several times per second, from any thread: syncs that are due, lanes whose namespace is open by now,
  // lanes that hang or whose medium is down. Submits tasks only.
  void Tick();

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
