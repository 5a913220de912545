#include "cuda/driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace tpu_sync_native::cuda {
namespace {

template <typename Function>
void Find(void* library, const char* symbol, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, symbol));
}

template <typename Function>
void Require(void* library, const std::string& path, const char* symbol, Function** function) {
  Find(library, symbol, function);
  if (*function == nullptr) throw std::runtime_error(path + " has no " + symbol);
}

}  // namespace

Driver::Driver(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    throw std::runtime_error(std::string("no CUDA driver: ") + (why == nullptr ? path.c_str() : why));
  }
  const auto require = [&](const char* symbol, auto* function) {
    cuda::Require(library, path, symbol, function);
  };
  require("cuInit", &functions_.Init);
  require("cuGetErrorName", &functions_.GetErrorName);
  require("cuGetErrorString", &functions_.GetErrorString);
  require("cuDeviceGet", &functions_.DeviceGet);
  require("cuDeviceGetName", &functions_.DeviceGetName);
  require("cuDevicePrimaryCtxRetain", &functions_.DevicePrimaryCtxRetain);
  require("cuDevicePrimaryCtxRelease_v2", &functions_.DevicePrimaryCtxRelease);
  require("cuCtxPushCurrent_v2", &functions_.CtxPushCurrent);
  require("cuCtxPopCurrent_v2", &functions_.CtxPopCurrent);
  require("cuThreadExchangeStreamCaptureMode", &functions_.ThreadExchangeStreamCaptureMode);
  require("cuMemHostRegister_v2", &functions_.MemHostRegister);
  require("cuMemHostUnregister", &functions_.MemHostUnregister);
  require("cuStreamCreate", &functions_.StreamCreate);
  require("cuStreamDestroy_v2", &functions_.StreamDestroy);
  require("cuStreamQuery", &functions_.StreamQuery);
  require("cuStreamSynchronize", &functions_.StreamSynchronize);
  require("cuStreamWaitEvent", &functions_.StreamWaitEvent);
  require("cuLaunchHostFunc", &functions_.LaunchHostFunc);
  require("cuEventCreate", &functions_.EventCreate);
  require("cuEventDestroy_v2", &functions_.EventDestroy);
  require("cuEventRecord", &functions_.EventRecord);
  require("cuEventQuery", &functions_.EventQuery);
  require("cuEventSynchronize", &functions_.EventSynchronize);
  require("cuMemcpyDtoHAsync_v2", &functions_.MemcpyDtoHAsync);
  require("cuMemcpyHtoDAsync_v2", &functions_.MemcpyHtoDAsync);
  Find(library, "cuMemcpyBatchAsync_v2", &functions_.MemcpyBatchAsync);
  Require("cuInit", functions_.Init(0));
}

std::string Driver::Say(const std::string& call, Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (functions_.GetErrorName(result, &name) != kSuccess || name == nullptr) {
    return call + ": error " + std::to_string(result);
  }
  std::string said = call + ": " + name;
  if (functions_.GetErrorString(result, &text) == kSuccess && text != nullptr) {
    said += " (" + std::string(text) + ")";
  }
  return said;
}

void Driver::Require(const std::string& call, Result result) const {
  if (result != kSuccess) throw std::runtime_error(Say(call, result));
}

CurrentContext::CurrentContext(const Driver& driver, Context context)
    : driver_(driver), result_(driver.call().CtxPushCurrent(context)) {
  if (result_ != kSuccess) return;
  driver_.call().ThreadExchangeStreamCaptureMode(&capture_mode_);
}

CurrentContext::~CurrentContext() {
  if (result_ != kSuccess) return;
  driver_.call().ThreadExchangeStreamCaptureMode(&capture_mode_);
  Context popped = nullptr;
  driver_.call().CtxPopCurrent(&popped);
}

}  // namespace tpu_sync_native::cuda
