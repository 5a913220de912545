// The functions that the driver's library exports, as far as they are called.
#include <cstdint>
#include <cstdio>

#include "world.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using namespace tpu_sync_native;  // NOLINT(google-build-using-namespace): this file is the library's face
using cuda::Context;
using cuda::DevicePtr;
using cuda::Event;
using cuda::Result;
using cuda::Stream;
using testing::Spoils;
using testing::TheWorld;
using testing::ThisThread;

constexpr Result kInvalidDevice = 101;

// Stands for the device's one context; nothing is at its address.
Context PrimaryContext() {
  static char context;
  return reinterpret_cast<Context>(&context);
}

Result Enter(const char* call, Spoils spoils = Spoils::kNothing) {
  return TheWorld().Enter(call, /*needs_context=*/true, spoils);
}

Result EnterAnywhere(const char* call) { return TheWorld().Enter(call, /*needs_context=*/false); }

}  // namespace

EXPORTED testing::FakeCuda* fake_cuda() { return &TheWorld(); }
EXPORTED void fake_cuda_reset() { TheWorld().Reset(); }  // for callers without C++

EXPORTED Result cuInit(unsigned) { return TheWorld().devices() == 0 ? cuda::kNoDevice : cuda::kSuccess; }

EXPORTED Result cuGetErrorName(Result result, const char** name) {
  switch (result) {
    case cuda::kInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    case cuda::kOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case cuda::kNoDevice:
      *name = "CUDA_ERROR_NO_DEVICE";
      break;
    case cuda::kIllegalAddress:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      break;
    case kInvalidDevice:
      *name = "CUDA_ERROR_INVALID_DEVICE";
      break;
    default:
      *name = nullptr;
      return cuda::kInvalidValue;
  }
  return cuda::kSuccess;
}

EXPORTED Result cuGetErrorString(Result, const char** text) {
  *text = "as told by a fake";
  return cuda::kSuccess;
}

EXPORTED Result cuDeviceGet(cuda::Device* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < TheWorld().devices() ? cuda::kSuccess : kInvalidDevice;
}

EXPORTED Result cuDeviceGetName(char* name, int bytes, cuda::Device) {
  std::snprintf(name, static_cast<size_t>(bytes), "fake GPU");
  return cuda::kSuccess;
}

EXPORTED Result cuDevicePrimaryCtxRetain(Context* context, cuda::Device) {
  *context = PrimaryContext();
  const Result result = EnterAnywhere("cuDevicePrimaryCtxRetain");
  return result == cuda::kSuccess ? TheWorld().Retain(1) : result;
}

EXPORTED Result cuDevicePrimaryCtxRelease_v2(cuda::Device) {
  EnterAnywhere("cuDevicePrimaryCtxRelease_v2");
  return TheWorld().Retain(-1);
}

EXPORTED Result cuCtxPushCurrent_v2(Context context) {
  ThisThread().contexts.push_back(context);
  const Result result = EnterAnywhere("cuCtxPushCurrent_v2");
  if (result != cuda::kSuccess) ThisThread().contexts.pop_back();
  return result;
}

EXPORTED Result cuCtxPopCurrent_v2(Context* context) {
  if (ThisThread().contexts.empty()) return cuda::kInvalidContext;
  *context = ThisThread().contexts.back();
  ThisThread().contexts.pop_back();
  return cuda::kSuccess;
}

EXPORTED Result cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, ThisThread().capture_mode);
  return cuda::kSuccess;
}

EXPORTED Result cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  const Result result = Enter("cuMemHostRegister_v2", Spoils::kCapture);
  return result == cuda::kSuccess ? TheWorld().Pin(static_cast<const uint8_t*>(memory), bytes) : result;
}

EXPORTED Result cuMemHostUnregister(void* memory) {
  const Result result = Enter("cuMemHostUnregister", Spoils::kCapture);
  return result == cuda::kSuccess ? TheWorld().Unpin(static_cast<const uint8_t*>(memory)) : result;
}

EXPORTED Result cuStreamCreate(Stream* stream, unsigned) {
  const Result result = Enter("cuStreamCreate");
  return result == cuda::kSuccess ? TheWorld().CreateStream(stream) : result;
}

EXPORTED Result cuStreamDestroy_v2(Stream stream) {
  Enter("cuStreamDestroy_v2");
  return TheWorld().DestroyStream(stream);
}

EXPORTED Result cuStreamQuery(Stream stream) {
  const Result result = Enter("cuStreamQuery", Spoils::kCapture);
  return result == cuda::kSuccess ? TheWorld().QueryStream(stream) : result;
}

EXPORTED Result cuStreamSynchronize(Stream stream) {
  const Result result = Enter("cuStreamSynchronize", Spoils::kCapture);
  return result == cuda::kSuccess ? TheWorld().AwaitStream(stream) : result;
}

