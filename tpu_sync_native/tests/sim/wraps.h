// What the linker puts between the code under test and its threads, locks, clocks and random bytes (--wrap,
// for programs *_sim_test): calls by threads of a run go to its Schedule, all others where they always went.
// Definitions, so in one file of a program.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/futex.h"
#include "sim/schedule.h"

namespace tpu_sync_native::testing {

// A thread of a run, from its first turn to its last.
class ScheduledState : public std::thread::_State {
 public:
  ScheduledState(Schedule& schedule, Schedule::Thread* thread, std::unique_ptr<std::thread::_State> state)
      : schedule_(schedule), thread_(thread), state_(std::move(state)) {}
  void _M_run() override {
    schedule_.Begin(thread_);
    state_->_M_run();
    state_.reset();  // what it holds ends in the run, too
    schedule_.End();
  }

 private:
  Schedule& schedule_;
  Schedule::Thread* const thread_;
  std::unique_ptr<std::thread::_State> state_;
};

inline uint64_t NsOf(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * kNsPerS + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace tpu_sync_native::testing

// The names are the linker's: a symbol with __wrap_ or __real_ before it.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wreserved-identifier"

#define KVTIER_START _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE
#define KVTIER_CV_WAIT _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE
#define KVTIER_CV_ONE _ZNSt18condition_variable10notify_oneEv
#define KVTIER_CV_ALL _ZNSt18condition_variable10notify_allEv
#define KVTIER_STEADY_NOW _ZNSt6chrono3_V212steady_clock3nowEv
#define KVTIER_SYSTEM_NOW _ZNSt6chrono3_V212system_clock3nowEv
#define KVTIER_JOIN_NAMES(a, b) a##b
#define KVTIER_WRAP(name) KVTIER_JOIN_NAMES(__wrap_, name)
#define KVTIER_REAL(name) KVTIER_JOIN_NAMES(__real_, name)

extern "C" {

using tpu_sync_native::testing::NsOf;
using tpu_sync_native::testing::Schedule;

// ---- locks ----

int KVTIER_REAL(pthread_mutex_lock)(pthread_mutex_t*);
int KVTIER_REAL(pthread_mutex_unlock)(pthread_mutex_t*);
int KVTIER_REAL(pthread_rwlock_rdlock)(pthread_rwlock_t*);
int KVTIER_REAL(pthread_rwlock_wrlock)(pthread_rwlock_t*);
int KVTIER_REAL(pthread_rwlock_unlock)(pthread_rwlock_t*);

int KVTIER_WRAP(pthread_mutex_lock)(pthread_mutex_t* mutex) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(pthread_mutex_lock)(mutex);
  run->Lock(mutex, [&] { return pthread_mutex_trylock(mutex); });
  return 0;
}
int KVTIER_WRAP(pthread_mutex_unlock)(pthread_mutex_t* mutex) {
  const int result = KVTIER_REAL(pthread_mutex_unlock)(mutex);
  if (Schedule* const run = Schedule::Mine()) run->Wake(mutex, true);
  return result;
}
int KVTIER_WRAP(pthread_rwlock_rdlock)(pthread_rwlock_t* lock) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(pthread_rwlock_rdlock)(lock);
  run->Lock(lock, [&] { return pthread_rwlock_tryrdlock(lock); });
  return 0;
}
int KVTIER_WRAP(pthread_rwlock_wrlock)(pthread_rwlock_t* lock) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(pthread_rwlock_wrlock)(lock);
  run->Lock(lock, [&] { return pthread_rwlock_trywrlock(lock); });
  return 0;
}
int KVTIER_WRAP(pthread_rwlock_unlock)(pthread_rwlock_t* lock) {
  const int result = KVTIER_REAL(pthread_rwlock_unlock)(lock);
  if (Schedule* const run = Schedule::Mine()) run->Wake(lock, true);
  return result;
}

// ---- waiting ----

