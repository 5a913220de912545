// Promotes that wait for their read or are being read: which run is read next, and how each chunk has ended.
//
//   WAITING -TakeRun-> READING -Settle-> ended: readable or lost
//   WAITING -deadline, medium down-> ended: lost
//   READING -deadline-> ABANDONED (lost, but a read may still write into its slot) -Settle-> ended: gone
//
// A run is what one read takes: neighbours of one job in one segment. The first runs of a job are short, so
// that its first chunks are ready early; each next one is twice as long, up to run_bytes_max. Jobs take
// turns, those of leases before those of prefetches. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "store/lower_tier.h"
#include "store/store.h"

namespace tpu_sync_native {

using SteadyTime = std::chrono::steady_clock::time_point;

struct PromoteJob;
using PromoteJobs = std::list<std::shared_ptr<PromoteJob>>;

struct PromoteJob {
  enum class State : uint8_t { kWaiting, kReading, kAbandoned, kEnded };

  uint32_t ns = 0;
  Urgency urgency = Urgency::kLease;
  SteadyTime deadline;
  std::vector<PromoteChunk> chunks;
  std::vector<State> states;  // of each chunk
  size_t next = 0;            // the first that no run has taken
  size_t open = 0;            // chunks that have not ended
  uint64_t run_bytes = 0;     // of the next run, at most
  bool timed = false;         // stands in the list of deadlines, at `place`
  PromoteJobs::iterator place;
};

struct PromoteRun {
  std::shared_ptr<PromoteJob> job;
  size_t first = 0;
  size_t count = 0;
  bool abandoned = false;  // one of its chunks is
};

// What is to be told to the store, in this order.
struct PromoteEnded {
  SlotRef ref;
  Store::PromoteEnd end;
};

class PromoteQueue {
 public:
  PromoteQueue(uint64_t bytes_max, uint64_t run_bytes_max);

  // False: no room for so many bytes. Deadlines rise from call to call, those of Settle included.
  bool Add(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency, SteadyTime deadline);
  // Undoes the Add before, which nothing followed.
  void TakeBack(Urgency urgency);

  // A lease waits for these slots: jobs of prefetches with one of them that waits are a lease's from now on.
  void Hurry(std::span<const uint32_t> slots);

  // Null: nothing waits.
  std::shared_ptr<PromoteRun> TakeRun();
  bool has_runs() const { return waiting_ > 0; }
  // The read of chunk i of the run has ended. True: just so; false: it comes too late. A chunk that is
  // readable puts off the deadline of its job: who is slow but goes on is not overdue.
  bool Settle(const PromoteRun& run, size_t i, bool readable, SteadyTime deadline,
              std::vector<PromoteEnded>* ended);
  // All of the run has been settled, or is now, as not readable.
  void Finish(const std::shared_ptr<PromoteRun>& run, std::vector<PromoteEnded>* ended);

  // Ends what is overdue; how many chunks.
  uint64_t Expire(SteadyTime now, std::vector<PromoteEnded>* ended);
  // Ends what waits; how many chunks.
  uint64_t EndWaiting(std::vector<PromoteEnded>* ended);
  // Ends what waits and abandons what is being read.
  uint64_t EndAll(std::vector<PromoteEnded>* ended);

  // Of the job that is overdue next; max() when there is none.
  SteadyTime next_deadline() const;
  uint64_t chunks() const { return waiting_ + reading_; }
  uint64_t waiting_chunks() const { return waiting_; }
  const std::vector<std::shared_ptr<PromoteRun>>& runs() const { return runs_; }  // being read

 private:
  uint64_t EndJob(PromoteJob& job, bool reading_too, std::vector<PromoteEnded>* ended);
  void NotPrefetched(const PromoteJob& job, size_t first, size_t count);
  void Untime(PromoteJob& job);  // may end the job's life
  void DropTurns();              // of jobs without chunks that wait

  const uint64_t bytes_max_;
  const uint64_t run_bytes_max_;
  uint64_t bytes_ = 0;                                    // of chunks that have not ended
  uint64_t waiting_ = 0;                                  // chunks
  uint64_t reading_ = 0;                                  // chunks, abandoned ones too
  std::deque<std::shared_ptr<PromoteJob>> turns_[2];      // by urgency: jobs with chunks that wait
  std::unordered_map<uint32_t, PromoteJob*> prefetched_;  // by slot: chunks that wait, of those in turns_[1]
  PromoteJobs by_deadline_;                               // jobs with chunks that may be overdue one day
  std::vector<std::shared_ptr<PromoteRun>> runs_;
};

}  // namespace tpu_sync_native
