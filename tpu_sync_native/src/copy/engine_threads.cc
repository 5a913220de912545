// The threads of a copy engine: they take pieces, copy them, report jobs, and keep the deadlines of those
// that wait.
#include <pthread.h>
#include <time.h>

#include <chrono>
#include <string>
#include <utility>

#include "base/futex.h"
#include "copy/blocked_signals.h"
#include "copy/engine_impl.h"

namespace tpu_sync_native {
namespace {

constexpr size_t kScratchExtents = 1024;

uint64_t ClockNs(clockid_t clock) {
  timespec time;
  if (clock_gettime(clock, &time) != 0) return 0;
  return static_cast<uint64_t>(time.tv_sec) * kNsPerS + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

// Throws std::system_error when the system has no thread to give; those already started are ended first.
void CopyEngine::Impl::Start(int count) {
  const BlockedSignals blocked;
  try {
    running = count;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([self = shared_from_this()] { self->Run(); });
      pthread_setname_np(threads.back().native_handle(), ("kvt-copy-" + std::to_string(i)).c_str());
    }
  } catch (...) {
    {
      Lock lock(mutex);
      LeaveLocked(lock, count - static_cast<int>(threads.size()));
    }
    Close(std::nullopt);
    throw;
  }
}

bool CopyEngine::Impl::AwaitPieceLocked(Lock& lock, JobPiece* piece) {
  while (true) {
    if (stopping) {
      EndAllLocked(lock, queues.TakeAllWaiting());
    } else if (queues.NextDeadline() != UINT64_MAX) {
      EndAllLocked(lock, queues.TakeExpired(SteadyNs()));
    }
    const bool taken = queues.Next(piece);
    // Next may also have given the last load that could go on to the waiter.
    if (queues.window_open()) window_changed.notify_all();
    if (taken) return true;
    if (stopping && queues.drained()) return false;
    const uint64_t wake_ns = queues.NextDeadline();
    if (wake_ns == UINT64_MAX) {
      work.wait(lock);
    } else {
      work.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(wake_ns)));
    }
  }
}

void CopyEngine::Impl::Run() {
  ExtentList scratch(kScratchExtents);
  const CopyContext with{options.arena,         &pages,   options.guard.get(),
                         options.backend.get(), &scratch, &given_up};
  Lock lock(mutex);
  while (true) {
    JobPiece piece;
    if (!AwaitPieceLocked(lock, &piece)) break;
    // Threads wake each other: the submitter pays for one wake only.
    if (!queues.empty()) work.notify_one();
    lock.unlock();
    const uint64_t extents = piece.job->CopyPiece(piece.begin, piece.end, with, piece.hold.get());
    piece.hold.reset();
    lock.lock();
    totals.extents += extents;
    queues.Landed(piece);
    if (queues.window_open() || piece.window != 0) window_changed.notify_all();
    piece.job->bytes_left -= piece.end - piece.begin;
    if (piece.job->bytes_left == 0) EndLocked(lock, piece.job);
  }
  ended_cpu_ns += ClockNs(CLOCK_THREAD_CPUTIME_ID);
  work.notify_all();
  LeaveLocked(lock, 1);
}

void CopyEngine::Impl::EndLocked(Lock& lock, const std::shared_ptr<CopyJob>& job) {
  if (std::shared_ptr<CopyHold> hold = std::move(job->hold)) {
    lock.unlock();
    hold.reset();
    lock.lock();
  }
  FinishLocked(job);
  if (given_up) LandedLateLocked(job);
}

void CopyEngine::Impl::EndAllLocked(Lock& lock, const ReadyWaiter::Jobs& jobs) {
  for (const std::shared_ptr<CopyJob>& job : jobs) {
    if (job->bytes_left == 0) EndLocked(lock, job);
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

}  // namespace tpu_sync_native
