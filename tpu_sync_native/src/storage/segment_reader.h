// Reads chunks of one segment straight into memory (arena slots), neighbours in one I/O, and believes only
// what verifies: header, full key, identity, offset, length, checksum of the payload.
//
// What turns out not to be there, or not to be what the catalog says, is taken out of the catalog; a record
// that does not verify also counts as dead in its segment. A segment that is gone as a whole keeps its cells:
// it may only have moved (adoption), and the next poll knows.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "storage/context.h"

namespace tpu_sync_native {

enum class ReadVerdict : uint8_t { kOk = 0, kMissing, kCorrupt, kIo };

struct WantedChunk {
  uint64_t offset = 0;        // of the record header
  uint64_t stored_bytes = 0;  // rounded up to kStorageUnit
  std::string_view key;
  uint8_t* target = nullptr;  // room for chunk_bytes rounded up to kStorageUnit; 4096-aligned
};

// Where the next record begins.
inline uint64_t EndOf(const WantedChunk& chunk) { return chunk.offset + kStorageUnit + chunk.stored_bytes; }

// Whether one I/O reads on from a record that ends at `end` to the one at `next`: it lies behind, and the
// bytes between cost less than another I/O.
inline constexpr uint64_t kReadOverBytesMax = 128 << 10;
inline bool ReadsOn(uint64_t end, uint64_t next) { return next >= end && next - end <= kReadOverBytesMax; }

// Calls done(i, verdict) once for every wanted chunk, in their order, as soon as it is known: all that one
// I/O of at most io_bytes brought, then the next. After done(i) nothing is written to target i any more.
// Blocks in the medium: pool threads only. `pool` is the one whose breaker learns how the medium answered;
// null is context.loads.
void ReadChunks(StorageContext& context, Segment& segment, std::span<const WantedChunk> wanted,
                const std::function<void(size_t, ReadVerdict)>& done, IoPool* pool = nullptr);

}  // namespace tpu_sync_native
