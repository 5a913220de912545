// What moves the bytes: one contract, one file per kind of device memory.
//
// A backend's calls come from the engine's threads, several at a time. It keeps no state of a job.
// tests/copy_backend_kit.h is the kit every backend must pass.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native {

struct CopyExtent {
  uint64_t device;  // address in the backend's address space
  uint8_t* arena;
  uint64_t bytes;
};

class CopyBackend {
 public:
  virtual ~CopyBackend() = default;
  virtual const CopyCapabilities& capabilities() const = 0;
  // Called once before the first copy: device runtimes pin the arena here. False: the backend cannot use it.
  // The default needs nothing.
  virtual bool RegisterArena(uint8_t* arena, uint64_t bytes);
  // Moves every extent and returns when the last byte has landed and is visible to other threads and
  // processes. Extents do not overlap. False when the device failed; what was moved is then unknown.
  virtual bool Copy(CopyDirection direction, std::span<const CopyExtent> extents) = 0;
};

// Plain memory of this process: the reference, always built.
std::shared_ptr<CopyBackend> MakeHostBackend();

}  // namespace tpu_sync_native
