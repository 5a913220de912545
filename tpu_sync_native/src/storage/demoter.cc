// The queue, and which lane does what next.
#include "storage/demoter.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "storage/demoter_impl.h"

namespace tpu_sync_native {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReadyMax = 1;  // one is prepared while one is written
// An object that nobody can see before it is whole is ended after so long, though it could be larger.
constexpr uint64_t kUnreadableMsMax = 30'000;
constexpr uint64_t kHangsMs = 5'000;  // an append that takes longer gives its turn away
// One that takes so long will not end: its lane is dropped. Before, the disk may just be busy, and the queue
// has its bound.
constexpr uint64_t kLostMs = 30'000;

bool MayWrite(const StorageNamespace& ns) {
  return ns.state.load() == StorageNamespace::State::kReady && ns.measured.load() && !ns.clearing.load();
}

}  // namespace

std::shared_ptr<DemoteLane> Demoter::Impl::LaneLocked(uint32_t ns) {
  if (const auto found = lanes.find(ns); found != lanes.end()) return found->second;
  std::shared_ptr<StorageNamespace> space = context->Namespace(ns);
  if (space == nullptr) return nullptr;
  auto lane = std::make_shared<Lane>();
  lane->chunk_bytes = space->chunk_bytes;
  lane->ns = std::move(space);
  return lanes[ns] = std::move(lane);
}

// ---- dropping, and how far a lane is ----

// What the queue still takes from this lane. Lanes that do not write, perhaps for ever (a namespace that
// cannot be opened, a clear that is not confirmed, an append that hangs), give way to one that does.
uint64_t Demoter::Impl::RoomLocked(const Lane& lane, uint64_t wanted) {
  const uint64_t bytes_max = context->options.demote_queue_bytes;
  const auto writes = [](const Lane& any) { return MayWrite(*any.ns) && !any.hangs; };
  if (queued_bytes + wanted > bytes_max && writes(lane)) {
    for (const auto& [ns, other] : lanes) {
      if (other->queued() && !writes(*other)) DropQueueLocked(*other, context->counters.dropped_queue);
    }
  }
  return bytes_max - std::min(queued_bytes, bytes_max);
}

void Demoter::Impl::DropQueueLocked(Lane& lane, std::atomic<uint64_t>& reason) {
  Count(reason, lane.queued_chunks());
  queued_bytes -= (lane.queued_chunks() + lane.copies.size()) * lane.chunk_bytes;
  copied_bytes -= lane.copies.size() * lane.chunk_bytes;
  lane.taken = lane.offered;
  lane.items.clear();
  lane.copies.clear();
  AdvanceLocked(lane);
}

void Demoter::Impl::DropAllLocked(Lane& lane, std::atomic<uint64_t>& reason, Trash* trash) {
  for (std::unique_ptr<DemoteBatch>& batch : lane.ready) {
    Count(reason, batch->records->size());
    trash->push_back(std::move(batch));
  }
  lane.ready.clear();
  DropQueueLocked(lane, reason);
}

void Demoter::Impl::AdvanceLocked(Lane& lane) {
  if (!lane.appending) SettleLocked(lane);
}

// Nothing of the lane is in the medium's hands.
void Demoter::Impl::SettleLocked(Lane& lane) {
  if (!lane.preparing && lane.ready.empty()) lane.appended = lane.taken;
  if (lane.writer == nullptr || lane.writer->unsynced_bytes() == 0) lane.settled = lane.appended;
  changed.notify_all();
}

// ---- tasks: when ----

void Demoter::Impl::PrepareLocked(const std::shared_ptr<Lane>& lane) {
  if (stopping || lane->preparing || lane->ready.size() >= kReadyMax || !lane->queued()) return;
  if (!MayWrite(*lane->ns)) return;
  const Submitted answer =
      context->control->Submit(IoClass::kStore, [self = shared_from_this(), lane] { self->Prepare(lane); });
  if (answer == Submitted::kYes) lane->preparing = true;
  if (answer == Submitted::kDown) DropQueueLocked(*lane, context->counters.dropped_down);
}

void Demoter::Impl::AppendLocked(const std::shared_ptr<Lane>& lane, Trash* trash) {
  if (stopping || lane->appending || lane->waiting) return;
  if (lane->ready.empty() && !lane->sync_wanted && !lane->seal_wanted) return;
  if (lane->ready.empty() && lane->writer == nullptr) {  // nothing to sync or to seal
    lane->sync_wanted = lane->seal_wanted = false;
    AdvanceLocked(*lane);
    return;
  }
  lane->waiting = true;
  turns.push_back(lane);
  NextTurnsLocked(trash);
}

