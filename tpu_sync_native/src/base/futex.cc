#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace tpu_sync_native {

uint64_t SteadyNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerS + static_cast<uint64_t>(now.tv_nsec);
}

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t deadline_ns) {
  // FUTEX_WAIT_BITSET takes an absolute deadline on CLOCK_MONOTONIC.
  timespec deadline{};
  deadline.tv_sec = static_cast<time_t>(deadline_ns / kNsPerS);
  deadline.tv_nsec = static_cast<long>(deadline_ns % kNsPerS);
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void FutexWake(const std::atomic<uint32_t>& word, int sleepers_max) {
  syscall(SYS_futex, &word, FUTEX_WAKE, sleepers_max, nullptr, nullptr, 0);
}

}  // namespace tpu_sync_native
