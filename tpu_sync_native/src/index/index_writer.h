// The write side of the shared metadata: one writer, the store, under its mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/huge_pages.h"
#include "base/mapping.h"
#include "index/key.h"
#include "index/meta_file.h"
#include "index/meta_view.h"

namespace tpu_sync_native {

// Not thread-safe; readers of any process go on meanwhile. Every change a reader can meet is made by the
// protocol of meta_layout.h: a record before the cell that names it, a cell's end before its record's.
class IndexWriter {
 public:
  struct Life {
    uint64_t boot_id;
    HostBoot host;
    bool keep = false;       // take the file over as it is; else it is made anew
    bool checksums = false;  // they are kept; else what there were are forgotten
  };
  // See meta_file.h for what is thrown. A file that is kept has its records as they were left; see
  // src/store/restore.cc for what must follow.
  IndexWriter(int meta_fd, const MetaGeometry& geometry, const Life& life);
  ~IndexWriter();
  IndexWriter(const IndexWriter&) = delete;
  IndexWriter& operator=(const IndexWriter&) = delete;

  const MetaView& view() const { return view_; }
  // Bytes of the file that are committed: what the index costs by now.
  uint64_t committed_bytes() const { return committed_bytes_; }

  // Commits the memory of these slots' records (key tails) so that writing them cannot meet SIGBUS. False
  // when the file system has no room.
  bool CommitRecords(uint32_t first_slot, uint32_t count);
  bool CommitKeyTails(uint32_t first_slot, uint32_t count);

  // How many of these slots, from the first one on, have memory behind their records already, in a file that
  // was kept. Asked once for each slot.
  uint32_t FindRecords(uint32_t first_slot, uint32_t count);
  // The same for the key tail of one slot. They are written here and there, and what has been committed and
  // never written looks like a hole: so they are asked for one by one, and committed again before the next is
  // written.
  bool HasKeyTail(uint32_t slot);

  void OpenNamespace(uint32_t ns, std::string_view id, uint64_t chunk_bytes);
  // The row of a namespace that no slot is of, and that nobody has open, becomes another's.
  void ReplaceNamespace(uint32_t ns, std::string_view id, uint64_t chunk_bytes, uint32_t epoch);
  void SetEpoch(uint32_t ns, uint32_t epoch);
  void SetClearingTo(uint32_t ns, uint32_t epoch);
  void SetEpochBelow(uint32_t ns, uint64_t word);
  void SetFloor(uint32_t ns, uint64_t bytes);

  // Who writes; see meta_layout.h. A row is readable to the next daemon from its opening to its closing.
  void OpenSessionRow(uint32_t row, const SessionRow& session);
  void CloseSessionRow(uint32_t row);
  void OpenLeaseRow(uint32_t row, uint64_t lease, uint64_t session, uint64_t group);
  void CloseLeaseRow(uint32_t row);
  void NoteLastLease(uint64_t lease);
  void NoteLastSession(uint64_t session);

  // The slot is taken for `key`: generation + 1, state reserved (or promoting). `lease`: a WriteLeaseRow + 1,
  // or 0. Returns the generation.
  uint32_t Reserve(uint32_t slot, uint64_t offset, uint64_t owner, const HashedKey& key,
                   SlotState state = SlotState::kReserved, uint32_t lease = 0);
  void SetState(uint32_t slot, SlotState state);
  // Of the chunk that is committed in the slot.
  void SetChecksum(uint32_t slot, uint32_t word);
  // State free, generation + 1: a reader in the middle of a copy will see it.
  void Free(uint32_t slot) { End(slot, SlotState::kFree); }
  // State quarantined, generation + 1: what was promised in the slot never comes.
  void Lose(uint32_t slot) { End(slot, SlotState::kQuarantined); }
  // No key is found from here on.
  void ClearBuckets();
  // Promotes have ended: whoever sleeps on it looks again.
  void WakePromoteWaiters();

  // Puts the key into the index. False when both its buckets are full.
  bool Insert(const HashedKey& key, uint32_t slot);
  // False when no cell names the slot.
  bool Remove(const HashedKey& key, uint32_t slot);

  // The key a record holds, hashed, and its owner.
  uint64_t KeyOf(uint32_t slot, HashedKey* key) const;

 private:
  bool CommitRange(uint64_t offset, uint64_t bytes);
  void NoteRange(uint64_t offset, uint64_t bytes);
  void End(uint32_t slot, SlotState state);
  void PrepareChecksums();
  SlotRecord& record(uint32_t slot) { return const_cast<SlotRecord&>(view_.slot(slot)); }
  Bucket& bucket(uint32_t index) { return const_cast<Bucket&>(view_.bucket(index)); }

  int fd_;
  Mapping mapping_;
  MetaView view_;
  MetaGeometry geometry_;
  const bool checksums_;
  uint64_t committed_bytes_ = 0;
  uint64_t tails_begin_ = 0;  // a stretch of the file without holes: HasKeyTail's
  uint64_t tails_end_ = 0;
  HugePages huge_pages_;  // last: its thread ends before the mapping does
};

}  // namespace tpu_sync_native
