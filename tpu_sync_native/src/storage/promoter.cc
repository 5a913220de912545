// How the threads meet:
//
//   store's mutex  > Offer: queue, at most one task submitted            (no call of the store)
//   load thread    > one run: ReadChunks, each chunk settled as it comes; then the next task is submitted
//   timer          > ends what is overdue, and what waits while the medium is down
//
// Whoever has ended chunks writes it into `ended` under `mutex` and then flushes: Flush tells the store, one
// flusher at a time, in the order in which it was written. So a slot's kLostBusy always precedes its kGone,
// and `mutex`, which Offer takes under the store's, is never held while the store is called.
#include "storage/promoter.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "storage/promote_queue.h"
#include "storage/segment_reader.h"

namespace tpu_sync_native {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kDownCheck =
    std::chrono::milliseconds(100);        // how soon what waits learns that the medium is down
constexpr uint64_t kFlushBytes = 1 << 20;  // readers are woken once per so many bytes of small chunks

void Count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace

// Shared with the tasks: one that hangs outlives the promoter, keeps arena and context alive, and finds no
// store.
struct Promoter::Impl : std::enable_shared_from_this<Promoter::Impl> {
  Impl(std::shared_ptr<StorageContext> wanted_context, Store& wanted_store,
       std::shared_ptr<Arena> wanted_arena)
      : context(std::move(wanted_context)),
        arena(std::move(wanted_arena)),
        queue(context->options.promote_queue_bytes, context->options.io_bytes),
        store(&wanted_store) {}

  const std::shared_ptr<StorageContext> context;
  const std::shared_ptr<Arena> arena;

  mutable std::mutex mutex;
  std::condition_variable timer_wakes;  // a job came, or time to end
  std::condition_variable run_ended;
  PromoteQueue queue;               // guarded by mutex, as all below
  std::vector<PromoteEnded> ended;  // not yet told to the store
  uint32_t workers = 0;             // tasks submitted or running, but for those that are overdue
  bool accepting = false;
  bool stopping = false;
  std::thread timer;

  std::mutex flush_mutex;  // before the store's mutex, which comes before `mutex`
  Store* store;            // guarded by flush_mutex; null: stopped

  // Reads that hang do not count, nobody gains by waiting for them.
  void NoteLocked() { context->promoting.store(queue.has_runs() || workers > 0); }

  // False: refused, the medium is down.
  bool SubmitLocked() {
    if (stopping || workers >= context->options.load_threads) return true;
    const Submitted answer =
        context->loads->Submit(IoClass::kLoad, [self = shared_from_this()] { self->Work(); });
    if (answer == Submitted::kYes) ++workers;
    return answer == Submitted::kYes;
  }

  void Work() {
    std::shared_ptr<PromoteRun> run;
    {
      const std::lock_guard lock(mutex);
      if (!stopping) run = queue.TakeRun();
      if (run == nullptr) {
        --workers;
        NoteLocked();
        return;
      }
      if (queue.has_runs()) SubmitLocked();
    }
    try {
      Read(*run);
    } catch (...) {  // no memory: what was not read is lost
    }
    {
      const std::lock_guard lock(mutex);
      queue.Finish(run, &ended);
      if (!run->abandoned) --workers;
      ContinueLocked();
      run_ended.notify_all();
    }
    Flush();
  }

  // What waits is read, or lost when it cannot be.
  void ContinueLocked() {
    if (!queue.has_runs() || stopping) return;
    if (!SubmitLocked() && workers == 0) Count(context->counters.failed_down, queue.EndWaiting(&ended));
  }

  void Read(const PromoteRun& run) {
    const PromoteJob& job = *run.job;
    const std::span<const PromoteChunk> chunks = std::span(job.chunks).subspan(run.first, run.count);
    const Clock::time_point began = Clock::now();
    const std::shared_ptr<StorageNamespace> ns = context->Namespace(job.ns);
    const std::shared_ptr<Segment> segment = context->segments->Get(UnpackWhere(chunks[0].from).segment);
    uint64_t unflushed_bytes = 0;
    const auto done = [&](size_t i, ReadVerdict verdict) {
      if (verdict == ReadVerdict::kOk) {
        context->catalog->Touch(MakeCatalogKey(ns->id, Key(chunks[i])), SteadySeconds());
      }
      Settle(run, i, verdict, ns == nullptr ? 0 : ns->chunk_bytes);
      unflushed_bytes += UnpackWhere(chunks[i].from).stored_bytes;
      if (unflushed_bytes < kFlushBytes) return;
      unflushed_bytes = 0;
      Flush();
    };
    if (ns == nullptr || segment == nullptr || !Serves(*ns, *segment)) {
      for (size_t i = 0; i < chunks.size(); ++i) done(i, ReadVerdict::kMissing);
      return;
    }
    std::vector<WantedChunk> wanted;
    wanted.reserve(chunks.size());
    for (const PromoteChunk& chunk : chunks) {
      const Where where = UnpackWhere(chunk.from);
      wanted.push_back({where.offset, where.stored_bytes, Key(chunk),
                        reinterpret_cast<uint8_t*>(arena->data()) + chunk.ref.offset});
    }
    ReadChunks(*context, *segment, wanted, done);
    const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began);
    Count(context->counters.promote_ns, static_cast<uint64_t>(took.count()));
  }

  static std::string_view Key(const PromoteChunk& chunk) {
    return {reinterpret_cast<const char*>(chunk.key), chunk.key_bytes};
  }

