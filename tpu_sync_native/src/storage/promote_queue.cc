#include "storage/promote_queue.h"

#include <algorithm>
#include <utility>

#include "catalog/catalog.h"
#include "storage/segment_reader.h"

namespace tpu_sync_native {
namespace {

using State = PromoteJob::State;
using End = Store::PromoteEnd;

constexpr uint64_t kFirstRunBytes = 512 << 10;
constexpr size_t kRunChunksMax = 256;

uint64_t StoredBytes(const PromoteChunk& chunk) { return UnpackWhere(chunk.from).stored_bytes; }

// How many chunks from job.next on are one run: at least one.
size_t RunLength(const PromoteJob& job) {
  const Where first = UnpackWhere(job.chunks[job.next].from);
  uint64_t end = first.offset + kStorageUnit + first.stored_bytes;
  size_t count = 1;
  for (size_t i = job.next + 1; i < job.chunks.size() && count < kRunChunksMax; ++i, ++count) {
    const Where where = UnpackWhere(job.chunks[i].from);
    if (where.segment != first.segment || !ReadsOn(end, where.offset)) break;
    end = where.offset + kStorageUnit + where.stored_bytes;
    if (end - first.offset > job.run_bytes) break;
  }
  return count;
}

}  // namespace

PromoteQueue::PromoteQueue(uint64_t bytes_max, uint64_t run_bytes_max)
    : bytes_max_(bytes_max), run_bytes_max_(run_bytes_max) {}

bool PromoteQueue::Add(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency,
                       SteadyTime deadline) {
  uint64_t bytes = 0;
  for (const PromoteChunk& chunk : chunks) bytes += StoredBytes(chunk);
  if (bytes_ + bytes > bytes_max_) return false;
  auto job = std::make_shared<PromoteJob>();
  job->ns = ns;
  job->urgency = urgency;
  job->deadline = deadline;
  job->chunks.assign(chunks.begin(), chunks.end());
  job->states.assign(chunks.size(), State::kWaiting);
  job->open = chunks.size();
  job->run_bytes = std::min(kFirstRunBytes, run_bytes_max_);
  job->place = by_deadline_.insert(by_deadline_.end(), job);
  job->timed = true;
  if (urgency == Urgency::kPrefetch) {
    for (const PromoteChunk& chunk : chunks) prefetched_[chunk.ref.slot] = job.get();
  }
  bytes_ += bytes;
  waiting_ += chunks.size();
  turns_[static_cast<size_t>(urgency)].push_back(std::move(job));
  return true;
}

void PromoteQueue::TakeBack(Urgency urgency) {
  auto& turns = turns_[static_cast<size_t>(urgency)];
  const std::shared_ptr<PromoteJob> job = std::move(turns.back());
  turns.pop_back();
  waiting_ -= job->chunks.size();
  for (const PromoteChunk& chunk : job->chunks) bytes_ -= StoredBytes(chunk);
  NotPrefetched(*job, 0, job->chunks.size());
  Untime(*job);
}

void PromoteQueue::Hurry(std::span<const uint32_t> slots) {
  auto& prefetches = turns_[static_cast<size_t>(Urgency::kPrefetch)];
  for (const uint32_t slot : slots) {
    const auto found = prefetched_.find(slot);
    if (found == prefetched_.end()) continue;
    PromoteJob& job = *found->second;
    NotPrefetched(job, job.next, job.chunks.size() - job.next);
    job.urgency = Urgency::kLease;
    const auto place = std::find_if(prefetches.begin(), prefetches.end(),
                                    [&](const auto& waiting) { return waiting.get() == &job; });
    turns_[static_cast<size_t>(Urgency::kLease)].push_back(std::move(*place));
    prefetches.erase(place);
  }
}

void PromoteQueue::NotPrefetched(const PromoteJob& job, size_t first, size_t count) {
  if (job.urgency != Urgency::kPrefetch) return;
  for (size_t i = first; i < first + count; ++i) prefetched_.erase(job.chunks[i].ref.slot);
}

std::shared_ptr<PromoteRun> PromoteQueue::TakeRun() {
  for (auto& turns : turns_) {
    if (turns.empty()) continue;
    auto run = std::make_shared<PromoteRun>();
    run->job = std::move(turns.front());
    turns.pop_front();
    PromoteJob& job = *run->job;
    run->first = job.next;
    run->count = RunLength(job);
    std::fill_n(job.states.begin() + static_cast<ptrdiff_t>(run->first), run->count, State::kReading);
    NotPrefetched(job, run->first, run->count);
    job.next += run->count;
    job.run_bytes = std::min(2 * job.run_bytes, run_bytes_max_);
    waiting_ -= run->count;
    reading_ += run->count;
    if (job.next < job.chunks.size()) turns.push_back(run->job);
    runs_.push_back(run);
    return run;
  }
  return nullptr;
}

bool PromoteQueue::Settle(const PromoteRun& run, size_t i, bool readable, SteadyTime deadline,
                          std::vector<PromoteEnded>* ended) {
  PromoteJob& job = *run.job;
  State& state = job.states[run.first + i];
  if (state == State::kEnded) return false;
  const bool in_time = state == State::kReading;
  const PromoteChunk& chunk = job.chunks[run.first + i];
  ended->push_back({chunk.ref, !in_time ? End::kGone : readable ? End::kReadable : End::kLost});
  state = State::kEnded;
  --reading_;
  bytes_ -= StoredBytes(chunk);
  if (--job.open == 0) {
    Untime(job);
  } else if (readable && job.timed && deadline > job.deadline) {
    job.deadline = deadline;
    by_deadline_.splice(by_deadline_.end(), by_deadline_, job.place);
  }
  return in_time;
}

void PromoteQueue::Finish(const std::shared_ptr<PromoteRun>& run, std::vector<PromoteEnded>* ended) {
  for (size_t i = 0; i < run->count; ++i) Settle(*run, i, /*readable=*/false, SteadyTime(), ended);
  std::erase(runs_, run);
}

uint64_t PromoteQueue::EndJob(PromoteJob& job, bool reading_too, std::vector<PromoteEnded>* ended) {
  uint64_t count = 0;
  for (size_t i = 0; i < job.chunks.size(); ++i) {
    State& state = job.states[i];
    if (state == State::kWaiting) {
      ended->push_back({job.chunks[i].ref, End::kLost});
      state = State::kEnded;
      --job.open;
      --waiting_;
      bytes_ -= StoredBytes(job.chunks[i]);
      ++count;
    } else if (state == State::kReading && reading_too) {
      ended->push_back({job.chunks[i].ref, End::kLostBusy});
      state = State::kAbandoned;
      ++count;
    }
  }
  NotPrefetched(job, job.next, job.chunks.size() - job.next);
  job.next = job.chunks.size();
  if (reading_too) {
    for (const auto& run : runs_) run->abandoned |= run->job.get() == &job;
  }
  return count;
}

uint64_t PromoteQueue::Expire(SteadyTime now, std::vector<PromoteEnded>* ended) {
  uint64_t count = 0;
  bool any = false;
  for (; !by_deadline_.empty() && by_deadline_.front()->deadline <= now; any = true) {
    const std::shared_ptr<PromoteJob> job = by_deadline_.front();
    count += EndJob(*job, true, ended);
    Untime(*job);
  }
  if (any) DropTurns();
  return count;
}

uint64_t PromoteQueue::EndWaiting(std::vector<PromoteEnded>* ended) {
  uint64_t count = 0;
  for (const auto& turns : turns_) {
    for (const auto& job : turns) {
      count += EndJob(*job, false, ended);
      if (job->open == 0) Untime(*job);
    }
  }
  DropTurns();
  return count;
}

uint64_t PromoteQueue::EndAll(std::vector<PromoteEnded>* ended) { return Expire(SteadyTime::max(), ended); }

SteadyTime PromoteQueue::next_deadline() const {
  return by_deadline_.empty() ? SteadyTime::max() : by_deadline_.front()->deadline;
}

void PromoteQueue::Untime(PromoteJob& job) {
  if (!job.timed) return;
  job.timed = false;
  by_deadline_.erase(job.place);
}

void PromoteQueue::DropTurns() {
  for (auto& turns : turns_) {
    std::erase_if(turns, [](const auto& job) { return job->next == job->chunks.size(); });
  }
}

}  // namespace tpu_sync_native
