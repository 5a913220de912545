#include "ring/futex.h"

namespace tpu_sync_native {

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
