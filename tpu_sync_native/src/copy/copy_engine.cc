#include "tpu_sync_native/copy_engine.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/futex.h"
#include "copy/backend.h"
#include "copy/blocked_signals.h"
#include "copy/job.h"
#include "copy/layout.h"
#include "copy/page_toucher.h"
#include "copy/ready_waiter.h"

namespace tpu_sync_native {
namespace {

// A piece is what one thread copies without looking up: small enough that a load behind a store waits for
// less than a fifth of a millisecond, large enough that taking the next one is not felt.
constexpr uint64_t kPieceBytesMin = 256 * 1024;
constexpr uint64_t kPieceBytesMax = 1024 * 1024;
constexpr uint64_t kPiecesPerThread = 4;
constexpr size_t kScratchExtents = 1024;
constexpr uint64_t kPageBytes = 4096;

int DefaultThreads() {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / 2, 1, 4);
}

uint64_t PieceBytes(uint64_t job_bytes, int threads, uint64_t backend_max) {
  const uint64_t even = job_bytes / (static_cast<uint64_t>(threads) * kPiecesPerThread);
  uint64_t piece = std::clamp(even, kPieceBytesMin, kPieceBytesMax) / kPageBytes * kPageBytes;
  if (backend_max != 0) piece = std::min(piece, backend_max);
  return piece;
}

uint64_t ClockNs(clockid_t clock) {
  timespec time;
  if (clock_gettime(clock, &time) != 0) return 0;
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000ULL + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

struct CopyEngine::Impl {
  struct Piece {
    std::shared_ptr<CopyJob> job;
    uint64_t begin;
    uint64_t end;
  };

  CopyEngineOptions options;
  std::unique_ptr<PageToucher> pages;
  std::unique_ptr<ReadyWaiter> waiter;  // its lock is taken after `mutex`
  pid_t pid = getpid();

  std::mutex mutex;
  std::condition_variable work;      // a job was queued, or stopping
  std::condition_variable finished;  // a job left `live`, or a Copy ended
  // Guarded by mutex:
  std::deque<std::shared_ptr<CopyJob>> loads;
  std::deque<std::shared_ptr<CopyJob>> stores;
  std::unordered_map<uint64_t, std::shared_ptr<CopyJob>> live;
  std::vector<CopyCompletion> done;
  LayoutList layouts;
  CopyCounters totals{};
  uint64_t enqueued = 0;
  bool stopping = false;

  std::atomic<size_t> done_count{0};  // of done, for Poll's cheap answer
  std::mutex close_mutex;             // one closer joins
  std::vector<std::thread> threads;   // changed under close_mutex; the threads' clocks are read under mutex
  uint64_t ended_cpu_ns = 0;          // of threads that have left Run; guarded by mutex

  void Start(int count);
  void Stop();  // drains the queues
  void Run();
  void RequireUsable() const;
  bool NextPieceLocked(Piece* piece);
  void Resume(ReadyWaiter::Jobs jobs);
  void FinishLocked(const std::shared_ptr<CopyJob>& job);
  void EnqueueLocked(const std::shared_ptr<CopyJob>& job, bool urgent);
  uint64_t ThreadsCpuNsLocked();
};

// Throws std::system_error when the system has no thread to give; those already started are ended first.
void CopyEngine::Impl::Start(int count) {
  const BlockedSignals blocked;
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([this] { Run(); });
      pthread_setname_np(threads.back().native_handle(), ("kvt-copy-" + std::to_string(i)).c_str());
    }
  } catch (...) {
    Stop();
    throw;
  }
}

void CopyEngine::Impl::Stop() {
  waiter->Stop();  // first: what waits comes back to the queues, which the threads then drain
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  work.notify_all();
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
}

void CopyEngine::Impl::RequireUsable() const {
  if (getpid() != pid) throw std::runtime_error("a forked process cannot use its parent's copy engine");
}

