// How a copy engine ends, also where its device does not answer (docs/decisions/0034).
#include <algorithm>
#include <chrono>
#include <utility>

#include "copy/engine_impl.h"

namespace tpu_sync_native {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<uint64_t> unlanded_stores{0};

bool IsStore(const CopyJob& job) { return job.direction() == CopyDirection::kStore; }

}  // namespace

bool CopyEngine::Impl::Close(std::optional<double> timeout_s) {
  const std::lock_guard closing(close_mutex);
  waiter.Stop();  // first: what waits comes back to the queues, which the threads then drain
  bool rests = false;
  {
    Lock lock(mutex);
    stopping = true;
    work.notify_all();
    window_changed.notify_all();
    rests = AwaitRestLocked(lock, timeout_s);
  }
  for (std::thread& thread : threads) {
    if (!thread.joinable()) continue;
    if (rests) {
      thread.join();
    } else {
      thread.detach();  // each keeps this alive
    }
  }
  gate->Shut();
  return rests;
}

bool CopyEngine::Impl::AwaitRestLocked(Lock& lock, std::optional<double> timeout_s) {
  const auto rests = [this] { return at_rest; };
  if (!timeout_s.has_value()) {
    finished.wait(lock, rests);
    return true;
  }
  const auto time = std::chrono::duration<double>(std::clamp(*timeout_s, 0.0, 86400.0));
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
  if (finished.wait_until(lock, deadline, rests)) return true;
  if (given_up) return false;
  abandoned = queues.TakeAll();
  for (const auto& job : abandoned) {
    if (!job->under_way()) FinishLocked(job);
  }
  work.notify_all();
  const auto landing_deadline = Clock::now() + std::chrono::milliseconds(options.landing_deadline_ms);
  if (finished.wait_until(lock, landing_deadline, rests)) return true;
  GiveUpLocked();
  return false;
}

void CopyEngine::Impl::GiveUpLocked() {
  given_up = true;
  for (const auto& [id, job] : live) {
    abandoned.push_back(job);
    if (!job->under_way()) continue;
    job->LoseAll();
    unlanded.push_back(job);
    unlanded_stores += IsStore(*job) ? 1 : 0;
  }
  const auto jobs = live;
  for (const auto& [id, job] : jobs) FinishLocked(job);
  finished.notify_all();  // a Copy is no job
}

void CopyEngine::Impl::LandedLateLocked(const std::shared_ptr<CopyJob>& job) {
  if (std::erase(unlanded, job) != 0 && IsStore(*job)) --unlanded_stores;
}

void CopyEngine::Impl::LeaveLocked(Lock& lock, int count) {
  running -= count;
  if (running != 0) return;
  std::vector<std::shared_ptr<CopyJob>> holders = std::exchange(abandoned, {});
  lock.unlock();
  holders.clear();
  options.backend->UnregisterArena(options.arena, options.arena_bytes);
  lock.lock();
  at_rest = true;
  finished.notify_all();
}

std::vector<uint64_t> CopyEngine::Unlanded() const {
  impl_->RequireUsable();
  std::vector<uint64_t> jobs;
  const std::lock_guard lock(impl_->mutex);
  for (const auto& job : impl_->unlanded) jobs.push_back(job->id());
  return jobs;
}

uint64_t CopyEngine::UnlandedStores() { return unlanded_stores; }

}  // namespace tpu_sync_native
