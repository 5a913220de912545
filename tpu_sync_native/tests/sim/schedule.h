// A scheduler that the seed decides: of all threads of a run exactly one goes on at a time, and where it
// waits, or might have been preempted, the seed says who is next. Time is a number: it moves when everybody
// waits, to the earliest deadline, so an hour costs nothing and the same seed is the same run.
//
// The code under test is what it is: threads, mutexes, condition variables, clocks and random bytes are
// taken over by the linker (wraps.h, and --wrap in CMakeLists.txt), for threads of a run alone.
//
//   Schedule schedule(seed);   the thread that makes it is the run's first; each std::thread made is another
//   schedule.Sleep(ns);        the others go on meanwhile
//   schedule.Jump(ns);         a clock that jumps: nobody has gone on meanwhile
//
// Threads are switched where they lock, wait, end or call Yield; with Atomics::kToo before every atomic
// operation as well, where ThreadSanitizer makes those calls (and nowhere else).
#pragma once

#include <pthread.h>
#include <semaphore.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/mix.h"
#include "check.h"

namespace tpu_sync_native::testing {

class Schedule {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;
  // All who sleep on a futex: a word may be mapped twice, and waking more than asked is allowed.
  static constexpr const char* kFutex = "futex";

  struct Thread {
    Thread() { sem_init(&baton, 0, 0); }
    uint64_t id = 0;
    sem_t baton;
    bool waits = false, timed_out = false, done = false;
    const void* on = nullptr;
    uint64_t deadline_ns = kNever;
    uint64_t rank = 0;
    pthread_t handle{};
  };

  enum class Atomics { kNot, kToo };

  explicit Schedule(uint64_t seed, Atomics atomics = Atomics::kNot)
      : random_(seed), now_ns_(1'000'000 * kNsPerSecond), atomics_(atomics == Atomics::kToo) {
    CHECK(mine_ == nullptr && running_ == nullptr);
    constexpr uint32_t kOneOf[] = {0, 2, 8, 64};
    preempts_ = kOneOf[Draw(4)];
    ranked_ = Draw(2) == 0;
    if (ranked_) preempts_ *= 8;
    running_ = this;
    mine_ = Add();
  }
  ~Schedule() {
    for (int i = 0; i < 100 && alive_.size() > 1; ++i) Sleep(100 * kNsPerSecond);
    if (alive_.size() > 1) Stuck("threads are left behind");
    mine_ = nullptr;
    running_ = nullptr;
  }
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  // Of the calling thread; null: it is in no run.
  static Schedule* Mine() { return mine_ == nullptr ? nullptr : running_; }

  uint64_t Draw(uint64_t below) { return random_() % below; }
  uint64_t now_ns() { return now_ns_ += 100; }  // so that nobody waits for time in vain
  uint64_t trace() const { return trace_; }     // of who went on, in which order
  uint64_t switches() const { return switches_; }

  // Anybody may go on.
  void Yield() {
    mine_->rank = Draw(kNever);
    if (alive_.size() > 1) Next();
  }
  void Sleep(uint64_t ns) { Wait(nullptr, now_ns_ + ns); }
  void Jump(uint64_t ns) { now_ns_ += ns; }
  // The others go on until `holds`, looked at every `step_ns`; false: so much time was over first.
  bool Await(uint64_t within_ns, uint64_t step_ns, const std::function<bool()>& holds) {
    const uint64_t deadline_ns = now_ns_ + within_ns;
    while (!holds()) {
      if (now_ns_ >= deadline_ns) return false;
      Sleep(step_ns);
    }
    return true;
  }

  // With KVTIER_SIM_LOG set: what is going on, and when.
  __attribute__((format(printf, 2, 3))) void Say(const char* format, ...) const {
    if (!talks_) return;
    std::fprintf(stderr, "%12.6f [%llu] ", static_cast<double>(now_ns_ % (kNsPerSecond * 1'000'000)) / 1e9,
                 static_cast<unsigned long long>(mine_->id));
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
  }

  // ---- what the wraps call ----

