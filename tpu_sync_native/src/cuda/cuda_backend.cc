#include "cuda/cuda_backend.h"

#include <utility>

#include "cuda/device.h"

namespace tpu_sync_native {
namespace {

// A piece that has begun is not interrupted: what is urgent waits for so much.
constexpr uint64_t kPieceBytesMax = 4ULL << 20;
constexpr uint64_t kInflightBytesMax = 64ULL << 20;

class CudaFence final : public CopyHold {
 public:
  CudaFence(std::shared_ptr<cuda::OpenDevice> device, cuda::Event event)
      : device_(std::move(device)), event_(event) {}
  ~CudaFence() override { device_->Unmark(event_); }
  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;

  uint64_t BufferBytes(uint64_t) const override { return 0; }
  bool Ready() const override { return device_->Passed(event_); }
  void OnReady(std::function<void()> ready) override { device_->CallWhenPassed(event_, std::move(ready)); }

 private:
  const std::shared_ptr<cuda::OpenDevice> device_;
  const cuda::Event event_;
};

class CudaBackend final : public CopyBackend {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : device_(std::make_shared<cuda::OpenDevice>(options.library, options.ordinal)) {
    capabilities_.name = "cuda";
    capabilities_.kernel = device_->name();
    capabilities_.piece_bytes_max = kPieceBytesMax;
    capabilities_.inflight_bytes_max = kInflightBytesMax;
    capabilities_.streams = true;
  }

  ~CudaBackend() override { Unpin(); }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  const CopyCapabilities& capabilities() const override { return capabilities_; }
  std::string last_error() const override { return device_->last_error(); }

  bool RegisterArena(uint8_t* arena, uint64_t bytes) override {
    if (bytes == 0) return true;
    const cuda::Outcome outcome = device_->Pin(arena, bytes);
    pinned_ = outcome.ok() ? arena : nullptr;
    const bool is_pinned = outcome.ok() || outcome.result == cuda::kAlreadyRegistered;
    batched_ = is_pinned && device_->batches();
    capabilities_.kernel = device_->name();
    if (is_pinned) {
      capabilities_.kernel += batched_ ? ", pinned memory, batches" : ", pinned memory";
    } else {
      capabilities_.kernel += ", through pageable memory: " + device_->Say(outcome);
    }
    return true;
  }

  void UnregisterArena(uint8_t*, uint64_t) override { Unpin(); }

  std::shared_ptr<CopyHold> Fence(uint64_t stream) override {
    const cuda::Event event = device_->Mark(reinterpret_cast<cuda::Stream>(stream));
    return event == nullptr ? nullptr : std::make_shared<CudaFence>(device_, event);
  }

  bool Copy(CopyDirection direction, std::span<const CopyExtent> extents, const CopyHold*) override {
    return device_->Copy(direction, extents, batched_);
  }

 private:
  void Unpin() {
    if (pinned_ != nullptr) device_->Unpin(std::exchange(pinned_, nullptr));
    batched_ = false;
  }

  const std::shared_ptr<cuda::OpenDevice> device_;
  CopyCapabilities capabilities_;
  // Settled by RegisterArena, before the first copy:
  uint8_t* pinned_ = nullptr;  // by this backend
  bool batched_ = false;
};

}  // namespace

std::shared_ptr<CopyBackend> MakeCudaBackend(const CudaOptions& options) {
  return std::make_shared<CudaBackend>(options);
}

}  // namespace tpu_sync_native
