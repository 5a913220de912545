// The devices that the kit runs on: one line each, at the end.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "copy/fake_device.h"
#include "copy_backend_kit.h"
#include "cuda/cuda_backend.h"
#include "cuda_library.h"

namespace tpu_sync_native::testing {

inline DeviceMemory HostMemory(uint64_t bytes) {
  auto memory = std::make_shared<std::vector<uint8_t>>(bytes);
  return {.address = reinterpret_cast<uint64_t>(memory->data()),
          .read = [memory] { return *memory; },
          .write = [memory](std::span<const uint8_t> data) { std::ranges::copy(data, memory->begin()); }};
}

class FakeKit final : public KitDevice {
 public:
  explicit FakeKit(const FakeDeviceOptions& options) : options_(options), device_(options) {}
  std::shared_ptr<CopyBackend> backend() override { return device_.backend(); }
  uint64_t MakeBuffer(uint64_t bytes) override { return device_.MakeBuffer(bytes); }
  // What the owner of a tensor reads is what is there when all that he launched is done.
  std::vector<uint8_t> Read(uint64_t buffer) override {
    device_.AwaitIdle(FakeQueue::kSteps);
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

struct KitEntry {
  std::string name;
  std::function<std::unique_ptr<KitDevice>()> make;  // null where there is no such device here
};

inline KitEntry Fake(const std::string& name, const FakeDeviceOptions& options) {
  return {"fake, " + name, [options] { return std::make_unique<FakeKit>(options); }};
}

inline KitEntry Cuda(const std::string& name, const std::string& library) {
  try {
    CudaLibrary{library};
  } catch (const std::runtime_error&) {
    return {name, nullptr};
  }
  return {name, [library] {
            const auto driver = std::make_shared<CudaLibrary>(library);
            return std::make_unique<AddressedDevice>(
                [library] { return MakeCudaBackend({.library = library}); },
                [driver](uint64_t bytes) { return MakeCudaMemory(driver, bytes); });
          }};
}

inline std::vector<KitEntry> KitDevices() {
  return {
      {"host", [] { return std::make_unique<AddressedDevice>(MakeHostBackend, HostMemory); }},
      Fake("one queue", {.piece_bytes_max = 64 << 10, .inflight_bytes_max = 128 << 10}),
      Fake("two queues", {.in_order_queue = false}),
      Fake("writing in place", {.replaces_buffers = false, .in_order_queue = false}),
      Fake("tiled", {.alignment_bytes = 512, .piece_bytes_max = 16 << 10, .inflight_bytes_max = 16 << 10}),
      Cuda("cuda, fake driver", FAKE_CUDA),
      Cuda("cuda, fake driver without batches", FAKE_CUDA_OF_BEFORE_BATCHES),
      Cuda("cuda", "libcuda.so.1"),
  };
}

}  // namespace tpu_sync_native::testing
