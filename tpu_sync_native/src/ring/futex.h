// Sleeping on a word of shared memory, and the steady clock that bounds it.
#pragma once

#include <atomic>
#include <cstdint>

namespace tpu_sync_native {

inline constexpr uint64_t kNsPerUs = 1'000;
inline constexpr uint64_t kNsPerMs = 1'000'000;
inline constexpr uint64_t kNsPerS = 1'000'000'000;

// CLOCK_MONOTONIC, nanoseconds.
uint64_t SteadyNs();

// Sleeps while `word` holds `expected`, at most until `deadline_ns`. Returns for any reason: the caller looks
// again. Works between processes.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, uint64_t deadline_ns);
void FutexWake(std::atomic<uint32_t>& word, int sleepers_max = 1);

// One spin iteration's rest.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A lock whose wait ends at a deadline: no caller waits for another's call longer than for its own.
class DeadlineLock {
 public:
  bool TryLock();
  bool LockUntil(uint64_t deadline_ns);
  void Unlock();

 private:
  std::atomic<uint32_t> state_{0};  // 0 free, 1 held, 2 held and somebody may sleep
};

}  // namespace tpu_sync_native