// While promotes are under way one lane appends at a time, one step a tick: engines wait for promotes, for
// demotes nobody does. They are slowed and never starved; what the queue has no room for meanwhile is
// dropped.
void Demoter::Impl::NextTurnsLocked(Trash* trash, bool tick) {
  const bool yields = YieldsLocked();
  if (yields && !tick) return;
  const uint32_t most = yields ? 1 : std::max(context->options.store_threads, 1u);
  while (!turns.empty() && appending < most) {
    const std::shared_ptr<Lane> lane = std::move(turns.front());
    turns.pop_front();
    lane->waiting = false;
    const Submitted answer =
        context->control->Submit(IoClass::kStore, [self = shared_from_this(), lane] { self->Append(lane); });
    if (answer == Submitted::kYes) {
      lane->appending = true;
      ++appending;
    } else if (answer == Submitted::kDown) {
      DropAllLocked(*lane, context->counters.dropped_down, trash);
    }  // kFull: the next tick tries again
  }
}

void Demoter::Impl::EndTurnLocked(Lane& lane) {
  lane.appending = false;
  lane.append_began_ms = 0;
  if (!lane.hangs) --appending;
  lane.hangs = false;
  AdvanceLocked(lane);
}

void Demoter::Impl::LookAfterLocked(const std::shared_ptr<Lane>& lane, uint64_t now_ms, Trash* trash) {
  const bool refused = lane->ns->state.load() == StorageNamespace::State::kRefused;
  if (lane->append_began_ms != 0 && !lane->hangs && now_ms >= lane->append_began_ms + kHangsMs) {
    lane->hangs = true;
    --appending;
  }
  const bool lost = lane->hangs && now_ms >= lane->append_began_ms + kLostMs;
  if (context->control->down() || refused || lost) {
    DropAllLocked(*lane, context->counters.dropped_down, trash);
    return;
  }
  if (!lane->appending && lane->writer != nullptr) {
    const bool readable = context->files->traits().appends_readable;
    const uint64_t since_ms = lane->writer->unsynced_since_ms();
    const uint64_t patience_ms = readable ? context->options.sync_ms : kUnreadableMsMax;
    if (since_ms != 0 && now_ms >= since_ms + patience_ms)
      (readable ? lane->sync_wanted : lane->seal_wanted) = true;
    if (lane->writer->indexes_pending() && now_ms >= lane->index_tried_ms + context->options.sync_ms) {
      lane->index_tried_ms = now_ms;
      lane->sync_wanted = true;
    }
  }
  PrepareLocked(lane);
  AppendLocked(lane, trash);
}

Demoter::Demoter(std::shared_ptr<StorageContext> context, Store& store, std::shared_ptr<Arena> arena)
    : impl_(std::make_shared<Impl>(std::move(context), store, std::move(arena))) {}

Demoter::~Demoter() { Stop(0); }

void Demoter::Start(std::function<void()> no_space) {
  impl_->no_space = std::move(no_space);
  const std::lock_guard lock(impl_->mutex);
  impl_->accepting = true;
}

void Demoter::Offer(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots) {
  Impl& impl = *impl_;
  StorageCounters& counters = impl.context->counters;
  const std::lock_guard lock(impl.mutex);
  const std::shared_ptr<DemoteLane> lane = impl.accepting ? impl.LaneLocked(ns) : nullptr;
  if (lane == nullptr || impl.context->control->down()) return Count(counters.dropped_down, slots.size());
  if (!impl.context->admitting.load()) return Count(counters.dropped_full, slots.size());
  const uint64_t room = impl.RoomLocked(*lane, slots.size() * lane->chunk_bytes);
  const auto fits = static_cast<size_t>(std::min<uint64_t>(slots.size(), room / lane->chunk_bytes));
  Count(counters.dropped_queue, slots.size() - fits);  // the end of the prefix, which is worth least
  if (fits == 0) return;
  lane->items.push_back(
      {CommitTime::Now(*lane->ns), epoch, {slots.begin(), slots.begin() + static_cast<ptrdiff_t>(fits)}});
  lane->offered += fits;
  impl.queued_bytes += fits * lane->chunk_bytes;
  impl.PrepareLocked(lane);
}

