#include "fs/io_pool.h"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

namespace tpu_sync_native {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// What speaks against the medium. Missing, full, too big, there already: answers of a medium that works.
bool SpeaksAgainstMedium(const IoError& error) {
  if (error.ok() || error.code == IoError::kShort || error.not_found() || error.no_space()) return false;
  switch (error.code) {
    case EEXIST:
    case ENOTEMPTY:
    case EFBIG:
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ECANCELED:
    case EMFILE:  // ours, not the medium's
    case ENFILE:
    case ENOMEM:
      return false;
    default:
      return true;
  }
}

struct Task {
  std::function<void()> run;
  bool probe = false;
};

// One thread of the pool. All fields are guarded by the pool's mutex, `failed` is the thread's own.
struct Worker {
  std::thread thread;
  Clock::time_point began;
  bool running = false;
  bool stuck = false;   // the task it runs took longer than stuck_ms; counted once
  bool probe = false;   // the task it runs was let through an open breaker
  bool ended = false;   // leaves without touching the pool again
  bool failed = false;  // its task reported an error of the medium
};

thread_local Worker* this_worker = nullptr;
thread_local const void* this_pool = nullptr;

}  // namespace

struct IoPool::Impl {
  explicit Impl(const IoPoolOptions& wanted) : options(wanted) {
    options.threads = std::max(options.threads, 1);
    options.alone_ms = std::max(options.alone_ms, options.stuck_ms);
  }

  IoPoolOptions options;
  std::atomic<bool> down{false};

  mutable std::mutex mutex;
  std::condition_variable work;     // queued, or time to end
  std::condition_variable watch;    // the watchman's: only Stop wakes him
  std::condition_variable endings;  // a thread ended
  std::array<std::deque<Task>, kIoClasses> queues;
  std::list<Worker> workers;  // stable addresses
  std::thread watchman;
  bool watchman_ended = false;
  bool stopping = false;
  std::string reason;
  uint32_t failures = 0;       // consecutive
  Clock::time_point answered;  // when the medium answered anybody last
  Clock::time_point next_probe;
  int probes = 0;  // let through and neither finished nor known to hang
  int stuck = 0;   // of the workers
  Counters counters{};

  int HealthyLocked() const { return static_cast<int>(workers.size()) - stuck; }

  void OpenLocked(std::string why) {
    if (down.load(std::memory_order_relaxed)) return;
    reason = std::move(why);
    next_probe = Clock::now() + milliseconds(options.probe_ms);
    ++counters.openings;
    down.store(true, std::memory_order_release);
  }

  void CloseLocked(const std::shared_ptr<Impl>& self) {
    failures = 0;
    if (!down.load(std::memory_order_relaxed)) return;
    reason.clear();
    down.store(false, std::memory_order_release);
    // Threads that still hang are made good for, so that the pool is as wide as before.
    while (HealthyLocked() < options.threads && AddWorkerLocked(self)) {
    }
  }

  // At most as many again as there were, however many hang. False: no more.
  bool AddWorkerLocked(const std::shared_ptr<Impl>& self) {
    if (stopping || workers.size() >= 2 * static_cast<size_t>(options.threads)) return false;
    Worker& worker = workers.emplace_back();
    try {
      worker.thread = std::thread([self, &worker] { self->Run(self, worker); });
    } catch (...) {  // no more threads in this process
      workers.pop_back();
      return false;
    }
    return true;
  }

  void Report(const std::shared_ptr<Impl>& self, const IoError& error) {
    const bool bad = SpeaksAgainstMedium(error);
    if (!bad && !error.ok()) return;
    if (bad && this_worker != nullptr && this_pool == this) this_worker->failed = true;
    const std::lock_guard lock(mutex);
    if (!bad) {
      answered = Clock::now();
      CloseLocked(self);
    } else if (++failures >= options.failures_to_open) {
      OpenLocked(std::to_string(failures) + " calls in a row failed, the last with " + error.text());
    }
  }

  bool QueuedLocked() const {
    return std::any_of(queues.begin(), queues.end(), [](const auto& queue) { return !queue.empty(); });
  }