EXPORTED Result cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  const Result result = Enter("cuStreamWaitEvent");
  return result == cuda::kSuccess ? TheWorld().LetWait(stream, event) : result;
}

EXPORTED Result cuLaunchHostFunc(Stream stream, cuda::HostFunction call, void* argument) {
  const Result result = Enter("cuLaunchHostFunc");
  if (result != cuda::kSuccess) return result;
  return TheWorld().Enqueue(stream, [call, argument] {
    // A lost context drops it; the thread has none while it runs, so that calls of the driver fail.
    if (EnterAnywhere("host function") == cuda::kSuccess) call(argument);
  });
}

EXPORTED Result cuEventCreate(Event* event, unsigned) {
  const Result result = Enter("cuEventCreate");
  return result == cuda::kSuccess ? TheWorld().CreateEvent(event) : result;
}

EXPORTED Result cuEventDestroy_v2(Event event) {
  Enter("cuEventDestroy_v2");
  return TheWorld().DestroyEvent(event);
}

EXPORTED Result cuEventRecord(Event event, Stream stream) {
  const Result result = Enter("cuEventRecord");
  return result == cuda::kSuccess ? TheWorld().RecordEvent(event, stream) : result;
}

EXPORTED Result cuEventQuery(Event event) {
  const Result result = Enter("cuEventQuery", Spoils::kCapture);
  return result == cuda::kSuccess ? TheWorld().QueryEvent(event) : result;
}

EXPORTED Result cuEventSynchronize(Event event) {
  const Result result = Enter("cuEventSynchronize", Spoils::kCapture);
  return result == cuda::kSuccess ? TheWorld().AwaitEvent(event) : result;
}

EXPORTED Result cuMemcpyDtoHAsync_v2(void* target, DevicePtr source, size_t bytes, Stream stream) {
  const Result result = Enter("cuMemcpyDtoHAsync_v2");
  if (result != cuda::kSuccess) return result;
  return TheWorld().CopyAsync(static_cast<uint8_t*>(target), source, bytes, /*to_host=*/true, stream);
}

EXPORTED Result cuMemcpyHtoDAsync_v2(DevicePtr target, const void* source, size_t bytes, Stream stream) {
  const Result result = Enter("cuMemcpyHtoDAsync_v2");
  if (result != cuda::kSuccess) return result;
  auto* const host = static_cast<uint8_t*>(const_cast<void*>(source));  // only read
  return TheWorld().CopyAsync(host, target, bytes, /*to_host=*/false, stream);
}

#ifndef FAKE_CUDA_OF_BEFORE_BATCHES
EXPORTED Result cuMemcpyBatchAsync_v2(DevicePtr* targets, DevicePtr* sources, size_t* bytes, size_t count,
                                      cuda::CopyAttributes* attributes, size_t* first_of_attributes,
                                      size_t num_attributes, Stream stream) {
  Result result = Enter("cuMemcpyBatchAsync_v2");
  if (result != cuda::kSuccess) return result;
  if (stream == nullptr || num_attributes != 1 || first_of_attributes[0] != 0 || count == 0 ||
      attributes[0].source_order != cuda::kSourceInStreamOrder) {
    return cuda::kInvalidValue;
  }
  for (size_t i = 0; i < count && result == cuda::kSuccess; ++i) {
    const bool to_host = TheWorld().Memory(targets[i]) == nullptr;
    auto* const host = reinterpret_cast<uint8_t*>(to_host ? targets[i] : sources[i]);
    result = TheWorld().CopyAsync(host, to_host ? sources[i] : targets[i], bytes[i], to_host, stream);
  }
  return result;
}
#endif

EXPORTED Result cuMemAlloc_v2(DevicePtr* address, size_t bytes) {
  const Result result = Enter("cuMemAlloc_v2", Spoils::kCapture);
  return result == cuda::kSuccess ? TheWorld().Allocate(address, bytes) : result;
}

EXPORTED Result cuMemFree_v2(DevicePtr address) { return TheWorld().Free(address); }

// Each by way of the default stream, and done when it returns.
EXPORTED Result cuMemcpyHtoD_v2(DevicePtr target, const void* source, size_t bytes) {
  const Result result = cuMemcpyHtoDAsync_v2(target, source, bytes, nullptr);
  return result == cuda::kSuccess ? TheWorld().AwaitStream(nullptr) : result;
}

EXPORTED Result cuMemcpyDtoH_v2(void* target, DevicePtr source, size_t bytes) {
  const Result result = cuMemcpyDtoHAsync_v2(target, source, bytes, nullptr);
  return result == cuda::kSuccess ? TheWorld().AwaitStream(nullptr) : result;
}
