// Device memory behind a PJRT plugin: TPUs through libtpu, anything else whose plugin has the RawBuffer
// extension.
//
// Buffers are PJRT_Buffer* as integers. A hold takes an alias of each buffer's memory and its ready event, on
// the owner's thread; from then on the buffer object itself is not touched, so its owner may destroy it. Each
// extent is one copy of the runtime, each copy one event; a Copy returns when the last event has come. There
// is no time limit on that: as long as the device may still write into a slot, nobody may have the slot back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "copy/backend.h"

namespace tpu_sync_native {

struct PjrtOptions {
  // The plugin: a path, or what its GetPjrtApi answered in this process (PJRT_Api*), which then counts.
  std::string library;
  uint64_t api = 0;
  // PJRT_Client* of the buffers, if known. Only with it the arena can be mapped for direct access and the
  // platform be asked for its name: nothing leads from a buffer to its client.
  uint64_t client = 0;
  // Copies of memory that is not mapped go through a buffer of the runtime's. Off for runtimes that cannot
  // bear it; one that refuses is left at that.
  bool dma_map = true;
  // Unset: whether the platform is a TPU.
  std::optional<bool> in_order_queue;
  // 0: 4 KiB for TPUs, whose tiles are never cut, else 1.
  uint64_t alignment_bytes = 0;
  uint64_t piece_bytes_max = 16 << 20;
  uint64_t inflight_bytes_max = 64 << 20;
};

// Throws std::runtime_error: the plugin cannot be loaded, is of an unknown version, or has no RawBuffer
// extension.
std::shared_ptr<CopyBackend> MakePjrtBackend(const PjrtOptions& options);

}  // namespace tpu_sync_native
