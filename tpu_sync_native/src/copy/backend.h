// What moves the bytes: one contract, one file per kind of device memory.
//
// A backend's calls come from the engine's threads, several at a time. It keeps no state of a job.
// tests/copy_backend_kit.h is the kit every backend must pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native {

struct CopyExtent {
  uint64_t
      device;  // address in the backend's address space; with capabilities.buffers see kDeviceBufferShift
  uint8_t* arena;
  uint64_t bytes;
};

// The device's buffers of one moment, which stay alive and where they are until the hold is gone. It goes on
// any thread, never on the runtime's within OnReady's call.
class CopyHold {
 public:
  virtual ~CopyHold() = default;
  // Of the buffer with this ordinal; 0 where there is none. No extent that reaches beyond it comes to Copy.
  virtual uint64_t BufferBytes(uint64_t ordinal) const = 0;
  // Whether everything that the engine had given to the device before the hold was taken, and that writes
  // these buffers, is done: the fence of a store. Done includes failed; then the copies fail.
  virtual bool Ready() const { return true; }
  // Calls `ready` once as soon as it is: at once, or on a thread of the runtime, which must not be kept. When
  // the hold is gone before, the call may still come, or never.
  virtual void OnReady(std::function<void()> ready) { ready(); }
};

class CopyBackend {
 public:
  virtual ~CopyBackend() = default;
  virtual const CopyCapabilities& capabilities() const = 0;
  // Called once before the first copy: device runtimes pin the arena here. False: the backend cannot use it.
  // The default needs nothing.
  virtual bool RegisterArena(uint8_t* arena, uint64_t bytes);
  // Called once after the last copy; the memory may go after it.
  virtual void UnregisterArena(uint8_t* arena, uint64_t bytes);
  // With capabilities.buffers: takes hold of these, as the runtime calls them. On the thread of whoever owns
  // the tensors. Null: one of them cannot be used (gone, failed, of another device).
  virtual std::shared_ptr<CopyHold> Hold(std::span<const uint64_t> buffers);
  // With capabilities.streams: a hold of no buffers that is ready when what was launched on this stream so
  // far is done. Null: it cannot be asked.
  virtual std::shared_ptr<CopyHold> Fence(uint64_t stream);
  // Moves every extent and returns when the last byte has landed and is visible to other threads and
  // processes. Extents do not overlap. False when the device failed; what was moved is then unknown. `hold`
  // is of this backend and ready; null when the job has none, which with capabilities.buffers is never.
  virtual bool Copy(CopyDirection direction, std::span<const CopyExtent> extents, const CopyHold* hold) = 0;
  // Why Hold, Fence or Copy failed the last time, for people; empty when none has.
  virtual std::string last_error() const { return {}; }
};

// Plain memory of this process: the reference, always built.
std::shared_ptr<CopyBackend> MakeHostBackend();

}  // namespace tpu_sync_native
