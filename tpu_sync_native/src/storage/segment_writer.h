// Appends chunks of one namespace to this host's open segment, straight from arena slots.
//
//   Append    a batch of records as one large vectored write; the segment's header goes with the first
//   Sync      makes what was appended durable; only then its records enter the catalog
//   publish   tail.idx, so that other hosts see fresh chunks; at segment_bytes: seal, seg-<n>.idx, next
//   segment
//
// Blocks in the medium: one control-pool task at a time. What a failed write leaves behind:
//
//   append failed   what was appended before is synced if it can be, the segment is sealed with it
//   sync failed     what was not synced before is forgotten: a medium that lost it may call the next sync a
//   success index failed    published with a later Sync; until then this host alone finds the segment's
//   records adopted         (host_changes moved) the open segment is the adopter's: it is left as it is
//
// A medium whose appends cannot be read before the end (object stores): records enter the catalog when the
// segment is sealed, Sync does nothing, and there is no tail.idx.
#pragma once

#include <cstdint>
#include <memory>

#include "storage/context.h"
#include "storage/record_batch.h"

namespace tpu_sync_native {

class SegmentWriter {
 public:
  SegmentWriter(std::shared_ptr<StorageContext> context, std::shared_ptr<StorageNamespace> ns);
  ~SegmentWriter();

  // All of the batch or nothing. `epoch`: of the namespace on this root when the chunks were committed; they
  // are never written under another one. The batch's memory is read until the call returns.
  IoError Append(RecordBatch& batch, uint64_t epoch);
  IoError Sync();  // and tail.idx
  IoError Seal();  // nothing to do when no segment is open

  // From any thread.
  uint64_t unsynced_bytes() const;
  uint64_t unsynced_since_ms() const;  // the steady clock's when the oldest of them was appended; 0: none
  bool indexes_pending() const;        // an index could not be published yet
  uint64_t open_bytes() const;         // of the open segment; 0: none

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
