// Threads that may block in the medium, and the patience of those who wait for them.
//
// A task runs on one of `threads` threads, the more urgent class first. A waiter gives up at its deadline;
// the task then runs on (or hangs on) and its result is dropped, so a task owns what it touches: it captures
// shared pointers and never borrowed memory, except arena slots that stay pinned until it has ended. A thread
// that is stuck for longer than `stuck_ms`, while nobody else gets an answer either, opens the breaker:
// Submit refuses at once (kDown), so that nobody queues behind a hung mount; it closes when the stuck thread
// comes back, or a probe succeeds. Where others get theirs, the medium is busy rather than hung, and a call
// has `alone_ms`. Stop never joins a stuck thread: it is detached and keeps its own state alive.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fs/file_system.h"

namespace tpu_sync_native {

enum class IoClass : uint8_t { kLoad = 0, kControl = 1, kPrefetch = 2, kStore = 3 };  // most urgent first
inline constexpr int kIoClasses = 4;

enum class Submitted : uint8_t { kYes = 0, kFull = 1, kDown = 2 };

struct IoPoolOptions {
  int threads = 8;
  uint32_t queue_max = 4096;       // tasks waiting, per class
  uint64_t stuck_ms = 5000;        // one task this long, and no answer (Report) to any: the medium hangs
  uint64_t alone_ms = 0;           // one task this long, whatever others get: it hangs; at least stuck_ms
  uint32_t failures_to_open = 16;  // consecutive failed tasks (Report) that open the breaker
  uint64_t probe_ms = 1000;        // how often an open breaker lets one task through
  // If given, an open breaker refuses every Submit and runs this instead, once per probe_ms: a pool that
  // nobody submits to while it is down (its callers stop at their own switch) closes by itself all the same.
  std::function<IoError()> probe;
};

class IoPool {
 public:
  explicit IoPool(const IoPoolOptions& options);
  ~IoPool();  // Stop(0)

  // Thread-safe. The task is called once on a pool thread, or (after Stop) dropped.
  Submitted Submit(IoClass io_class, std::function<void()> task);
  // What a task found: EIO, timeouts and the like count towards the breaker; a success closes it. A missing
  // file is neither.
  void Report(const IoError& error);
  // By a task of any pool, between two of its calls into the medium: the thread is not stuck, its stuck_ms
  // begin anew. Long tasks (scans, polls) call it; elsewhere it does nothing.
  static void Progress();
  bool down() const;  // one load; the breaker is open
  std::string down_reason() const;
  uint64_t queued(IoClass io_class) const;
  struct Counters {
    uint64_t tasks, refused_full, refused_down, stuck_threads, openings;  // stuck_threads: now
  };
  Counters counters() const;
  // Drops what is queued and waits this long for what runs; true when all threads ended.
  bool Stop(uint64_t wait_ms);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;  // shared with the threads, which may outlive the pool
};

}  // namespace tpu_sync_native