// Takes the next range of the job in front; a job whose last piece is taken leaves its queue, and so does one
// that has to wait for its next chunk. False when there is none.
bool CopyEngine::Impl::NextPieceLocked(Piece* piece) {
  while (!loads.empty() || !stores.empty()) {
    auto& queue = loads.empty() ? stores : loads;
    const std::shared_ptr<CopyJob> job = queue.front();
    uint64_t ready = job->AdvanceReady(options.guard.get());
    if (ready == job->next_byte) {
      queue.pop_front();
      job->ready_deadline_ns = SteadyNs() + options.ready_deadline_ms * kNsPerMs;
      if (waiter->Park(job)) {
        ++totals.load_waits;
        continue;
      }
      job->LosePending();
      ready = job->bytes();
      queue.push_front(job);
    }
    *piece = {job, job->next_byte, std::min(job->next_byte + job->piece_bytes, ready)};
    job->next_byte = piece->end;
    if (piece->end == job->bytes()) queue.pop_front();
    return true;
  }
  return false;
}

void CopyEngine::Impl::Resume(ReadyWaiter::Jobs jobs) {
  const std::lock_guard lock(mutex);
  for (std::shared_ptr<CopyJob>& job : jobs) {
    const auto later = std::find_if(loads.begin(), loads.end(),
                                    [&](const auto& other) { return other->order > job->order; });
    loads.insert(later, std::move(job));
  }
  work.notify_one();
}

void CopyEngine::Impl::Run() {
  ExtentList scratch(kScratchExtents);
  const CopyContext with{options.arena, pages.get(), options.guard.get(), options.backend.get(), &scratch};
  std::unique_lock lock(mutex);
  while (true) {
    work.wait(lock, [this] { return stopping || !loads.empty() || !stores.empty(); });
    if (loads.empty() && stores.empty()) {
      ended_cpu_ns += ClockNs(CLOCK_THREAD_CPUTIME_ID);
      return;
    }
    Piece piece;
    if (!NextPieceLocked(&piece)) continue;
    // Threads wake each other: the submitter pays for one wake only.
    if (!loads.empty() || !stores.empty()) work.notify_one();
    lock.unlock();
    const uint64_t extents = piece.job->CopyPiece(piece.begin, piece.end, with);
    lock.lock();
    totals.extents += extents;
    piece.job->bytes_left -= piece.end - piece.begin;
    if (piece.job->bytes_left == 0) FinishLocked(piece.job);
  }
}

void CopyEngine::Impl::FinishLocked(const std::shared_ptr<CopyJob>& job) {
  job->finished = true;
  const auto entry = live.find(job->id());
  if (entry != live.end() && entry->second == job) {
    const CopyCompletion completion = job->Finish();
    const bool load = job->direction() == CopyDirection::kLoad;
    (load ? totals.load_jobs : totals.store_jobs) += 1;
    (load ? totals.load_bytes : totals.store_bytes) += completion.bytes;
    totals.failed_jobs += completion.ok ? 0 : 1;
    done.push_back(completion);
    done_count.store(done.size(), std::memory_order_release);
    live.erase(entry);
  }
  finished.notify_all();
}

void CopyEngine::Impl::EnqueueLocked(const std::shared_ptr<CopyJob>& job, bool urgent) {
  if (job->bytes() == 0) {
    FinishLocked(job);
    return;
  }
  job->piece_bytes = PieceBytes(job->bytes(), static_cast<int>(threads.size()),
                                options.backend->capabilities().piece_bytes_max);
  job->order = ++enqueued;
  (urgent ? loads : stores).push_back(job);
  work.notify_one();
}

// Once stopping, threads may be gone at any moment: then only what the ended ones left is counted.
uint64_t CopyEngine::Impl::ThreadsCpuNsLocked() {
  uint64_t total = ended_cpu_ns;
  if (stopping) return total;
  for (std::thread& thread : threads) {
    clockid_t clock;
    if (pthread_getcpuclockid(thread.native_handle(), &clock) == 0) total += ClockNs(clock);
  }
  return total;
}

CopyEngine::CopyEngine(const CopyEngineOptions& options) {
  if (options.threads < 0 || options.threads > 256) {
    throw std::invalid_argument("threads is " + std::to_string(options.threads) + ", allowed are 0 to 256");
  }
  if (options.arena == nullptr && options.arena_bytes != 0) throw std::invalid_argument("arena is null");
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (!impl->options.backend) impl->options.backend = MakeHostBackend();
  if (!impl->options.backend->RegisterArena(options.arena, options.arena_bytes)) {
    throw std::invalid_argument("backend " + impl->options.backend->capabilities().name +
                                " cannot use this arena");
  }
  impl->pages = std::make_unique<PageToucher>(options.arena, options.arena_bytes);
  impl->waiter = std::make_unique<ReadyWaiter>(
      options.guard, [raw = impl.get()](ReadyWaiter::Jobs jobs) { raw->Resume(std::move(jobs)); });
  impl->Start(options.threads == 0 ? DefaultThreads() : options.threads);
  impl_ = impl.release();
}