  void Run(const std::shared_ptr<Impl>& self, Worker& worker) {
    this_worker = &worker;
    this_pool = this;
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stopping || QueuedLocked() || HealthyLocked() > options.threads; });
      if (stopping || HealthyLocked() > options.threads) break;
      Task task;
      for (auto& queue : queues) {
        if (queue.empty()) continue;
        task = std::move(queue.front());
        queue.pop_front();
        break;
      }
      worker.running = true;
      worker.probe = task.probe;
      worker.failed = false;
      worker.began = Clock::now();
      ++counters.tasks;
      lock.unlock();
      try {
        task.run();
      } catch (const abi::__forced_unwind&) {
        throw;         // an interpreter that ends takes its threads away so; to swallow it would abort
      } catch (...) {  // tasks do not throw; one that does is not worth the daemon
      }
      task.run = nullptr;  // may run destructors: not under the mutex
      lock.lock();
      worker.running = false;
      if (worker.probe && !worker.stuck) --probes;
      if (worker.stuck) {
        worker.stuck = false;
        --stuck;
        if (!worker.failed) CloseLocked(self);
      }
    }
    if (stopping) {
      worker.ended = true;  // Stop joins or detaches
      endings.notify_all();
      return;
    }
    // One too many: others were made while this one hung. Nobody waits for it.
    worker.thread.detach();
    workers.remove_if([&](const Worker& other) { return &other == &worker; });
  }

  // Whether a probe may go now: one at a time, and only if a thread is left (or can be made) to run it.
  bool TakeProbeLocked(const std::shared_ptr<Impl>& self, Clock::time_point now) {
    if (now < next_probe || probes > 0) return false;
    if (HealthyLocked() <= 0 && !AddWorkerLocked(self)) return false;
    next_probe = now + milliseconds(options.probe_ms);
    ++probes;
    return true;
  }

  // When this worker's task counts as stuck, as things are now.
  Clock::time_point StuckAtLocked(const Worker& worker) const {
    const Clock::time_point silent = std::max(worker.began, answered) + milliseconds(options.stuck_ms);
    return std::min(silent, worker.began + milliseconds(options.alone_ms));
  }

  // Sleeps until the task that runs longest would count as stuck; one that begins later is due later. While
  // the breaker is open, also until the next probe.
  void Watch(const std::shared_ptr<Impl>& self) {
    std::unique_lock lock(mutex);
    const auto patience = milliseconds(options.stuck_ms);
    const auto probe_pause = milliseconds(options.probe_ms);
    while (!stopping) {
      const Clock::time_point now = Clock::now();
      Clock::time_point next = now + (options.probe ? std::min(patience, probe_pause) : patience);
      for (Worker& worker : workers) {
        if (!worker.running || worker.stuck) continue;
        if (const Clock::time_point due = StuckAtLocked(worker); due > now) {
          next = std::min(next, due);
          continue;
        }
        worker.stuck = true;
        ++stuck;
        if (worker.probe) --probes;
        const auto took = std::chrono::duration_cast<milliseconds>(now - worker.began);
        OpenLocked("a call into the storage medium has not returned for " + std::to_string(took.count()) +
                   " ms");
      }
      if (options.probe && down.load(std::memory_order_relaxed) && TakeProbeLocked(self, now)) {
        queues[0].push_front({[self] { self->Report(self, self->options.probe()); }, true});
        work.notify_one();
      }
      watch.wait_until(lock, next);
    }
    watchman_ended = true;
    endings.notify_all();
  }
};

IoPool::IoPool(const IoPoolOptions& options) : impl_(std::make_shared<Impl>(options)) {
  const std::lock_guard lock(impl_->mutex);
  for (int i = 0; i < impl_->options.threads; ++i) impl_->AddWorkerLocked(impl_);
  impl_->watchman = std::thread([impl = impl_] { impl->Watch(impl); });
}

IoPool::~IoPool() { Stop(0); }

Submitted IoPool::Submit(IoClass io_class, std::function<void()> task) {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.mutex);
  bool probe = false;
  if (impl.stopping) {
    ++impl.counters.refused_down;
    return Submitted::kDown;
  }
  auto& queue = impl.queues[static_cast<size_t>(io_class)];
  const bool full = queue.size() >= impl.options.queue_max;
  if (impl.down.load(std::memory_order_relaxed)) {
    probe = !full && !impl.options.probe && impl.TakeProbeLocked(impl_, Clock::now());
    if (!probe) {
      ++impl.counters.refused_down;
      return Submitted::kDown;
    }
  }
  if (full) {
    ++impl.counters.refused_full;
    return Submitted::kFull;
  }
  if (probe) {
    queue.push_front({std::move(task), true});  // what queued before the breaker opened can wait
  } else {
    queue.push_back({std::move(task), false});
  }
  impl.work.notify_one();
  return Submitted::kYes;
}

void IoPool::Progress() {
  if (this_worker == nullptr) return;
  auto* impl = static_cast<Impl*>(const_cast<void*>(this_pool));
  const std::lock_guard lock(impl->mutex);
  this_worker->began = Clock::now();
  if (!this_worker->stuck) return;
  this_worker->stuck = false;  // it came back; the breaker closes with the next success
  this_worker->probe = false;  // no longer counted as one since it hung
  --impl->stuck;
}

void IoPool::Report(const IoError& error) { impl_->Report(impl_, error); }

bool IoPool::down() const { return impl_->down.load(std::memory_order_acquire); }

std::string IoPool::down_reason() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->reason;
}

uint64_t IoPool::queued(IoClass io_class) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->queues[static_cast<size_t>(io_class)].size();
}

IoPool::Counters IoPool::counters() const {
  const std::lock_guard lock(impl_->mutex);
  Counters counters = impl_->counters;
  counters.stuck_threads = static_cast<uint64_t>(impl_->stuck);
  return counters;
}

bool IoPool::Stop(uint64_t wait_ms) {
  Impl& impl = *impl_;
  std::array<std::deque<Task>, kIoClasses> dropped;  // destroyed without the mutex
  std::vector<std::thread> finished;
  bool all = true;
  {
    std::unique_lock lock(impl.mutex);
    impl.stopping = true;
    dropped.swap(impl.queues);
    impl.work.notify_all();
    impl.watch.notify_all();
    const auto ended = [&] {
      return impl.watchman_ended && std::all_of(impl.workers.begin(), impl.workers.end(),
                                                [](const Worker& worker) { return worker.ended; });
    };
    all = impl.endings.wait_for(lock, milliseconds(wait_ms), ended);
    // Whoever has not ended yet is left behind; it holds `impl` itself.
    const auto take = [&](std::thread& thread, bool has_ended) {
      if (!thread.joinable()) return;
      if (has_ended) {
        finished.push_back(std::move(thread));
      } else {
        thread.detach();
      }
    };
    take(impl.watchman, impl.watchman_ended);
    for (Worker& worker : impl.workers) take(worker.thread, worker.ended);
  }
  for (std::thread& thread : finished) thread.join();
  return all;
}

}  // namespace tpu_sync_native
