// What is to be copied, and which piece may be taken next.
//
// A job is in one place at a time: `fenced` until what its buffers wait for is done, then in the queue of its
// direction, and with the waiter while its next chunk is on its way from storage. Loads go before stores. On
// a device that replaces buffers, loads are taken while a load window is open only.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "copy/backend.h"
#include "copy/job.h"
#include "copy/ready_waiter.h"

namespace tpu_sync_native {

struct JobPiece {
  std::shared_ptr<CopyJob> job;
  std::shared_ptr<CopyHold> hold;  // what to copy it with; null where the backend has no buffers
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t window = 0;  // the load window it was taken in; 0: none
};

// Guarded by the engine's mutex; loads_await_window alone may be asked without it.
class JobQueues {
 public:
  struct Options {
    bool loads_need_window = false;
    uint64_t inflight_bytes_max = 0;  // 0: no limit
    uint64_t ready_deadline_ns = 0;   // how long a job waits
    const SlotGuard* guard = nullptr;
  };
  JobQueues(const Options& options, ReadyWaiter* waiter) : options_(options), waiter_(waiter) {}

  // `first`: into the queue of the loads.
  void Add(std::shared_ptr<CopyJob> job, bool first);
  void AddFenced(std::shared_ptr<CopyJob> job);
  // The fence of the job of this order is done. Nothing when the job is not fenced (any more).
  void Unfence(uint64_t order);
  // Back from the waiter.
  void Resume(ReadyWaiter::Jobs jobs);

  // Takes the next piece. False when there is none now.
  bool Next(JobPiece* piece);
  // After its copy.
  void Landed(const JobPiece& piece);
  // Whether it is worth waking another thread.
  bool empty() const { return stores_.empty() && !LoadsGo(); }
  // Nothing is queued or fenced; pieces may be under way.
  bool drained() const { return stores_.empty() && loads_.empty() && fenced_.empty(); }
  uint64_t waits() const { return waits_; }  // jobs given to the waiter

  // ---- what waits too long; of the steady clock ----
  // UINT64_MAX when nothing waits.
  uint64_t NextDeadline() const;
  // Takes out, with what was not copied lost, who has waited too long (or everybody who waits).
  ReadyWaiter::Jobs TakeExpired(uint64_t now_ns);
  ReadyWaiter::Jobs TakeAllWaiting() { return TakeExpired(UINT64_MAX); }
  // And who is queued besides.
  ReadyWaiter::Jobs TakeAll();

  // ---- load windows ----
  bool loads_await_window() const { return options_.loads_need_window && loads_queued_.load() != 0; }
  bool window_open() const { return window_hold_ != nullptr; }
  // A window found that the device does not answer, and nothing has landed since: another one would only
  // wait.
  bool hung() const { return hung_ && inflight_bytes_ != 0; }
  // After the time one piece is taken, when none was before it.
  void OpenWindow(std::shared_ptr<CopyHold> hold, uint64_t deadline_ns);
  // No further piece is taken. Returns the hold, for its release outside the mutex.
  std::shared_ptr<CopyHold> CloseWindow();
  bool window_idle() const { return loads_.empty() && underway_.empty(); }
  bool window_landed() const { return underway_.empty(); }
  uint64_t window_pieces() const { return window_pieces_; }
  // Gives up the jobs with pieces of this window under way: whatever lands now counts for nothing.
  void LoseUnderWay();

 private:
  bool LoadsGo() const;
  void InsertByOrder(std::shared_ptr<CopyJob> job);
  void CountLoads() { loads_queued_.store(loads_.size()); }

  const Options options_;
  ReadyWaiter* const waiter_;  // its lock is taken after the engine's mutex
  std::deque<std::shared_ptr<CopyJob>> loads_;
  std::deque<std::shared_ptr<CopyJob>> stores_;
  ReadyWaiter::Jobs fenced_;
  std::atomic<size_t> loads_queued_{0};
  uint64_t waits_ = 0;
  uint64_t inflight_bytes_ = 0;

  bool hung_ = false;
  std::shared_ptr<CopyHold> window_hold_;
  uint64_t window_deadline_ns_ = 0;
  uint64_t window_ = 0;                             // number of the latest
  uint64_t window_pieces_ = 0;                      // taken in it
  std::vector<std::shared_ptr<CopyJob>> underway_;  // one entry per piece of it that has not landed
};

}  // namespace tpu_sync_native
