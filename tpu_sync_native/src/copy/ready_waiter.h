// Loads whose next chunk is still on its way from storage, and the one thread that waits for all of them.
//
// A parked job belongs to the waiter: it is in no queue of the engine, whose threads copy other jobs
// meanwhile. It goes back (resume) when its next bytes are ready, or lost: lost by the guard's word, because
// the job's time for it is over, because the guard says that nobody answers any more, or because the waiter
// stops.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "copy/job.h"
#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native {

// Thread-safe.
class ReadyWaiter {
 public:
  using Jobs = std::vector<std::shared_ptr<CopyJob>>;
  // `resume` is called on the waiter's thread, with none of its locks held.
  ReadyWaiter(std::shared_ptr<const SlotGuard> guard, std::function<void(Jobs)> resume)
      : guard_(std::move(guard)), resume_(std::move(resume)) {}
  ~ReadyWaiter() { Stop(); }

  // Starts the thread unless it runs; without one, nothing can be parked.
  void Start();
  // Takes the job until it is resumed. False, and nothing taken, before Start and after Stop.
  bool Park(std::shared_ptr<CopyJob> job);
  // When this returns the waiter does not look at the job any more. It is resumed all the same if that had
  // begun.
  void Withdraw(const std::shared_ptr<CopyJob>& job);
  // Resumes every job, with what is pending lost, and joins the thread. Idempotent.
  void Stop();

 private:
  void Run();
  // Takes out what can go on; lowers *wake_ns to the earliest deadline of the others.
  Jobs TakeReadyLocked(uint64_t now_ns, uint64_t* wake_ns);

  const std::shared_ptr<const SlotGuard> guard_;
  const std::function<void(Jobs)> resume_;
  std::mutex mutex_;
  std::condition_variable changed_;  // a job was parked, or stopping
  Jobs parked_;
  bool running_ = false;
  bool stopping_ = false;
  std::thread thread_;  // changed by Start under the mutex; joined by the first Stop
};

}  // namespace tpu_sync_native