int KVTIER_REAL(pthread_cond_clockwait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
int KVTIER_REAL(pthread_cond_timedwait)(pthread_cond_t*, pthread_mutex_t*, const timespec*);
int KVTIER_REAL(nanosleep)(const timespec*, timespec*);
void KVTIER_REAL(KVTIER_CV_WAIT)(std::condition_variable*, std::unique_lock<std::mutex>*);
void KVTIER_REAL(KVTIER_CV_ONE)(std::condition_variable*);
void KVTIER_REAL(KVTIER_CV_ALL)(std::condition_variable*);

// Nobody goes on between the unlock and the wait.
static int WaitScheduled(Schedule& run, const void* condition, pthread_mutex_t* mutex, uint64_t deadline_ns) {
  KVTIER_WRAP(pthread_mutex_unlock)(mutex);
  const bool woken = run.Wait(condition, deadline_ns);
  KVTIER_WRAP(pthread_mutex_lock)(mutex);
  return woken ? 0 : ETIMEDOUT;
}
int KVTIER_WRAP(pthread_cond_clockwait)(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                        const timespec* until) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(pthread_cond_clockwait)(condition, mutex, clock, until);
  return WaitScheduled(*run, condition, mutex, NsOf(*until));
}
int KVTIER_WRAP(pthread_cond_timedwait)(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                        const timespec* until) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(pthread_cond_timedwait)(condition, mutex, until);
  return WaitScheduled(*run, condition, mutex, NsOf(*until));
}
void KVTIER_WRAP(KVTIER_CV_WAIT)(std::condition_variable* condition, std::unique_lock<std::mutex>* lock) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(KVTIER_CV_WAIT)(condition, lock);
  WaitScheduled(*run, condition->native_handle(), lock->mutex()->native_handle(), Schedule::kNever);
}
void KVTIER_WRAP(KVTIER_CV_ONE)(std::condition_variable* condition) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(KVTIER_CV_ONE)(condition);
  run->Wake(condition->native_handle(), false);
}
void KVTIER_WRAP(KVTIER_CV_ALL)(std::condition_variable* condition) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(KVTIER_CV_ALL)(condition);
  run->Wake(condition->native_handle(), true);
}
int KVTIER_WRAP(nanosleep)(const timespec* time, timespec* left) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(nanosleep)(time, left);
  run->Sleep(NsOf(*time));
  return 0;
}
int KVTIER_REAL(sched_yield)();
int KVTIER_WRAP(sched_yield)() {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(sched_yield)();
  run->Yield();
  return 0;
}
// Futexes, those inside std::atomic among them. A wait's time is relative, that of a bit set is not.
long KVTIER_REAL(syscall)(long, ...);
long KVTIER_WRAP(syscall)(long number, ...) {
  long arguments[6];
  va_list list;
  va_start(list, number);
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  const auto [word, operation, value, until, more, bits] = arguments;
  Schedule* const run = Schedule::Mine();
  if (run == nullptr || number != SYS_futex)
    return KVTIER_REAL(syscall)(number, word, operation, value, until, more, bits);
  const long kind = operation & FUTEX_CMD_MASK;
  if (kind == FUTEX_WAKE) {
    run->Wake(Schedule::kFutex, true);
    return 1;
  }
  if (kind != FUTEX_WAIT && kind != FUTEX_WAIT_BITSET) std::abort();
  if (reinterpret_cast<const std::atomic<uint32_t>*>(word)->load() != static_cast<uint32_t>(value)) {
    errno = EAGAIN;
    return -1;
  }
  uint64_t deadline_ns = Schedule::kNever;
  if (until != 0) {
    deadline_ns = NsOf(*reinterpret_cast<const timespec*>(until));
    if (kind == FUTEX_WAIT) deadline_ns += run->now_ns();
  }
  if (run->Wait(Schedule::kFutex, deadline_ns)) return 0;
  errno = ETIMEDOUT;
  return -1;
}

// ---- threads ----

void KVTIER_REAL(KVTIER_START)(std::thread*, std::unique_ptr<std::thread::_State>, void (*)());
void KVTIER_REAL(_ZNSt6thread4joinEv)(std::thread*);

void KVTIER_WRAP(KVTIER_START)(std::thread* thread, std::unique_ptr<std::thread::_State> state,
                               void (*depend)()) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(KVTIER_START)(thread, std::move(state), depend);
  Schedule::Thread* const scheduled = run->Add();
  KVTIER_REAL(KVTIER_START)
  (thread, std::make_unique<tpu_sync_native::testing::ScheduledState>(*run, scheduled, std::move(state)),
   depend);
  scheduled->handle = thread->native_handle();
}
void KVTIER_WRAP(_ZNSt6thread4joinEv)(std::thread* thread) {
  if (Schedule* const run = Schedule::Mine()) run->Join(thread->native_handle());
  KVTIER_REAL(_ZNSt6thread4joinEv)(thread);
}