bool Demoter::OfferBytes(uint32_t ns, uint64_t epoch, std::string_view key,
                         std::shared_ptr<const uint8_t[]> bytes) {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.mutex);
  const std::shared_ptr<DemoteLane> lane = impl.accepting ? impl.LaneLocked(ns) : nullptr;
  if (lane == nullptr || lane->hangs || impl.context->control->down()) return false;
  // At most a quarter of the queue, so that demotes have theirs.
  if (impl.copied_bytes + lane->chunk_bytes > impl.context->options.demote_queue_bytes / 4 ||
      impl.RoomLocked(*lane, lane->chunk_bytes) < lane->chunk_bytes) {
    return false;
  }
  lane->copies.push_back({epoch, std::string(key), std::move(bytes)});
  impl.queued_bytes += lane->chunk_bytes;
  impl.copied_bytes += lane->chunk_bytes;
  impl.PrepareLocked(lane);
  return true;
}

void Demoter::Clear(uint32_t ns) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->lanes.find(ns);
  if (found == impl_->lanes.end()) return;
  impl_->DropQueueLocked(*found->second, impl_->context->counters.dropped_evicted);
  found->second->seal_wanted = true;  // by the next tick
}

void Demoter::SealOpen(uint32_t ns) {
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [index, lane] : impl_->lanes) {
    if (ns != kNoNamespace && ns != index) continue;
    if (lane->appending || lane->writer == nullptr || lane->writer->open_bytes() == 0) continue;
    lane->seal_wanted = true;
  }
}

void Demoter::Tick() {
  Trash trash;
  const uint64_t now_ms = SteadyNowMs();
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [ns, lane] : impl_->lanes) impl_->LookAfterLocked(lane, now_ms, &trash);
  impl_->NextTurnsLocked(&trash, /*tick=*/true);
}

bool Demoter::Flush(uint64_t wait_ms) {
  Impl& impl = *impl_;
  const auto deadline = Clock::now() + std::chrono::milliseconds(wait_ms);
  const bool readable = impl.context->files->traits().appends_readable;
  Trash trash;
  std::unique_lock lock(impl.mutex);
  bool all = true;
  for (const auto& [ns, lane] : std::unordered_map(impl.lanes)) {
    const uint64_t target = lane->offered;
    while (lane->settled < target && all) {
      if (impl.stopping) {  // whoever stopped has had his patience; nothing settles any more
        all = false;
        break;
      }
      // Once all of it is appended, and not before: one sync for all.
      if (lane->appended >= target) {
        (readable ? lane->sync_wanted : lane->seal_wanted) = true;
        impl.AppendLocked(lane, &trash);
      } else {
        impl.PrepareLocked(lane);
      }
      if (lane->settled >= target) break;
      all = impl.changed.wait_until(lock, deadline) == std::cv_status::no_timeout;
    }
  }
  lock.unlock();
  return all;
}

bool Demoter::Stop(uint64_t wait_ms) {
  Impl& impl = *impl_;
  const auto deadline = Clock::now() + std::chrono::milliseconds(wait_ms);
  Trash trash;
  {
    const std::lock_guard lock(impl.mutex);
    impl.accepting = false;
    for (const auto& [index, lane] : impl.lanes) {
      if (!MayWrite(*lane->ns)) impl.DropQueueLocked(*lane, impl.context->counters.dropped_down);
    }
    impl.NextTurnsLocked(&trash);  // of lanes that stood back for promotes: no tick comes any more
  }
  bool all = Flush(wait_ms);
  {
    std::unique_lock lock(impl.mutex);
    const auto finished = [&](bool sealed) {
      return std::all_of(impl.lanes.begin(), impl.lanes.end(), [&](const auto& lane) {
        return impl.Drained(*lane.second) && !(sealed && lane.second->seal_wanted);
      });
    };
    // Copies are no part of a flush. What is appended after the seal would be in a segment that nobody syncs.
    all = all && impl.changed.wait_until(lock, deadline, [&] { return finished(false); });
    for (const auto& [ns, lane] : impl.lanes) {
      lane->seal_wanted = all;
      impl.AppendLocked(lane, &trash);
    }
    all &= impl.changed.wait_until(lock, deadline, [&] { return finished(true); });
    impl.stopping = true;
    for (const auto& [ns, lane] : impl.lanes) {
      impl.DropAllLocked(*lane, impl.context->counters.dropped_down, &trash);
    }
    impl.changed.notify_all();
  }
  trash.clear();
  impl.pins->Close();
  return all;
}

uint64_t Demoter::queued_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->queued_bytes;
}

}  // namespace tpu_sync_native
