// Device memory for the tests of the CUDA backend, and streams as an engine has them: of a fake driver or a
// real one, by the driver's own functions.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "copy_backend_kit.h"
#include "cuda/driver.h"
#include "fake_cuda/fake_cuda.h"

namespace tpu_sync_native::testing {

// An engine's side of the driver: the same context as the backend's.
class CudaLibrary {
 public:
  explicit CudaLibrary(const std::string& path) : driver_(path), library_(dlopen(path.c_str(), RTLD_NOW)) {
    CHECK(library_ != nullptr);
    Find("cuMemAlloc_v2", &allocate_);
    Find("cuMemFree_v2", &free_);
    Find("cuMemcpyHtoD_v2", &to_device_);
    Find("cuMemcpyDtoH_v2", &to_host_);
    cuda::Device device = 0;
    driver_.Require("cuDeviceGet", driver_.call().DeviceGet(&device, 0));
    driver_.Require("cuDevicePrimaryCtxRetain", driver_.call().DevicePrimaryCtxRetain(&context_, device));
  }
  ~CudaLibrary() { driver_.call().DevicePrimaryCtxRelease(0); }
  CudaLibrary(const CudaLibrary&) = delete;
  CudaLibrary& operator=(const CudaLibrary&) = delete;

  const cuda::Driver& driver() const { return driver_; }
  cuda::Context context() const { return context_; }
  // Null with a real driver.
  FakeCuda* fake() const {
    const auto find = reinterpret_cast<FakeCuda* (*)()>(dlsym(library_, "fake_cuda"));
    return find == nullptr ? nullptr : find();
  }

  cuda::DevicePtr Allocate(uint64_t bytes) const {
    const cuda::CurrentContext current(driver_, context_);
    cuda::DevicePtr address = 0;
    driver_.Require("cuMemAlloc", allocate_(&address, bytes));
    return address;
  }
  void Free(cuda::DevicePtr address) const {
    const cuda::CurrentContext current(driver_, context_);
    free_(address);
  }
  void Write(cuda::DevicePtr address, std::span<const uint8_t> data) const {
    const cuda::CurrentContext current(driver_, context_);
    driver_.Require("cuMemcpyHtoD", to_device_(address, data.data(), data.size()));
  }
  std::vector<uint8_t> Read(cuda::DevicePtr address, uint64_t bytes) const {
    const cuda::CurrentContext current(driver_, context_);
    std::vector<uint8_t> data(bytes);
    driver_.Require("cuMemcpyDtoH", to_host_(data.data(), address, bytes));
    return data;
  }
  cuda::Stream MakeStream() const {
    const cuda::CurrentContext current(driver_, context_);
    cuda::Stream stream = nullptr;
    driver_.Require("cuStreamCreate", driver_.call().StreamCreate(&stream, cuda::kStreamNonBlocking));
    return stream;
  }
  void AwaitStream(cuda::Stream stream) const {
    const cuda::CurrentContext current(driver_, context_);
    driver_.Require("cuStreamSynchronize", driver_.call().StreamSynchronize(stream));
  }
  void DestroyStream(cuda::Stream stream) const {
    const cuda::CurrentContext current(driver_, context_);
    driver_.call().StreamDestroy(stream);
  }

 private:
  template <typename Function>
  void Find(const char* symbol, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, symbol));
    CHECK(*function != nullptr);
  }

  const cuda::Driver driver_;
  void* const library_;
  cuda::Context context_ = nullptr;
  cuda::Result (*allocate_)(cuda::DevicePtr*, size_t) = nullptr;
  cuda::Result (*free_)(cuda::DevicePtr) = nullptr;
  cuda::Result (*to_device_)(cuda::DevicePtr, const void*, size_t) = nullptr;
  cuda::Result (*to_host_)(void*, cuda::DevicePtr, size_t) = nullptr;
};

// Freed with the last copy of what it returns.
inline DeviceMemory MakeCudaMemory(const std::shared_ptr<CudaLibrary>& library, uint64_t bytes) {
  const std::shared_ptr<const cuda::DevicePtr> owned(new cuda::DevicePtr(library->Allocate(bytes)),
                                                     [library](const cuda::DevicePtr* address) {
                                                       library->Free(*address);
                                                       delete address;
                                                     });
  return {.address = *owned,
          .read = [library, owned, bytes] { return library->Read(*owned, bytes); },
          .write = [library, owned](std::span<const uint8_t> data) { library->Write(*owned, data); }};
}

}  // namespace tpu_sync_native::testing