CopyEngine::~CopyEngine() {
  if (!usable_here()) return;
  Close();
  delete impl_;
}

int CopyEngine::AddLayout(const CopyLayoutSpec& spec) {
  impl_->RequireUsable();
  auto layout = std::make_shared<const CopyLayout>(spec, capabilities(), impl_->options.arena_bytes);
  const std::lock_guard lock(impl_->mutex);
  impl_->layouts.push_back(std::move(layout));
  return static_cast<int>(impl_->layouts.size()) - 1;
}

uint64_t CopyEngine::LayoutChunkBytes(int layout) const {
  impl_->RequireUsable();
  const std::lock_guard lock(impl_->mutex);
  if (layout < 0 || static_cast<size_t>(layout) >= impl_->layouts.size()) {
    throw std::invalid_argument("layout " + std::to_string(layout) + " was never given");
  }
  return impl_->layouts[layout]->chunk_bytes();
}

void CopyEngine::Submit(const CopyRequest& request) {
  impl_->RequireUsable();
  LayoutList layouts;
  {
    const std::lock_guard lock(impl_->mutex);
    layouts = impl_->layouts;
  }
  auto job =
      std::make_shared<CopyJob>(request, layouts, impl_->options.arena_bytes, impl_->options.guard.get());
  if (job->waits()) impl_->waiter->Start();
  const std::lock_guard lock(impl_->mutex);
  if (impl_->stopping) throw std::runtime_error("the copy engine is closed");
  if (!impl_->live.emplace(request.job, job).second) {
    throw std::invalid_argument("submit: job " + std::to_string(request.job) + " is still in flight");
  }
  impl_->EnqueueLocked(job, request.direction == CopyDirection::kLoad);
}

std::vector<CopyCompletion> CopyEngine::Poll() {
  impl_->RequireUsable();
  if (impl_->done_count.load(std::memory_order_acquire) == 0) return {};
  const std::lock_guard lock(impl_->mutex);
  impl_->done_count.store(0, std::memory_order_relaxed);
  return std::exchange(impl_->done, {});
}

bool CopyEngine::Wait(std::span<const uint64_t> jobs, double timeout_s) {
  impl_->RequireUsable();
  const auto timeout = std::chrono::duration<double>(std::clamp(timeout_s, 0.0, 86400.0));
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(timeout);
  std::unique_lock lock(impl_->mutex);
  return impl_->finished.wait_until(lock, deadline, [&] {
    return std::none_of(jobs.begin(), jobs.end(), [&](uint64_t job) { return impl_->live.contains(job); });
  });
}

void CopyEngine::Copy(std::span<const uint64_t> rows) {
  impl_->RequireUsable();
  if (!capabilities().plain_memory) {
    throw std::invalid_argument("backend " + capabilities().name + " has no plain memory to copy");
  }
  if (rows.size() % 3 != 0) throw std::invalid_argument("extents must have rows of 3");
  auto job = std::make_shared<CopyJob>(rows);
  std::unique_lock lock(impl_->mutex);
  if (impl_->stopping) throw std::runtime_error("the copy engine is closed");
  impl_->EnqueueLocked(job, /*urgent=*/true);
  impl_->finished.wait(lock, [&] { return job->finished; });
}

uint64_t CopyEngine::pending() const {
  impl_->RequireUsable();
  const std::lock_guard lock(impl_->mutex);
  return impl_->live.size();
}

int CopyEngine::threads() const {
  const std::lock_guard lock(impl_->mutex);
  return static_cast<int>(impl_->threads.size());
}

CopyCounters CopyEngine::counters() const {
  impl_->RequireUsable();
  const std::lock_guard lock(impl_->mutex);
  CopyCounters counters = impl_->totals;
  counters.cpu_ns = impl_->ThreadsCpuNsLocked();
  return counters;
}

const CopyCapabilities& CopyEngine::capabilities() const { return impl_->options.backend->capabilities(); }

bool CopyEngine::usable_here() const { return getpid() == impl_->pid; }

void CopyEngine::Close() {
  impl_->RequireUsable();
  const std::lock_guard closing(impl_->close_mutex);
  impl_->Stop();
}

}  // namespace tpu_sync_native
