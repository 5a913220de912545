// One GPU as a backend and its fences share it; let go of when the last of them is gone.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "copy/backend.h"
#include "cuda/copy_lane.h"
#include "cuda/driver.h"

namespace tpu_sync_native::cuda {

// Thread-safe.
class OpenDevice {
 public:
  // Throws std::runtime_error.
  OpenDevice(const std::string& library, int ordinal);
  // In a forked child it leaves everything alone: the driver does not survive a fork.
  ~OpenDevice();
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;

  const std::string& name() const { return name_; }
  bool batches() const { return driver_.call().MemcpyBatchAsync != nullptr; }
  // What went wrong the last time, or what ended the device; empty while nothing has.
  std::string last_error() const;
  // A fault of the context is for ever: every call from then on would only repeat it.
  bool dead() const { return dead_.load(std::memory_order_acquire); }

  // Pins memory for DMA; what the driver said.
  Outcome Pin(uint8_t* memory, uint64_t bytes);
  void Unpin(uint8_t* memory);
  std::string Say(const Outcome& outcome) const { return driver_.Say(outcome.call, outcome.result); }

  bool Copy(CopyDirection direction, std::span<const CopyExtent> extents, bool batched);

  // An event behind what was given to the stream so far; null when the stream cannot be asked.
  Event Mark(Stream stream);
  void Unmark(Event event) { events_.GiveBack(event); }
  // Passed, or never to be passed because the device is dead.
  bool Passed(Event event);
  // Calls `ready` on a thread of the driver when the event has passed; at once when the device is dead.
  void CallWhenPassed(Event event, std::function<void()> ready);

 private:
  void Note(const Outcome& outcome);

  const Driver driver_;
  const pid_t pid_;
  Device device_ = 0;
  Context context_ = nullptr;
  std::string name_;
  EventPool events_;
  CopyLane stores_;
  CopyLane loads_;
  Stream fences_ = nullptr;  // waits for marks, one after another, and calls back
  std::mutex fences_mutex_;  // a wait and its call are given together

  std::atomic<bool> dead_{false};
  mutable std::mutex error_mutex_;
  std::string last_error_;  // guarded by error_mutex_
};

}  // namespace tpu_sync_native::cuda
