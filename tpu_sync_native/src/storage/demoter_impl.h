// The demoter's inside. How its threads meet:
//
//   store's mutex > Offer, Clear: the queue, at most one Prepare task submitted     (no call of the store)
//   Prepare task    takes from the queue, pins (store), checksums, hands to `ready`
//   Append task     takes from `ready`, writes, syncs when it is time, unpins (store)
//   Tick            whatever nobody else would begin
//
// `mutex` is taken under the store's, so pins are taken and ended without it: batches that are dropped go
// into a Trash, which is emptied after the mutex is let go of.
//
//   demoter.cc  the queue, whose turn it is        demote_tasks.cc  what a turn does
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/futex.h"
#include "storage/demote_lane.h"
#include "storage/demoter.h"

namespace tpu_sync_native {

using Trash = std::vector<std::unique_ptr<DemoteBatch>>;

// What an Append task does between two looks at the queue.
struct AppendStep {
  std::unique_ptr<DemoteBatch> batch;
  bool sync = false, seal = false;
};

struct Demoter::Impl : std::enable_shared_from_this<Demoter::Impl> {
  Impl(std::shared_ptr<StorageContext> wanted_context, Store& store, std::shared_ptr<Arena> wanted_arena)
      : context(std::move(wanted_context)),
        arena(std::move(wanted_arena)),
        pins(std::make_shared<StorePins>(store)) {}

  using Lane = DemoteLane;

  const std::shared_ptr<StorageContext> context;
  const std::shared_ptr<Arena> arena;
  const std::shared_ptr<StorePins> pins;
  std::function<void()> no_space;  // set before the first task

  mutable std::mutex mutex;
  std::condition_variable changed;  // a lane has got on
  std::unordered_map<uint32_t, std::shared_ptr<Lane>> lanes;
  std::deque<std::shared_ptr<Lane>> turns;  // lanes that wait to append
  uint32_t appending = 0;                   // that do, or will as soon as the pool has a thread
  uint64_t queued_bytes = 0;
  uint64_t copied_bytes = 0;  // of these, copies
  bool accepting = false;
  bool stopping = false;

  std::shared_ptr<Lane> LaneLocked(uint32_t ns);
  uint64_t RoomLocked(const Lane& lane, uint64_t wanted);
  void DropQueueLocked(Lane& lane, std::atomic<uint64_t>& reason);
  void DropAllLocked(Lane& lane, std::atomic<uint64_t>& reason, Trash* trash);
  void AdvanceLocked(Lane& lane);
  void SettleLocked(Lane& lane);
  void PrepareLocked(const std::shared_ptr<Lane>& lane);
  void AppendLocked(const std::shared_ptr<Lane>& lane, Trash* trash);
  void NextTurnsLocked(Trash* trash, bool tick = false);
  bool YieldsLocked() const { return accepting && context->promoting.load(); }  // who stops has no ticks
  void EndTurnLocked(Lane& lane);
  void LookAfterLocked(const std::shared_ptr<Lane>& lane, uint64_t now_ms, Trash* trash);

  void Prepare(const std::shared_ptr<Lane>& lane);
  void Fill(Lane& lane, DemoteBatch& batch);
  void AddPinned(Lane& lane, DemoteBatch& batch, std::span<const uint32_t> slots, uint32_t epoch);
  void TryCodecs(const Lane& lane, const DemoteBatch& batch);
  void Append(const std::shared_ptr<Lane>& lane);
  AppendStep TakeStep(const std::shared_ptr<Lane>& lane);
  void RunStep(Lane& lane, AppendStep& step);
  bool EndStep(const std::shared_ptr<Lane>& lane, AppendStep& step);
  void Write(Lane& lane, DemoteBatch& batch);
  void MeasureSpeed(Lane& lane, uint64_t ns);
  bool Drained(const Lane& lane) const {
    return !lane.queued() && !lane.preparing && lane.ready.empty() && !lane.appending;
  }
};

inline uint64_t SteadyNowMs() { return SteadyNs() / kNsPerMs; }

inline void Count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace tpu_sync_native
