// Appends chunks of one namespace to this host's open segment, straight from arena slots.
//
//   Append    record headers and payloads as large vectored writes; payload checksums on the way
//   Sync      makes what was appended durable; only then its records enter the catalog
//   publish   tail.idx, so that other hosts see fresh chunks; at segment_bytes: seal, seg-<n>.idx, next segment
//
// Blocks in the medium: one control-pool task at a time. After a failed append the segment is sealed with what
// was synced, and a new one is begun by the next Append.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "storage/context.h"
#include "store/lower_tier.h"

namespace tpu_sync_native {

class SegmentWriter {
 public:
  SegmentWriter(std::shared_ptr<StorageContext> context, std::shared_ptr<StorageNamespace> ns);
  ~SegmentWriter();

  // `data` holds the chunk's bytes, pinned until the call returns.
  struct Chunk {
    std::string_view key;
    const uint8_t* data;
  };
  // How many leading chunks were appended; fewer than given with the error that stopped it.
  size_t Append(std::span<const Chunk> chunks, IoError* error);
  IoError Sync();           // and tail.idx
  IoError Seal();           // also when the epoch has moved on; nothing to do when no segment is open
  uint64_t unsynced_bytes() const;
  uint64_t open_bytes() const;  // of the open segment

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
