// What the copy engine is made of; shared by the files that implement its methods.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "copy/backend.h"
#include "copy/fence_gate.h"
#include "copy/job.h"
#include "copy/job_queues.h"
#include "copy/page_toucher.h"
#include "copy/ready_waiter.h"
#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native {

struct CopyEngine::Impl : std::enable_shared_from_this<CopyEngine::Impl> {
  explicit Impl(const CopyEngineOptions& with);

  const CopyEngineOptions options;
  PageToucher pages;
  ReadyWaiter waiter;  // its lock is taken after `mutex`
  // Its lock is taken before `mutex`.
  const std::shared_ptr<FenceGate> gate;
  const pid_t pid = getpid();

  std::mutex mutex;
  std::condition_variable work;            // there may be a piece to take or a deadline to keep, or stopping
  std::condition_variable finished;        // a job left `live`, a Copy ended, or all is at rest
  std::condition_variable window_changed;  // a piece was taken or has landed while a load window is open
  // Guarded by mutex:
  JobQueues queues;
  std::unordered_map<uint64_t, std::shared_ptr<CopyJob>> live;
  std::vector<CopyCompletion> done;
  LayoutList layouts;
  CopyCounters totals{};
  uint64_t enqueued = 0;
  bool stopping = false;
  int running = 0;                                  // threads that have not left Run
  bool at_rest = false;                             // none is left, and the device has let go of the arena
  std::vector<std::shared_ptr<CopyJob>> unlanded;   // given up, with a piece under way
  std::vector<std::shared_ptr<CopyJob>> abandoned;  // not begun in time, or given up: they may have holds

  std::atomic<bool> given_up{false};  // nothing more is given to the device
  std::atomic<size_t> done_count{0};  // of done, for Poll's cheap answer
  std::mutex close_mutex;             // one closer joins
  std::vector<std::thread> threads;   // changed under close_mutex; the threads' clocks are read under mutex
  uint64_t ended_cpu_ns = 0;          // of threads that have left Run; guarded by mutex

  using Lock = std::unique_lock<std::mutex>;  // of `mutex`
  // engine_threads.cc
  void Start(int count);
  void Run();
  bool AwaitPieceLocked(Lock& lock, JobPiece* piece);  // false: the thread has nothing left to do, ever
  // Lets go of the job's hold, outside the mutex, and then reports it.
  void EndLocked(Lock& lock, const std::shared_ptr<CopyJob>& job);
  void EndAllLocked(Lock& lock, const ReadyWaiter::Jobs& jobs);  // those without pieces under way
  void FinishLocked(const std::shared_ptr<CopyJob>& job);
  uint64_t ThreadsCpuNsLocked();
  // engine_end.cc
  bool Close(std::optional<double> timeout_s);
  bool AwaitRestLocked(Lock& lock, std::optional<double> timeout_s);
  void GiveUpLocked();
  void LandedLateLocked(const std::shared_ptr<CopyJob>& job);  // after the last piece of a job given up
  void LeaveLocked(Lock& lock,
                   int count);  // threads that take no more pieces; the last one turns out the light
  // copy_engine.cc
  void RequireUsable() const;
  void PrepareLocked(CopyJob* job);  // how it is cut, and its place in the order
  void RequireBuffersFit(const LayoutList& of, const CopyHold& hold) const;
};

}  // namespace tpu_sync_native
