#include "cuda/copy_lane.h"

#include <chrono>

namespace tpu_sync_native::cuda {
namespace {

// A small piece has landed before a sleeping thread would be woken.
constexpr std::chrono::microseconds kSpin{20};

DevicePtr AsDevicePtr(const uint8_t* host) { return reinterpret_cast<DevicePtr>(host); }

}  // namespace

Outcome EventPool::Take(Event* event) {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      *event = free_.back();
      free_.pop_back();
      return {};
    }
  }
  return {"cuEventCreate", driver_.call().EventCreate(event, kEventBlockingSync | kEventDisableTiming)};
}

void EventPool::GiveBack(Event event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

void EventPool::DestroyAll() {
  const std::lock_guard lock(mutex_);
  for (Event event : free_) driver_.call().EventDestroy(event);
  free_.clear();
}

void CopyLane::Open() {
  driver_.Require("cuStreamCreate", driver_.call().StreamCreate(&stream_, kStreamNonBlocking));
}

void CopyLane::Close() {
  if (stream_ != nullptr) driver_.call().StreamDestroy(stream_);
  stream_ = nullptr;
}

Outcome CopyLane::Copy(CopyDirection direction, std::span<const CopyExtent> extents, bool batched) {
  Event landed = nullptr;
  Outcome given = events_.Take(&landed);
  if (!given.ok()) return given;
  Outcome recorded{"cuEventRecord"};
  {
    const std::lock_guard lock(mutex_);
    given = GiveLocked(direction, extents, batched);
    recorded.result = driver_.call().EventRecord(landed, stream_);
  }
  // Whatever went wrong, nothing may land after the return: the slots may be another chunk's by then.
  const Outcome done = recorded.ok()
                           ? AwaitLanding(landed)
                           : Outcome{"cuStreamSynchronize", driver_.call().StreamSynchronize(stream_)};
  events_.GiveBack(landed);
  if (!given.ok()) return given;
  return recorded.ok() ? done : recorded;
}

Outcome CopyLane::GiveLocked(CopyDirection direction, std::span<const CopyExtent> extents, bool batched) {
  if (batched && extents.size() > 1 && driver_.call().MemcpyBatchAsync != nullptr) {
    return GiveBatchLocked(direction, extents);
  }
  const bool store = direction == CopyDirection::kStore;
  const char* const call = store ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync";
  for (const CopyExtent& extent : extents) {
    if (extent.bytes == 0) continue;
    const Result result =
        store ? driver_.call().MemcpyDtoHAsync(extent.arena, extent.device, extent.bytes, stream_)
              : driver_.call().MemcpyHtoDAsync(extent.device, extent.arena, extent.bytes, stream_);
    if (result != kSuccess) return {call, result};
  }
  return {};
}

Outcome CopyLane::GiveBatchLocked(CopyDirection direction, std::span<const CopyExtent> extents) {
  const bool store = direction == CopyDirection::kStore;
  targets_.clear();
  sources_.clear();
  bytes_.clear();
  for (const CopyExtent& extent : extents) {
    if (extent.bytes == 0) continue;
    const DevicePtr arena = AsDevicePtr(extent.arena);
    targets_.push_back(store ? arena : extent.device);
    sources_.push_back(store ? extent.device : arena);
    bytes_.push_back(extent.bytes);
  }
  if (bytes_.empty()) return {};
  CopyAttributes attributes{};
  attributes.source_order = kSourceInStreamOrder;
  size_t first = 0;
  return {"cuMemcpyBatchAsync",
          driver_.call().MemcpyBatchAsync(targets_.data(), sources_.data(), bytes_.data(), bytes_.size(),
                                          &attributes, &first, 1, stream_)};
}

Outcome CopyLane::AwaitLanding(Event landed) const {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    const Result result = driver_.call().EventQuery(landed);
    if (result != kNotReady) return {"cuEventQuery", result};
  } while (std::chrono::steady_clock::now() < until);
  return {"cuEventSynchronize", driver_.call().EventSynchronize(landed)};
}

}  // namespace tpu_sync_native::cuda
