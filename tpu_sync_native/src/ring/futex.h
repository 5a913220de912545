// How a ring's two sides rest and take turns.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"

namespace tpu_sync_native {

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
