// The fake device as a device of the kit.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "copy/fake_device.h"
#include "copy_backend_kit.h"

namespace tpu_sync_native::testing {

class FakeKit final : public KitDevice {
 public:
  explicit FakeKit(const FakeDeviceOptions& options) : options_(options), device_(options) {}
  std::shared_ptr<CopyBackend> backend() override { return device_.backend(); }
  uint64_t MakeBuffer(uint64_t bytes) override { return device_.MakeBuffer(bytes); }
  // What the owner of a tensor reads is what is there when all that he launched is done.
  std::vector<uint8_t> Read(uint64_t buffer) override {
    CHECK(device_.AwaitIdle(FakeQueue::kSteps));
    return device_.Read(buffer);
  }
  void Write(uint64_t buffer, std::span<const uint8_t> bytes) override { device_.Write(buffer, bytes); }
  uint64_t Step(uint64_t buffer, std::span<const uint8_t> bytes) override {
    const std::vector<uint64_t> buffers = {buffer};
    return device_.Step(buffers, {{0, 0, {bytes.begin(), bytes.end()}}}, 1'000)[0];
  }
  bool HoldSteps() override {
    device_.Pause(FakeQueue::kSteps);
    return true;
  }
  void ReleaseSteps() override { device_.Resume(FakeQueue::kSteps); }
  bool FailACopy() override {
    device_.FailCopies(1);
    return true;
  }
  bool refuses_other_memory() const override { return options_.registered_memory_only; }
  FakeDevice& device() { return device_; }

 private:
  const FakeDeviceOptions options_;
  FakeDevice device_;
};

}  // namespace tpu_sync_native::testing
