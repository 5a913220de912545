#include "copy/job_queues.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/futex.h"

namespace tpu_sync_native {

void JobQueues::Add(std::shared_ptr<CopyJob> job, bool first) {
  if (options_.loads_need_window) job->ready_deadline_ns = SteadyNs() + options_.ready_deadline_ns;
  (first ? loads_ : stores_).push_back(std::move(job));
  CountLoads();
}

void JobQueues::AddFenced(std::shared_ptr<CopyJob> job) {
  job->ready_deadline_ns = SteadyNs() + options_.ready_deadline_ns;
  fenced_.push_back(std::move(job));
}

void JobQueues::Unfence(uint64_t order) {
  const auto found = std::ranges::find_if(fenced_, [&](const auto& job) { return job->order == order; });
  if (found == fenced_.end()) return;
  std::shared_ptr<CopyJob> job = std::move(*found);
  fenced_.erase(found);
  InsertByOrder(std::move(job));
}

void JobQueues::Resume(ReadyWaiter::Jobs jobs) {
  for (std::shared_ptr<CopyJob>& job : jobs) {
    if (job->next_byte == job->bytes()) continue;  // lost meanwhile; whoever has its last piece reports it
    if (options_.loads_need_window) job->ready_deadline_ns = SteadyNs() + options_.ready_deadline_ns;
    InsertByOrder(std::move(job));
  }
}

void JobQueues::InsertByOrder(std::shared_ptr<CopyJob> job) {
  auto& queue = job->direction() == CopyDirection::kLoad ? loads_ : stores_;
  const auto later =
      std::ranges::find_if(queue, [&](const auto& other) { return other->order > job->order; });
  queue.insert(later, std::move(job));
  CountLoads();
}

bool JobQueues::LoadsGo() const {
  if (loads_.empty()) return false;
  if (!options_.loads_need_window) return true;
  return window_open() && (window_pieces_ == 0 || SteadyNs() < window_deadline_ns_);
}

bool JobQueues::Next(JobPiece* piece) {
  while (!empty()) {
    const bool load = LoadsGo();
    auto& queue = load ? loads_ : stores_;
    const std::shared_ptr<CopyJob> job = queue.front();
    uint64_t ready = job->AdvanceReady(options_.guard);
    if (ready == job->next_byte) {
      job->ready_deadline_ns = SteadyNs() + options_.ready_deadline_ns;
      if (waiter_->Park(job)) {
        ++waits_;
        queue.pop_front();
        CountLoads();
        continue;
      }
      job->LosePending();
      ready = job->bytes();
    }
    const uint64_t end = std::min(job->next_byte + job->piece_bytes, ready);
    const uint64_t bytes = end - job->next_byte;
    // What does not fit keeps its place: others that fit would keep the device busy for ever.
    if (options_.inflight_bytes_max != 0 && inflight_bytes_ != 0 &&
        inflight_bytes_ + bytes > options_.inflight_bytes_max) {
      return false;
    }
    const bool in_window = load && options_.loads_need_window;
    *piece = {job, in_window ? window_hold_ : job->hold, job->next_byte, end, in_window ? window_ : 0};
    inflight_bytes_ += bytes;
    job->next_byte = end;
    if (in_window) {
      underway_.push_back(job);
      ++window_pieces_;
    }
    if (end == job->bytes()) queue.pop_front();
    CountLoads();
    return true;
  }
  return false;
}

void JobQueues::Landed(const JobPiece& piece) {
  inflight_bytes_ -= piece.end - piece.begin;
  hung_ = false;
  if (piece.window == 0 || piece.window != window_) return;
  const auto found = std::ranges::find(underway_, piece.job);
  if (found != underway_.end()) underway_.erase(found);
}

uint64_t JobQueues::NextDeadline() const {
  uint64_t deadline = UINT64_MAX;
  const auto look = [&](const auto& job) { deadline = std::min(deadline, job->ready_deadline_ns); };
  std::ranges::for_each(fenced_, look);
  if (options_.loads_need_window && !window_open()) std::ranges::for_each(loads_, look);
  return deadline;
}

ReadyWaiter::Jobs JobQueues::TakeExpired(uint64_t now_ns) {
  ReadyWaiter::Jobs expired;
  const auto take = [&](auto& queue) {
    const auto first = std::stable_partition(
        queue.begin(), queue.end(), [&](const auto& job) { return job->ready_deadline_ns > now_ns; });
    std::move(first, queue.end(), std::back_inserter(expired));
    queue.erase(first, queue.end());
  };
  take(fenced_);
  if (options_.loads_need_window && (!window_open() || now_ns == UINT64_MAX)) take(loads_);
  CountLoads();
  for (const auto& job : expired) job->LoseRest();
  return expired;
}

ReadyWaiter::Jobs JobQueues::TakeAll() {
  ReadyWaiter::Jobs all = TakeAllWaiting();
  for (auto* const queue : {&loads_, &stores_}) {
    for (const auto& job : *queue) job->LoseRest();
    std::move(queue->begin(), queue->end(), std::back_inserter(all));
    queue->clear();
  }
  CountLoads();
  return all;
}

void JobQueues::OpenWindow(std::shared_ptr<CopyHold> hold, uint64_t deadline_ns) {
  window_hold_ = std::move(hold);
  window_deadline_ns_ = deadline_ns;
  ++window_;
  window_pieces_ = 0;
}

std::shared_ptr<CopyHold> JobQueues::CloseWindow() {
  if (window_pieces_ == 0 && !loads_.empty()) {
    hung_ = true;  // every thread has a piece that does not end
  } else {
    const uint64_t deadline = SteadyNs() + options_.ready_deadline_ns;
    for (const auto& job : loads_) job->ready_deadline_ns = deadline;
  }
  return std::exchange(window_hold_, nullptr);
}

void JobQueues::LoseUnderWay() {
  hung_ = true;
  for (const auto& job : underway_) {
    waiter_->Withdraw(job);
    job->LoseAll();
    std::erase(loads_, job);
  }
  underway_.clear();
  CountLoads();
}

}  // namespace tpu_sync_native
