// The way from a runtime's thread back into the engine, which may be gone when the call comes.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

namespace tpu_sync_native {

// Shared by the engine and the callbacks it has left with holds. Thread-safe.
class FenceGate {
 public:
  explicit FenceGate(std::function<void(uint64_t)> ready) : ready_(std::move(ready)) {}
  // Tells the engine that the fence of the job of this order is done; nothing once shut.
  void Ready(uint64_t order) {
    const std::lock_guard lock(mutex_);
    if (ready_) ready_(order);
  }
  // When it returns, no call is inside and none will be. Not under a lock that the engine's side takes.
  void Shut() {
    const std::lock_guard lock(mutex_);
    ready_ = nullptr;
  }

 private:
  std::mutex mutex_;
  std::function<void(uint64_t)> ready_;
};

}  // namespace tpu_sync_native
