// A device in plain memory that behaves as real ones do at their worst, for tests and for measuring pacing.
//
// A step writes some of the buffers it is given. It leaves other buffers in their places (replaces_buffers),
// so that what is copied into the old ones afterwards is lost; who holds an old one can still read it. Steps
// and copies pass one queue in order (in_order_queue), or a queue each. A buffer that a step is still to
// write has its old or no bytes until the step has run.
//
// Time is the device's own: every operation has a cost, and queues advance their clock by it. They run as
// fast as the memory does, or one operation at a time as a test says. Faults come from a seed, in the queue's
// order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "copy/backend.h"

namespace tpu_sync_native {

struct FakeDeviceOptions {
  bool replaces_buffers = true;
  bool in_order_queue = true;
  bool registered_memory_only = true;  // a copy from or to other memory fails
  uint64_t alignment_bytes = 1;
  uint64_t piece_bytes_max = 0;
  uint64_t inflight_bytes_max = 0;
  // What a copy costs in the device's time.
  uint64_t copy_ns = 1'000;
  uint64_t bytes_per_us = 10'000;
  // Faults, in 1000 operations.
  uint64_t seed = 1;
  uint32_t copies_failing = 0;
  uint32_t holds_refused = 0;
};

enum class FakeOpKind : uint8_t { kStore, kLoad, kStep };

// An operation that has been through its queue.
struct FakeOp {
  FakeOpKind kind = FakeOpKind::kStep;
  uint64_t bytes = 0;
  uint64_t begin_ns = 0;  // of its queue's clock
  uint64_t end_ns = 0;
  uint64_t copies_ahead_ns = 0;  // of a step: what all copies cost that were in its queue at its launch
  bool ok = false;
};

// Into the buffer with this place among those a step is given.
struct FakeWrite {
  uint64_t buffer;
  uint64_t offset;
  std::vector<uint8_t> bytes;
};

// In an in-order device both mean the one queue.
enum class FakeQueue : uint8_t { kSteps, kCopies };

// Thread-safe. Its end fails what is queued; backends and holds may outlive it.
class FakeDevice {
 public:
  // Throws std::invalid_argument.
  explicit FakeDevice(const FakeDeviceOptions& options = {});
  ~FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  std::shared_ptr<CopyBackend> backend() const;

  // ---- what the engine does ----
  uint64_t MakeBuffer(uint64_t bytes);
  // Launches a step; it has run when its turn has come. Returns what lies in the buffers' places from now on;
  // the old ones, where they are replaced, can no longer be held. Throws std::invalid_argument for a buffer
  // that is not there or a write outside it. A step that fails leaves its buffers unusable.
  std::vector<uint64_t> Step(std::span<const uint64_t> buffers, std::vector<FakeWrite> writes,
                             uint64_t cost_ns, bool fails = false);
  // Around the queues. Throws std::invalid_argument for a buffer that is not there.
  std::vector<uint8_t> Read(uint64_t buffer) const;
  void Write(uint64_t buffer, std::span<const uint8_t> bytes);

  // ---- what a test does ----
  void Pause(FakeQueue queue);
  void Resume(FakeQueue queue);
  // Lets the next operations of a paused queue through.
  void Run(FakeQueue queue, uint64_t operations);
  // Until so many wait in the queue, or none and none is under way. False when the time is over first.
  bool AwaitQueued(FakeQueue queue, uint64_t operations, double timeout_s = 60) const;
  bool AwaitIdle(FakeQueue queue, double timeout_s = 60) const;
  // Fences are not told, nor seen, to be done until the release.
  void HoldEvents();
  void ReleaseEvents();
  // So many of the next copies fail, beside those by seed.
  void FailCopies(uint64_t count);
  std::vector<FakeOp> log() const;
  uint64_t held() const;  // holds alive

 private:
  struct State;
  class Hold;
  class Backend;
  const std::shared_ptr<State> state_;
};

}  // namespace tpu_sync_native
