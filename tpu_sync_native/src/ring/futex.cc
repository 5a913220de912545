#include "ring/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace tpu_sync_native {

uint64_t SteadyNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerS + static_cast<uint64_t>(now.tv_nsec);
}

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t deadline_ns) {
  // FUTEX_WAIT_BITSET takes an absolute deadline on CLOCK_MONOTONIC.
  timespec deadline{};
  deadline.tv_sec = static_cast<time_t>(deadline_ns / kNsPerS);
  deadline.tv_nsec = static_cast<long>(deadline_ns % kNsPerS);
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void FutexWake(std::atomic<uint32_t>& word, int sleepers_max) {
  syscall(SYS_futex, &word, FUTEX_WAKE, sleepers_max, nullptr, nullptr, 0);
}

bool DeadlineLock::TryLock() {
  uint32_t free = 0;
  return state_.compare_exchange_strong(free, 1, std::memory_order_acquire);
}

bool DeadlineLock::LockUntil(uint64_t deadline_ns) {
  if (TryLock()) return true;
  while (state_.exchange(2, std::memory_order_acquire) != 0) {
    if (SteadyNs() >= deadline_ns) return false;
    FutexWait(state_, 2, deadline_ns);
  }
  return true;
}

void DeadlineLock::Unlock() {
  if (state_.exchange(0, std::memory_order_release) == 2) FutexWake(state_);
}

}  // namespace tpu_sync_native
