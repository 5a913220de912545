// The devices that the kit runs on: one line each, at the end.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "copy_backend_kit.h"
#include "cuda/cuda_backend.h"
#include "cuda_library.h"
#include "fake_kit.h"
#include "pjrt_kit.h"

namespace tpu_sync_native::testing {

inline DeviceMemory HostMemory(uint64_t bytes) {
  auto memory = std::make_shared<std::vector<uint8_t>>(bytes);
  return {.address = reinterpret_cast<uint64_t>(memory->data()),
          .read = [memory] { return *memory; },
          .write = [memory](std::span<const uint8_t> data) { std::ranges::copy(data, memory->begin()); }};
}

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
      {"pjrt, test plugin", [] { return std::make_unique<PjrtKit>(); }},
      Cuda("cuda, fake driver", FAKE_CUDA),
      Cuda("cuda, fake driver without batches", FAKE_CUDA_OF_BEFORE_BATCHES),
      Cuda("cuda", "libcuda.so.1"),
  };
}

}  // namespace tpu_sync_native::testing