// ---- clocks and chance ----

int KVTIER_REAL(clock_gettime)(clockid_t, timespec*);
std::chrono::steady_clock::time_point KVTIER_REAL(KVTIER_STEADY_NOW)();
std::chrono::system_clock::time_point KVTIER_REAL(KVTIER_SYSTEM_NOW)();
ssize_t KVTIER_REAL(getrandom)(void*, size_t, unsigned);

int KVTIER_WRAP(clock_gettime)(clockid_t clock, timespec* time) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr || clock != CLOCK_MONOTONIC) return KVTIER_REAL(clock_gettime)(clock, time);
  const uint64_t now_ns = run->now_ns();
  time->tv_sec = static_cast<time_t>(now_ns / tpu_sync_native::kNsPerS);
  time->tv_nsec = static_cast<long>(now_ns % tpu_sync_native::kNsPerS);
  return 0;
}
std::chrono::steady_clock::time_point KVTIER_WRAP(KVTIER_STEADY_NOW)() {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(KVTIER_STEADY_NOW)();
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(run->now_ns()));
}
// The same as the steady one: waits on either have their deadlines in one order.
std::chrono::system_clock::time_point KVTIER_WRAP(KVTIER_SYSTEM_NOW)() {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(KVTIER_SYSTEM_NOW)();
  return std::chrono::system_clock::time_point(std::chrono::nanoseconds(run->now_ns()));
}
ssize_t KVTIER_WRAP(getrandom)(void* bytes, size_t count, unsigned flags) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(getrandom)(bytes, count, flags);
  for (size_t i = 0; i < count; ++i) static_cast<uint8_t*>(bytes)[i] = static_cast<uint8_t>(run->Draw(256));
  return static_cast<ssize_t>(count);
}

#if defined(__SANITIZE_THREAD__)
// ---- atomic operations, which are calls where ThreadSanitizer looks at them ----

#define KVTIER_ATOMICS(bits, type)                                                                          \
  type KVTIER_REAL(__tsan_atomic##bits##_load)(const volatile type*, int);                                  \
  type KVTIER_WRAP(__tsan_atomic##bits##_load)(const volatile type* at, int order) {                        \
    Schedule::AtomicPoint();                                                                                \
    return KVTIER_REAL(__tsan_atomic##bits##_load)(at, order);                                              \
  }                                                                                                         \
  void KVTIER_REAL(__tsan_atomic##bits##_store)(volatile type*, type, int);                                 \
  void KVTIER_WRAP(__tsan_atomic##bits##_store)(volatile type * at, type value, int order) {                \
    Schedule::AtomicPoint();                                                                                \
    KVTIER_REAL(__tsan_atomic##bits##_store)(at, value, order);                                             \
  }                                                                                                         \
  int KVTIER_REAL(__tsan_atomic##bits##_compare_exchange_strong)(volatile type*, type*, type, int, int);    \
  int KVTIER_WRAP(__tsan_atomic##bits##_compare_exchange_strong)(volatile type * at, type * old, type next, \
                                                                 int order, int failed) {                   \
    Schedule::AtomicPoint();                                                                                \
    return KVTIER_REAL(__tsan_atomic##bits##_compare_exchange_strong)(at, old, next, order, failed);        \
  }                                                                                                         \
  KVTIER_ATOMIC_CHANGE(__tsan_atomic##bits##_exchange, type)                                                \
  KVTIER_ATOMIC_CHANGE(__tsan_atomic##bits##_fetch_add, type)                                               \
  KVTIER_ATOMIC_CHANGE(__tsan_atomic##bits##_fetch_sub, type)
#define KVTIER_ATOMIC_CHANGE(name, type)                              \
  type KVTIER_REAL(name)(volatile type*, type, int);                  \
  type KVTIER_WRAP(name)(volatile type * at, type value, int order) { \
    Schedule::AtomicPoint();                                          \
    return KVTIER_REAL(name)(at, value, order);                       \
  }
KVTIER_ATOMICS(8, char)
KVTIER_ATOMICS(16, short)
KVTIER_ATOMICS(32, int)
KVTIER_ATOMICS(64, long)
#endif

}  // extern "C"

#pragma GCC diagnostic pop
