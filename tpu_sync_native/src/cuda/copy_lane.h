// One direction's stream, and the copies on it.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "copy/backend.h"
#include "cuda/driver.h"

namespace tpu_sync_native::cuda {

// What a call of the driver said, and which one it was.
struct Outcome {
  const char* call = "";
  Result result = kSuccess;
  bool ok() const { return result == kSuccess; }
};

// Events that are used again: making one takes longer than recording it. Thread-safe.
class EventPool {
 public:
  explicit EventPool(const Driver& driver) : driver_(driver) {}
  Outcome Take(Event* event);
  void GiveBack(Event event);
  void DestroyAll();

 private:
  const Driver& driver_;
  std::mutex mutex_;
  std::vector<Event> free_;  // guarded by mutex_
};

// Thread-safe once open; every call with the context current.
class CopyLane {
 public:
  CopyLane(const Driver& driver, EventPool* events) : driver_(driver), events_(*events) {}
  // Throws std::runtime_error.
  void Open();
  void Close();
  Stream stream() const { return stream_; }

  // Returns when the last byte of what was given to the device has landed, also when not all of it could be
  // given. `batched`: in one call of the driver, where it has that.
  Outcome Copy(CopyDirection direction, std::span<const CopyExtent> extents, bool batched);

 private:
  Outcome GiveLocked(CopyDirection direction, std::span<const CopyExtent> extents, bool batched);
  Outcome GiveBatchLocked(CopyDirection direction, std::span<const CopyExtent> extents);
  Outcome AwaitLanding(Event landed) const;

  const Driver& driver_;
  EventPool& events_;
  Stream stream_ = nullptr;
  std::mutex mutex_;  // a piece is given whole, so that its event does not wait for another's
  // Guarded by mutex_; kept, so that a batch allocates nothing:
  std::vector<DevicePtr> targets_;
  std::vector<DevicePtr> sources_;
  std::vector<size_t> bytes_;
};

}  // namespace tpu_sync_native::cuda
