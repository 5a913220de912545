// The fake device as a copy engine sees it.
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "copy/fake_state.h"
#include "copy/layout.h"

namespace tpu_sync_native {

class FakeDevice::Hold final : public CopyHold {
 public:
  Hold(std::shared_ptr<State> state, std::vector<std::shared_ptr<fake::Buffer>> buffers)
      : state_(std::move(state)), buffers_(std::move(buffers)) {
    ++state_->held;  // under the mutex of whoever makes it
  }
  ~Hold() override {
    const std::lock_guard lock(state_->mutex);
    --state_->held;
  }
  uint64_t BufferBytes(uint64_t ordinal) const override {
    return ordinal < buffers_.size() ? buffers_[ordinal]->bytes.size() : 0;
  }
  bool Ready() const override {
    const std::lock_guard lock(state_->mutex);
    return state_->ReadyLocked(buffers_);
  }
  void OnReady(std::function<void()> ready) override {
    {
      const std::lock_guard lock(state_->mutex);
      if (!state_->ReadyLocked(buffers_)) {
        state_->fences.push_back({buffers_, std::move(ready)});
        return;
      }
    }
    ready();
  }
  const std::shared_ptr<fake::Buffer>& buffer(uint64_t ordinal) const { return buffers_[ordinal]; }

 private:
  const std::shared_ptr<State> state_;
  const std::vector<std::shared_ptr<fake::Buffer>> buffers_;
};

class FakeDevice::Backend final : public CopyBackend {
 public:
  explicit Backend(std::shared_ptr<State> state) : state_(std::move(state)) {
    const FakeDeviceOptions& options = state_->options;
    capabilities_.name = "fake";
    capabilities_.kernel = "memcpy in a queue";
    capabilities_.alignment_bytes = options.alignment_bytes;
    capabilities_.piece_bytes_max = options.piece_bytes_max;
    capabilities_.inflight_bytes_max = options.inflight_bytes_max;
    capabilities_.buffers = true;
    capabilities_.replaces_buffers = options.replaces_buffers;
    capabilities_.in_order_queue = options.in_order_queue;
  }

  const CopyCapabilities& capabilities() const override { return capabilities_; }

  bool RegisterArena(uint8_t* arena, uint64_t bytes) override {
    const std::lock_guard lock(state_->mutex);
    state_->registered.emplace_back(arena, bytes);
    return true;
  }

  void UnregisterArena(uint8_t* arena, uint64_t bytes) override {
    const std::lock_guard lock(state_->mutex);
    std::erase(state_->registered, std::pair(arena, bytes));
  }

  std::shared_ptr<CopyHold> Hold(std::span<const uint64_t> buffers) override {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopping || state_->HitLocked(state_->options.holds_refused)) return nullptr;
    std::vector<std::shared_ptr<fake::Buffer>> held;
    for (const uint64_t handle : buffers) {
      const auto found = state_->buffers.find(handle);
      if (found == state_->buffers.end()) return nullptr;
      held.push_back(found->second);
    }
    return std::make_shared<FakeDevice::Hold>(state_, std::move(held));
  }

  bool Copy(CopyDirection direction, std::span<const CopyExtent> extents, const CopyHold* of) override {
    const auto* hold = static_cast<const FakeDevice::Hold*>(of);
    if (extents.empty()) return true;
    if (hold == nullptr) return false;
    fake::Batch batch;
    std::unique_lock lock(state_->mutex);
    for (const CopyExtent& extent : extents) {
      if (state_->stopping || !CanCopy(extent, *hold)) {
        batch.ok = false;
        break;
      }
      Put(direction, extent, hold->buffer(BufferOrdinal(extent.device)), &batch);
    }
    state_->changed.wait(lock, [&] { return batch.left == 0; });
    return batch.ok;
  }

 private:
  bool CanCopy(const CopyExtent& extent, const FakeDevice::Hold& hold) const {
    const uint64_t alignment = capabilities_.alignment_bytes;
    return InBuffer(extent, hold) && state_->RegisteredLocked(extent.arena, extent.bytes) &&
           extent.device % alignment == 0 && extent.bytes % alignment == 0;
  }

  void Put(CopyDirection direction, const CopyExtent& extent, const std::shared_ptr<fake::Buffer>& buffer,
           fake::Batch* batch) {
    const bool store = direction == CopyDirection::kStore;
    fake::Operation operation;
    operation.report = {.kind = store ? FakeOpKind::kStore : FakeOpKind::kLoad, .bytes = extent.bytes};
    operation.cost_ns = state_->CopyCost(extent.bytes);
    operation.batch = batch;
    operation.run = [state = state_.get(), store, extent, buffer] {
      const bool fails = buffer->failed || state->CopyFailsLocked();
      uint8_t* const device = buffer->bytes.data() + BufferOffset(extent.device);
      const uint64_t bytes = fails ? extent.bytes / 2 : extent.bytes;
      std::copy_n(store ? device : extent.arena, bytes, store ? extent.arena : device);
      return !fails;
    };
    ++batch->left;
    state_->PutLocked(&state_->QueueOf(FakeQueue::kCopies), std::move(operation));
  }

  const std::shared_ptr<State> state_;
  CopyCapabilities capabilities_;
};

std::shared_ptr<CopyBackend> FakeDevice::backend() const { return std::make_shared<Backend>(state_); }

}  // namespace tpu_sync_native
