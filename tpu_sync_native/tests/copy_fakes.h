// The world of an engine test in its hands: a backend that stops before every batch, a guard with a switch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "copy/backend.h"

namespace tpu_sync_native::testing {

// The host backend behind a gate: with the gate shut, a batch waits after its bytes have moved, so that a
// test can change the world "during" a copy. Records the direction of every batch.
class GatedBackend final : public CopyBackend {
 public:
  const CopyCapabilities& capabilities() const override { return host_->capabilities(); }

  bool Copy(CopyDirection direction, std::span<const CopyExtent> extents, const CopyHold* hold) override {
    const bool moved = host_->Copy(direction, extents, hold);
    std::unique_lock lock(mutex_);
    batches_.push_back(direction);
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    return moved && !failing_;
  }

  void Shut() { Set(&open_, false); }
  void Open() { Set(&open_, true); }
  void FailFromNowOn() { Set(&failing_, true); }
  void AwaitBatches(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() >= count; });
  }
  std::vector<CopyDirection> batches() {
    const std::lock_guard lock(mutex_);
    return batches_;
  }

 private:
  void Set(bool* flag, bool value) {
    const std::lock_guard lock(mutex_);
    *flag = value;
    changed_.notify_all();
  }

  const std::shared_ptr<CopyBackend> host_ = MakeHostBackend();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  bool failing_ = false;
  std::vector<CopyDirection> batches_;
};

// Every slot is unchanged, and its chunk of chunk_bytes, but those that a test has taken away.
class SwitchedGuard final : public SlotGuard {
 public:
  explicit SwitchedGuard(uint64_t chunk_bytes = UINT64_MAX) : chunk_bytes_(chunk_bytes) {}
  bool Unchanged(uint32_t slot, uint32_t, CopyDirection) const override {
    const std::lock_guard lock(mutex_);
    return !taken_.contains(slot);
  }
  uint64_t ChunkBytes(uint32_t slot, uint32_t generation, uint64_t) const override {
    return Unchanged(slot, generation, CopyDirection::kLoad) ? chunk_bytes_ : 0;
  }
  void Take(uint32_t slot) {
    const std::lock_guard lock(mutex_);
    taken_.insert(slot);
  }

 private:
  mutable std::mutex mutex_;
  std::set<uint32_t> taken_;
  const uint64_t chunk_bytes_;
};

}  // namespace tpu_sync_native::testing
