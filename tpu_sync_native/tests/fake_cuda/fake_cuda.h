// A CUDA driver in host memory: a library that exports the driver's functions, and what a test sets in it.
//
// Streams are in order, one thread each, and run beside one another. Device addresses point nowhere. A call
// without a current context fails, as do pins, copies and handles that the driver would refuse. A fault of
// the context is for ever: queued copies move nothing, host functions are never called, every call returns
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cuda/api.h"

namespace tpu_sync_native::testing {

// Exported as fake_cuda(); one for the process. Thread-safe.
class FakeCuda {
 public:
  // As new, with one device, when the copies under way have ended.
  virtual void Reset() = 0;
  virtual void SetDevices(int count) = 0;
  // The call of this name fails once, when it was called `after` times more.
  virtual void FailOnce(const std::string& call, cuda::Result result, int after = 0) = 0;
  virtual void BreakContext(cuda::Result result) = 0;
  virtual void RefusePins(bool refuse) = 0;
  // Copies wait until they may go on; each then takes so long.
  virtual void StopCopies(bool stop) = 0;
  virtual void SetCopyTime(uint64_t microseconds) = 0;
  // A graph is captured by another thread: calls that would spoil it fail, unless their thread is relaxed.
  virtual void CaptureElsewhere(bool capturing) = 0;

  // Runs in the stream's order, as a kernel does.
  virtual void Launch(cuda::Stream stream, std::function<void()> kernel) = 0;
  // Where the bytes of device memory are; null when the address is none.
  virtual uint8_t* Memory(cuda::DevicePtr address) = 0;

  virtual uint64_t calls(const std::string& call) = 0;
  virtual uint64_t unfinished_copies() = 0;
  virtual uint64_t pageable_copies() = 0;
  virtual uint64_t pinned_ranges() = 0;
  virtual uint64_t live_streams() = 0;
  virtual uint64_t live_events() = 0;
  virtual int retained_contexts() = 0;
  // Contexts that the calling thread has pushed and not popped; whether its calls are relaxed.
  virtual size_t contexts_of_this_thread() = 0;
  virtual bool this_thread_is_relaxed() = 0;

 protected:
  ~FakeCuda() = default;
};

}  // namespace tpu_sync_native::testing
