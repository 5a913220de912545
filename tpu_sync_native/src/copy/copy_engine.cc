#include "tpu_sync_native/copy_engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "base/futex.h"
#include "copy/engine_impl.h"

namespace tpu_sync_native {
namespace {

// A piece is what one thread copies without looking up: small enough that a load behind a store waits for
// less than a fifth of a millisecond, large enough that taking the next one is not felt.
constexpr uint64_t kPieceBytesMin = 256 * 1024;
constexpr uint64_t kPieceBytesMax = 1024 * 1024;
constexpr uint64_t kPiecesPerThread = 4;
constexpr uint64_t kPageBytes = 4096;

int DefaultThreads() {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / 2, 1, 4);
}

uint64_t PieceBytes(uint64_t job_bytes, int threads, const CopyCapabilities& can) {
  const uint64_t even = job_bytes / (static_cast<uint64_t>(threads) * kPiecesPerThread);
  uint64_t piece = std::clamp(even, kPieceBytesMin, kPieceBytesMax) / kPageBytes * kPageBytes;
  if (can.piece_bytes_max != 0) piece = std::min(piece, can.piece_bytes_max);
  if (can.inflight_bytes_max != 0) piece = std::min(piece, can.inflight_bytes_max);
  // Cut where the device can be cut: pages are multiples of the alignment.
  return std::max(piece / can.alignment_bytes, uint64_t{1}) * can.alignment_bytes;
}

CopyEngineOptions WithBackend(CopyEngineOptions options) {
  if (!options.backend) options.backend = MakeHostBackend();
  return options;
}

JobQueues::Options QueueOptions(const CopyEngineOptions& options) {
  const CopyCapabilities& can = options.backend->capabilities();
  return {.loads_need_window = can.replaces_buffers,
          .inflight_bytes_max = can.inflight_bytes_max,
          .ready_deadline_ns = options.ready_deadline_ms * kNsPerMs,
          .guard = options.guard.get()};
}

}  // namespace

CopyEngine::Impl::Impl(const CopyEngineOptions& with)
    : options(WithBackend(with)),
      pages(options.arena, options.arena_bytes),
      waiter(options.guard,
             [this](ReadyWaiter::Jobs jobs) {
               const std::lock_guard lock(mutex);
               queues.Resume(std::move(jobs));
               work.notify_one();
             }),
      gate(std::make_shared<FenceGate>([this](uint64_t order) {
        const std::lock_guard lock(mutex);
        queues.Unfence(order);
        work.notify_one();
      })),
      queues(QueueOptions(options), &waiter) {}

void CopyEngine::Impl::RequireUsable() const {
  if (getpid() != pid) throw std::runtime_error("a forked process cannot use its parent's copy engine");
}

void CopyEngine::Impl::RequireBuffersFit(const LayoutList& of, const CopyHold& hold) const {
  for (const auto& layout : of) {
    const std::string misfit = layout->MisfitOf(hold);
    if (!misfit.empty()) throw std::invalid_argument("buffers: " + misfit);
  }
}

void CopyEngine::Impl::PrepareLocked(CopyJob* job) {
  job->piece_bytes =
      PieceBytes(job->bytes(), static_cast<int>(threads.size()), options.backend->capabilities());
  job->order = ++enqueued;
}

CopyEngine::CopyEngine(const CopyEngineOptions& options) {
  if (options.threads < 0 || options.threads > 256) {
    throw std::invalid_argument("threads is " + std::to_string(options.threads) + ", allowed are 0 to 256");
  }
  if (options.arena == nullptr && options.arena_bytes != 0) throw std::invalid_argument("arena is null");
  auto impl = std::make_shared<Impl>(options);
  CopyBackend& backend = *impl->options.backend;
  if (!backend.RegisterArena(options.arena, options.arena_bytes)) {
    throw std::invalid_argument("backend " + backend.capabilities().name + " cannot use this arena");
  }
  impl->Start(options.threads == 0 ? DefaultThreads() : options.threads);
  impl_ = std::move(impl);
}

CopyEngine::~CopyEngine() {
  if (usable_here()) {
    if (!impl_->given_up) Close();
    return;
  }
  // Its copy of the threads does not exist, its locks may be held for ever: it is not to be destroyed.
  static_cast<void>(new std::shared_ptr<Impl>(std::move(impl_)));
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
  const CopyCapabilities& can = capabilities();
  const bool load = request.direction == CopyDirection::kLoad;
  if (!can.buffers && !request.buffers.empty()) {
    throw std::invalid_argument("submit: buffers are given, but backend " + can.name + " has none");
  }
  if (!can.streams && request.stream.has_value()) {
    throw std::invalid_argument("submit: a stream is given, but backend " + can.name + " has none");
  }
  LayoutList layouts;
  {
    const std::lock_guard lock(impl_->mutex);
    layouts = impl_->layouts;
  }
  const auto job =
      std::make_shared<CopyJob>(request, layouts, impl_->options.arena_bytes, impl_->options.guard.get());
  std::shared_ptr<CopyHold> fence;  // of a job that has to wait for it
  const bool holds = can.buffers && !(load && can.replaces_buffers);
  if ((holds || request.stream.has_value()) && job->bytes() != 0) {
    CopyBackend& backend = *impl_->options.backend;
    job->hold = holds ? backend.Hold(request.buffers) : backend.Fence(*request.stream);
    if (job->hold == nullptr) {
      job->LoseAll();
    } else {
      if (holds) impl_->RequireBuffersFit(job->layouts(), *job->hold);
      if (!job->hold->Ready()) fence = job->hold;
    }
  }
  const bool refused = job->bytes() != 0 && job->bytes_left == 0;
  if (job->waits()) impl_->waiter.Start();
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->stopping) throw std::runtime_error("the copy engine is closed");
    if (!impl_->live.emplace(request.job, job).second) {
      throw std::invalid_argument("submit: job " + std::to_string(request.job) + " is still in flight");
    }
    impl_->PrepareLocked(job.get());
    impl_->totals.refused_holds += refused ? 1 : 0;
    if (job->bytes_left == 0) {
      impl_->FinishLocked(job);
    } else if (fence != nullptr) {
      ++impl_->totals.fence_waits;
      impl_->queues.AddFenced(job);
    } else {
      impl_->queues.Add(job, /*first=*/load);
    }
    impl_->work.notify_one();
  }
  if (fence != nullptr) {
    fence->OnReady([gate = impl_->gate, order = job->order] { gate->Ready(order); });
  }
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
  if (job->bytes() == 0) return;
  impl_->PrepareLocked(job.get());
  impl_->queues.Add(job, /*first=*/true);
  impl_->work.notify_one();
  impl_->finished.wait(lock, [&] { return job->finished || impl_->given_up; });
  if (!job->finished || job->cut) throw std::runtime_error("the copy engine is closed");
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
  counters.load_waits = impl_->queues.waits();
  counters.cpu_ns = impl_->ThreadsCpuNsLocked();
  return counters;
}

const CopyCapabilities& CopyEngine::capabilities() const { return impl_->options.backend->capabilities(); }

bool CopyEngine::usable_here() const { return getpid() == impl_->pid; }

bool CopyEngine::Close(std::optional<double> timeout_s) {
  impl_->RequireUsable();
  return impl_->Close(timeout_s);
}

}  // namespace tpu_sync_native
