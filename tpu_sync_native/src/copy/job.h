// One batch on its way: what was asked, checked once, and how far it is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "copy/layout.h"
#include "copy/page_toucher.h"

namespace tpu_sync_native {

using LayoutList = std::vector<std::shared_ptr<const CopyLayout>>;

// What a thread copies with. `scratch` is its own, the rest is shared.
struct CopyContext {
  uint8_t* arena;
  PageToucher* pages;
  const SlotGuard* guard;  // may be null: nothing changes
  CopyBackend* backend;
  ExtentList* scratch;
  const std::atomic<bool>* given_up;  // then nothing more is given to the device
};

// The job's bytes are numbered from 0 in the order of its runs; a piece is a range of them, so that any job
// can be cut anywhere. Built on the submitting thread, then read by many; only the atomics change.
class CopyJob {
 public:
  // Throws std::invalid_argument; `layouts` are all the engine's; `guard` may be null.
  CopyJob(const CopyRequest& request, const LayoutList& layouts, uint64_t arena_bytes,
          const SlotGuard* guard);
  // Rows of (source, target, bytes) in plain memory, for CopyEngine::Copy.
  explicit CopyJob(std::span<const uint64_t> rows);

  uint64_t id() const { return id_; }
  CopyDirection direction() const { return direction_; }
  uint64_t bytes() const { return bytes_; }

  const LayoutList& layouts() const { return layouts_; }  // one per group

  // Copies the bytes [begin, end), with a hold where the backend has buffers. Returns how many extents that
  // took.
  uint64_t CopyPiece(uint64_t begin, uint64_t end, const CopyContext& with, const CopyHold* buffers);
  // After the last piece.
  CopyCompletion Finish() const;

  // ---- scheduling; by whoever has the job in his queue: the engine, or the waiter ----
  // Whether chunks were pending when the job was made.
  bool waits() const { return ready_run_ < runs_.size(); }
  // Bytes from the start whose chunks are known to be ready (or lost); asks about those that were not.
  uint64_t AdvanceReady(const SlotGuard* guard);
  // What is pending never becomes ready.
  void LosePending();
  // Whether pieces of it were taken and have not landed.
  bool under_way() const { return bytes_left != bytes_ - next_byte; }
  // No more pieces of it are taken: their chunks are lost.
  void LoseRest();
  // The same, and what was copied counts for nothing.
  void LoseAll();
  // Of the steady clock: when its wait for a chunk, its fence or a load window is over.
  uint64_t ready_deadline_ns = UINT64_MAX;
  std::shared_ptr<CopyHold> hold;  // from Submit until it is finished; null: needs none
  uint64_t order = 0;              // of submission
  uint64_t next_byte = 0;
  uint64_t piece_bytes = 0;
  uint64_t bytes_left = 0;
  bool finished = false;
  bool cut = false;  // LoseRest took something from it

 private:
  using Clock = std::chrono::steady_clock;
  struct Chunk {
    uint32_t slot;
    uint32_t generation;
    uint64_t offset;
    uint64_t bytes;  // that a layout may use; 0: lost before it began
    bool pending;    // not known to be ready; see AdvanceReady
  };

  void AddGroup(const CopyRequest& request, uint32_t layout, size_t first, size_t count,
                uint64_t arena_bytes);
  size_t FirstRun(uint64_t byte) const;
  // Calls visit(run, begin, end) for the part of each run that lies in [begin, end), in the run's own bytes.
  template <typename Visit>
  void ForEachRun(uint64_t begin, uint64_t end, Visit&& visit) const;
  bool StillValid(uint32_t chunk, const SlotGuard* guard) const;
  void MarkInvalid(uint32_t chunk) { invalid_[chunk].store(true, std::memory_order_relaxed); }

  uint64_t id_ = 0;
  CopyDirection direction_ = CopyDirection::kStore;
  Clock::time_point submitted_ = Clock::now();
  LayoutList layouts_;  // per group
  std::vector<BlockRun> runs_;
  std::vector<Chunk> chunks_;
  std::unique_ptr<std::atomic<bool>[]> invalid_;  // per chunk
  std::vector<CopyExtent> rows_;                  // of Copy; then runs_ are the rows
  uint64_t bytes_ = 0;
  size_t ready_run_ = 0;  // runs before this one are known to be ready
};

}  // namespace tpu_sync_native
