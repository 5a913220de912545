#include "cuda/device.h"

#include <unistd.h>

#include <utility>

namespace tpu_sync_native::cuda {
namespace {

constexpr int kNameBytes = 128;

void CallAndForget(void* argument) {
  const std::unique_ptr<std::function<void()>> ready(static_cast<std::function<void()>*>(argument));
  (*ready)();
}

}  // namespace

OpenDevice::OpenDevice(const std::string& library, int ordinal)
    : driver_(library),
      pid_(getpid()),
      events_(driver_),
      stores_(driver_, &events_),
      loads_(driver_, &events_) {
  driver_.Require("cuDeviceGet of device " + std::to_string(ordinal),
                  driver_.call().DeviceGet(&device_, ordinal));
  char name[kNameBytes] = {};
  driver_.Require("cuDeviceGetName", driver_.call().DeviceGetName(name, kNameBytes, device_));
  name_ = name;
  driver_.Require("cuDevicePrimaryCtxRetain", driver_.call().DevicePrimaryCtxRetain(&context_, device_));
  try {
    const CurrentContext current(driver_, context_);
    driver_.Require("cuCtxPushCurrent", current.result());
    stores_.Open();
    loads_.Open();
    driver_.Require("cuStreamCreate", driver_.call().StreamCreate(&fences_, kStreamNonBlocking));
  } catch (...) {
    driver_.call().DevicePrimaryCtxRelease(device_);  // takes the streams with it, or lets others keep them
    throw;
  }
}

OpenDevice::~OpenDevice() {
  if (getpid() != pid_) return;
  {
    const CurrentContext current(driver_, context_);
    stores_.Close();
    loads_.Close();
    driver_.call().StreamDestroy(fences_);
    events_.DestroyAll();
  }
  driver_.call().DevicePrimaryCtxRelease(device_);
}

std::string OpenDevice::last_error() const {
  const std::lock_guard lock(error_mutex_);
  return last_error_;
}

// Whether the context is lost, a call that cannot fail otherwise tells: every call returns such a fault
// again.
void OpenDevice::Note(const Outcome& outcome) {
  const Result now = driver_.call().StreamQuery(fences_);
  const bool lost = now != kSuccess && now != kNotReady;
  const std::lock_guard lock(error_mutex_);
  if (!dead()) last_error_ = Say(outcome);
  if (lost) dead_.store(true, std::memory_order_release);
}

Outcome OpenDevice::Pin(uint8_t* memory, uint64_t bytes) {
  const CurrentContext current(driver_, context_);
  if (current.result() != kSuccess) return {"cuCtxPushCurrent", current.result()};
  return {"cuMemHostRegister",
          driver_.call().MemHostRegister(memory, bytes, kRegisterPortable | kRegisterDeviceMap)};
}

void OpenDevice::Unpin(uint8_t* memory) {
  if (getpid() != pid_) return;
  const CurrentContext current(driver_, context_);
  if (current.result() != kSuccess) return;
  const Outcome outcome{"cuMemHostUnregister", driver_.call().MemHostUnregister(memory)};
  if (!outcome.ok()) Note(outcome);
}

bool OpenDevice::Copy(CopyDirection direction, std::span<const CopyExtent> extents, bool batched) {
  if (extents.empty()) return true;
  if (dead()) return false;
  const CurrentContext current(driver_, context_);
  Outcome outcome{"cuCtxPushCurrent", current.result()};
  if (outcome.ok()) {
    outcome = (direction == CopyDirection::kStore ? stores_ : loads_).Copy(direction, extents, batched);
  }
  if (!outcome.ok()) Note(outcome);
  return outcome.ok();
}

Event OpenDevice::Mark(Stream stream) {
  if (dead()) return nullptr;
  const CurrentContext current(driver_, context_);
  Event event = nullptr;
  Outcome outcome{"cuCtxPushCurrent", current.result()};
  if (outcome.ok()) outcome = events_.Take(&event);
  if (outcome.ok()) outcome = {"cuEventRecord", driver_.call().EventRecord(event, stream)};
  if (outcome.ok()) return event;
  Note(outcome);
  if (event != nullptr) events_.GiveBack(event);
  return nullptr;
}

bool OpenDevice::Passed(Event event) {
  if (dead()) return true;
  const CurrentContext current(driver_, context_);
  Outcome outcome{"cuCtxPushCurrent", current.result()};
  if (outcome.ok()) outcome = {"cuEventQuery", driver_.call().EventQuery(event)};
  if (outcome.ok()) return true;
  if (outcome.result != kNotReady) Note(outcome);
  return dead();
}

void OpenDevice::CallWhenPassed(Event event, std::function<void()> ready) {
  const CurrentContext current(driver_, context_);
  Outcome outcome{"cuCtxPushCurrent", current.result()};
  auto call = std::make_unique<std::function<void()>>(std::move(ready));
  if (outcome.ok()) {
    const std::lock_guard lock(fences_mutex_);
    outcome = {"cuStreamWaitEvent", driver_.call().StreamWaitEvent(fences_, event, 0)};
    if (outcome.ok()) {
      outcome = {"cuLaunchHostFunc", driver_.call().LaunchHostFunc(fences_, &CallAndForget, call.get())};
    }
  }
  if (outcome.ok()) {
    static_cast<void>(call.release());  // the driver's, until it calls
    return;
  }
  Note(outcome);
  // Without the driver's call nobody would come back; whether it may go on is then for the copies to find
  // out, which only a dead device refuses. A living one keeps the fence: the job ends by its deadline.
  if (dead()) (*call)();
}

}  // namespace tpu_sync_native::cuda
