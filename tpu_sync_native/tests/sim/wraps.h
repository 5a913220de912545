// What the linker puts between the code under test and its threads, locks, clocks and random bytes (--wrap,
// for programs *_sim_test): calls by threads of a run go to its Schedule, all others where they always went.
// Definitions, so in one file of a program.
#pragma once

#include <sys/random.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
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
#define KVTIER_FUTEX_WAIT _ZN15tpu_sync_native9FutexWaitERKSt6atomicIjEjm
#define KVTIER_FUTEX_WAKE _ZN15tpu_sync_native9FutexWakeERKSt6atomicIjEi
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
void KVTIER_REAL(KVTIER_FUTEX_WAIT)(const std::atomic<uint32_t>*, uint32_t, uint64_t);
void KVTIER_REAL(KVTIER_FUTEX_WAKE)(const std::atomic<uint32_t>*, int);
void KVTIER_WRAP(KVTIER_FUTEX_WAIT)(const std::atomic<uint32_t>* word, uint32_t expected,
                                    uint64_t deadline_ns) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(KVTIER_FUTEX_WAIT)(word, expected, deadline_ns);
  if (word->load() == expected) run->Wait(Schedule::kFutex, deadline_ns);
}
void KVTIER_WRAP(KVTIER_FUTEX_WAKE)(const std::atomic<uint32_t>* word, int sleepers_max) {
  Schedule* const run = Schedule::Mine();
  if (run == nullptr) return KVTIER_REAL(KVTIER_FUTEX_WAKE)(word, sleepers_max);
  run->Wake(Schedule::kFutex, true);
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

}  // extern "C"

#pragma GCC diagnostic pop
