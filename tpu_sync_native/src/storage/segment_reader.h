// Reads chunks of one segment straight into memory (arena slots), neighbours in one I/O, and believes only what
// verifies: header, full key, identity, offset, length, checksum of the payload.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "storage/context.h"

namespace tpu_sync_native {

enum class ReadVerdict : uint8_t { kOk = 0, kMissing, kCorrupt, kIo };

struct WantedChunk {
  uint64_t offset = 0;        // of the record header
  uint64_t stored_bytes = 0;  // rounded up to kStorageUnit
  std::string_view key;
  uint8_t* target = nullptr;  // room for chunk_bytes rounded up to kStorageUnit; 4096-aligned
};

// Calls done(i, verdict) once for every wanted chunk, in their order as far as I/O allows, as soon as it is
// known. Blocks in the medium: pool threads only.
void ReadChunks(StorageContext& context, const Segment& segment, std::span<const WantedChunk> wanted,
                const std::function<void(size_t, ReadVerdict)>& done);

}  // namespace tpu_sync_native