  // Until it is woken: true; or the time is over.
  bool Wait(const void* on, uint64_t deadline_ns) {
    Thread& me = *mine_;
    me.waits = true;
    me.timed_out = false;
    me.on = on;
    me.deadline_ns = deadline_ns;
    ++waiting_;
    Next();
    return !me.timed_out;
  }
  void Wake(const void* on, bool all) {
    if (waiting_ == 0) return;
    std::vector<Thread*> sleepers;
    for (Thread* thread : alive_) {
      if (thread->waits && thread->on == on) sleepers.push_back(thread);
    }
    if (!all && sleepers.size() > 1) sleepers = {sleepers[Draw(sleepers.size())]};
    for (Thread* thread : sleepers) Go(*thread, false);
  }
  static void AtomicPoint() {
    if (mine_ != nullptr && running_->atomics_) running_->Point();
  }
  // Where a thread might be preempted.
  void Point() {
    if (preempts_ != 0 && Draw(preempts_) == 0) Yield();
  }
  template <typename TryLock>
  void Lock(const void* lock, const TryLock& try_lock) {
    Point();
    while (try_lock() != 0) Wait(lock, kNever);
  }
  Thread* Add() {
    if (used_ == Pool().size()) Pool().emplace_back();
    Thread* thread = &Pool()[used_];
    thread->id = used_++;
    thread->rank = Draw(kNever);
    thread->waits = thread->done = false;
    alive_.push_back(thread);
    return thread;
  }
  // The first thing that a thread does, and the last.
  void Begin(Thread* thread) {
    Take(*thread);
    mine_ = thread;
  }
  void End() {
    Thread* const me = mine_;
    mine_ = nullptr;
    me->done = true;
    std::erase(alive_, me);
    Wake(me, true);
    sem_post(&Pick()->baton);
  }
  void Join(pthread_t handle) {
    for (size_t i = used_; i-- > 0;) {
      Thread& thread = Pool()[i];
      if (&thread == mine_ || pthread_equal(thread.handle, handle) == 0) continue;
      if (!thread.done) Wait(&thread, kNever);
      return;
    }
  }

 private:
  static constexpr uint64_t kNsPerSecond = 1'000'000'000;
  static constexpr uint64_t kSwitchesMax = 20'000'000;  // a run that has so many does not end

  // Never freed: a thread that was detached may just be coming out of its last sem_post.
  static std::deque<Thread>& Pool() {
    static auto* const pool = new std::deque<Thread>;
    return *pool;
  }

  static void Take(Thread& thread) {
    while (sem_wait(&thread.baton) != 0) CHECK(errno == EINTR);
  }
  void Go(Thread& thread, bool timed_out) {
    thread.waits = false;
    thread.timed_out = timed_out;
    --waiting_;
  }
  void Next() {
    Thread& me = *mine_;
    Thread* const next = Pick();
    if (next == &me) return;
    sem_post(&next->baton);
    Take(me);
  }
  Thread* Pick() {
    if (++switches_ > kSwitchesMax) Stuck("the run does not end");
    if (waiting_ == alive_.size()) PassTime();
    Thread* const next = ranked_ ? First() : Any();
    trace_ = Mix(trace_ + next->id + 1, now_ns_ | 1);
    return next;
  }
  Thread* Any() {
    uint64_t nth = Draw(alive_.size() - waiting_);
    for (Thread* thread : alive_) {
      if (!thread->waits && nth-- == 0) return thread;
    }
    Stuck("nobody to go on");
  }
  // One that is passed over stays so for long: what takes a thread that is late in one place and in no other.
  Thread* First() {
    Thread* first = nullptr;
    for (Thread* thread : alive_) {
      if (!thread->waits && (first == nullptr || thread->rank > first->rank)) first = thread;
    }
    if (first == nullptr) Stuck("nobody to go on");
    return first;
  }
  void PassTime() {
    uint64_t next_ns = kNever;
    for (const Thread* thread : alive_) next_ns = std::min(next_ns, thread->deadline_ns);
    if (next_ns == kNever) Stuck("everybody waits for somebody");
    now_ns_ = std::max(now_ns_, next_ns);
    for (Thread* thread : alive_) {
      if (thread->deadline_ns <= now_ns_) Go(*thread, true);
    }
  }
  [[noreturn]] void Stuck(const char* what) const {
    for (const Thread* thread : alive_) {
      std::fprintf(stderr, "  thread %llu %s %p\n", static_cast<unsigned long long>(thread->id),
                   thread->waits ? "waits for" : "goes on", thread->on);
    }
    Fail(__FILE__, __LINE__, what, "");
  }

  static inline Schedule* running_ = nullptr;
  static inline thread_local Thread* mine_ = nullptr;

  std::mt19937_64 random_;
  uint64_t now_ns_;
  const bool atomics_;
  uint32_t preempts_ = 0;  // one of so many locks; 0: none
  bool ranked_ = false;    // the thread of the highest rank goes on, and ranks change; else any
  std::vector<Thread*> alive_;
  size_t used_ = 0, waiting_ = 0;
  uint64_t trace_ = 0, switches_ = 0;
  const bool talks_ = std::getenv("KVTIER_SIM_LOG") != nullptr;
};

}  // namespace tpu_sync_native::testing
