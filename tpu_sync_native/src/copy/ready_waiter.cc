#include "copy/ready_waiter.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/futex.h"
#include "copy/blocked_signals.h"

namespace tpu_sync_native {
namespace {

// The guard's events do not tell that the daemon is gone or that the engine closes; it is asked this often,
// and only while a job waits.
constexpr uint64_t kSleepNsMax = 20 * kNsPerMs;

}  // namespace

void ReadyWaiter::Start() {
  const std::lock_guard lock(mutex_);
  if (running_ || stopping_ || guard_ == nullptr) return;
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    return;  // no thread to be had: who waits has lost
  }
  pthread_setname_np(thread_.native_handle(), "kvt-copy-wait");
  running_ = true;
}

bool ReadyWaiter::Park(std::shared_ptr<CopyJob> job) {
  {
    const std::lock_guard lock(mutex_);
    if (!running_ || stopping_) return false;
    parked_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void ReadyWaiter::Withdraw(const std::shared_ptr<CopyJob>& job) {
  const std::lock_guard lock(mutex_);
  std::erase(parked_, job);
}

void ReadyWaiter::Stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  changed_.notify_one();
  if (guard_ != nullptr) guard_->Interrupt();
  if (thread_.joinable()) thread_.join();
}

ReadyWaiter::Jobs ReadyWaiter::TakeReadyLocked(uint64_t now_ns, uint64_t* wake_ns) {
  const bool over = stopping_ || guard_->Abandoned();
  const auto waits = [&](const std::shared_ptr<CopyJob>& job) {
    if (over || now_ns >= job->ready_deadline_ns) job->LosePending();
    if (job->AdvanceReady(guard_.get()) > job->next_byte) return false;
    *wake_ns = std::min(*wake_ns, job->ready_deadline_ns);
    return true;
  };
  const auto ready = std::stable_partition(parked_.begin(), parked_.end(), waits);
  Jobs jobs(std::make_move_iterator(ready), std::make_move_iterator(parked_.end()));
  parked_.erase(ready, parked_.end());
  return jobs;
}

void ReadyWaiter::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !parked_.empty(); });
    // Read before the jobs are looked at: an event in between ends the sleep at once.
    const uint32_t events = guard_->Events();
    const uint64_t now_ns = SteadyNs();
    uint64_t wake_ns = now_ns + kSleepNsMax;
    Jobs ready = TakeReadyLocked(now_ns, &wake_ns);
    if (stopping_ && ready.empty()) return;
    lock.unlock();
    if (ready.empty()) {
      guard_->AwaitEvent(events, wake_ns);
    } else {
      resume_(std::move(ready));
    }
    lock.lock();
  }
}

}  // namespace tpu_sync_native