  // Whether what lies in the segment is to be believed in this namespace, as it is now.
  static bool Serves(const StorageNamespace& ns, const Segment& segment) {
    return ns.state.load(std::memory_order_acquire) == StorageNamespace::State::kReady &&
           !ns.clearing.load(std::memory_order_acquire) &&
           std::equal(std::begin(ns.id), std::end(ns.id), std::begin(segment.identity.namespace_id)) &&
           segment.identity.epoch == ns.epoch.load(std::memory_order_acquire) &&
           segment.identity.chunk_bytes == ns.chunk_bytes;
  }

  Clock::time_point Deadline() const {
    return Clock::now() + std::chrono::milliseconds(context->options.promote_deadline_ms);
  }

  void Settle(const PromoteRun& run, size_t i, ReadVerdict verdict, uint64_t chunk_bytes) {
    {
      const std::lock_guard lock(mutex);
      const bool readable = verdict == ReadVerdict::kOk;
      if (!queue.Settle(run, i, readable, Deadline(), &ended)) return;  // counted when it was overdue
    }
    StorageCounters& counters = context->counters;
    switch (verdict) {
      case ReadVerdict::kOk:
        Count(counters.promoted_chunks);
        Count(counters.promoted_bytes, chunk_bytes);
        break;
      case ReadVerdict::kMissing:
        Count(counters.failed_missing);
        break;
      case ReadVerdict::kCorrupt:
        Count(counters.failed_corrupt);
        break;
      case ReadVerdict::kIo:
        Count(counters.failed_io);
        break;
    }
  }

  void Flush() {
    const std::lock_guard flushing(flush_mutex);
    std::vector<PromoteEnded> batch;
    {
      const std::lock_guard lock(mutex);
      NoteLocked();
      batch.swap(ended);
    }
    if (store == nullptr) return;
    std::vector<SlotRef> refs;
    for (size_t i = 0; i < batch.size(); ++i) {
      refs.push_back(batch[i].ref);
      if (i + 1 < batch.size() && batch[i + 1].end == batch[i].end) continue;
      store->EndPromotes(refs, batch[i].end);
      refs.clear();
    }
  }

  void RunTimer() {
    std::unique_lock lock(mutex);
    while (!stopping) {
      if (queue.chunks() == 0) {
        timer_wakes.wait(lock);
        continue;
      }
      const Clock::time_point wake = queue.has_runs() ? Clock::now() + kDownCheck : SteadyTime::max();
      timer_wakes.wait_until(lock, std::min(wake, queue.next_deadline()));
      if (stopping) break;
      const std::vector<std::shared_ptr<PromoteRun>> runs = queue.runs();
      const auto abandoned = [&] {
        return static_cast<uint32_t>(
            std::count_if(runs.begin(), runs.end(), [](const auto& run) { return run->abandoned; }));
      };
      const uint32_t before = abandoned();
      Count(context->counters.failed_deadline, queue.Expire(Clock::now(), &ended));
      workers -= abandoned() - before;  // others may run in place of those that hang
      if (context->loads->down()) {
        Count(context->counters.failed_down, queue.EndWaiting(&ended));
      } else {
        ContinueLocked();
      }
      lock.unlock();
      Flush();
      lock.lock();
    }
  }
};

Promoter::Promoter(std::shared_ptr<StorageContext> context, Store& store, std::shared_ptr<Arena> arena)
    : impl_(std::make_shared<Impl>(std::move(context), store, std::move(arena))) {}

Promoter::~Promoter() { Stop(0); }

void Promoter::Start() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->accepting || impl_->stopping) return;
  impl_->accepting = true;
  impl_->timer = std::thread([impl = impl_] { impl->RunTimer(); });
}

bool Promoter::Stop(uint64_t wait_ms) {
  Impl& impl = *impl_;
  std::thread timer;
  {
    const std::lock_guard lock(impl.mutex);
    impl.stopping = true;
    impl.accepting = false;
    Count(impl.context->counters.failed_down, impl.queue.EndAll(&impl.ended));
    timer = std::move(impl.timer);
    impl.timer_wakes.notify_all();
  }
  if (timer.joinable()) timer.join();  // waits for nothing but the store
  impl.Flush();
  bool ended = false;
  {
    std::unique_lock lock(impl.mutex);
    ended = impl.run_ended.wait_for(lock, std::chrono::milliseconds(wait_ms),
                                    [&] { return impl.queue.runs().empty(); });
  }
  impl.Flush();  // the last kGone; a read that returns later finds no store
  const std::lock_guard flushing(impl.flush_mutex);
  impl.store = nullptr;
  return ended;
}

bool Promoter::Offer(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency) {
  Impl& impl = *impl_;
  if (chunks.empty()) return true;
  const std::lock_guard lock(impl.mutex);
  if (!impl.accepting || impl.context->loads->down()) return false;
  const bool timer_sleeps = !impl.queue.has_runs();  // or looks at deadlines alone, none of this job
  if (!impl.queue.Add(ns, chunks, urgency, impl.Deadline())) return false;
  if (!impl.SubmitLocked()) {
    impl.queue.TakeBack(urgency);
    return false;
  }
  impl.NoteLocked();
  if (timer_sleeps) impl.timer_wakes.notify_one();
  return true;
}

void Promoter::Hurry(std::span<const uint32_t> slots) {
  const std::lock_guard lock(impl_->mutex);
  impl_->queue.Hurry(slots);
}

uint64_t Promoter::queued_chunks() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->queue.chunks();
}

}  // namespace tpu_sync_native
