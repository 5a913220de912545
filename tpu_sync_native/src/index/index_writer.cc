#include "index/index_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <system_error>

#include "base/align.h"
#include "base/futex.h"
#include "index/probe.h"

namespace tpu_sync_native {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kRelease = std::memory_order_release;

int Duplicate(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw std::system_error(errno, std::generic_category(), "meta_fd cannot be duplicated");
  return copy;
}

// Where what is written of the file from `offset` on ends; `offset` itself in a hole.
uint64_t DataEnd(int fd, uint64_t offset) {
  const off_t hole = lseek(fd, static_cast<off_t>(offset), SEEK_HOLE);
  return hole < 0 ? offset : static_cast<uint64_t>(hole);
}

// One change of a slot record, seen by readers as a whole. A record that a dead writer left odd is even again
// afterwards.
class RecordChange {
 public:
  explicit RecordChange(SlotRecord& record) : record_(record), odd_(record.seq.load(kRelaxed) | 1) {
    record_.seq.store(odd_, kRelaxed);
  }
  ~RecordChange() { record_.seq.store(odd_ + 1, kRelease); }
  RecordChange(const RecordChange&) = delete;
  RecordChange& operator=(const RecordChange&) = delete;

 private:
  SlotRecord& record_;
  const uint32_t odd_;
};

uint32_t CellsUsed(const Bucket& bucket) {
  const TagMatches empty = MatchTags(bucket, 0);
  return kBucketCells - static_cast<uint32_t>(std::popcount(empty.half[0]) + std::popcount(empty.half[1]));
}

}  // namespace

IndexWriter::IndexWriter(int meta_fd, const MetaGeometry& geometry, const Life& life)
    : fd_(-1),
      mapping_(life.keep ? KeepMetaFile(meta_fd, geometry, life.boot_id, life.host)
                         : MakeMetaFile(meta_fd, geometry, life.boot_id, life.host)),
      view_(mapping_.data(), mapping_.bytes()),
      geometry_(geometry),
      checksums_(life.checksums),
      committed_bytes_(geometry.slots_offset()),
      huge_pages_(mapping_.data(), mapping_.bytes()) {
  fd_ = Duplicate(meta_fd);
  huge_pages_.Committed(0, committed_bytes_);
  PrepareChecksums();
}

// All of their memory, since that is little, or none.
void IndexWriter::PrepareChecksums() {
  const uint64_t offset = geometry_.checksums_offset();
  const uint64_t bytes = geometry_.meta_bytes() - offset;
  int error = 0;
  if (checksums_) {
    error = AllocateFile(fd_, offset, bytes);
    committed_bytes_ += bytes;
  } else {
    constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    error = fallocate(fd_, kPunch, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    if (error == EOPNOTSUPP) {  // a file that was made anew has none
      for (uint32_t i = 0; i < view_.slots_max(); ++i) {
        if (view_.checksum(i) != 0) SetChecksum(i, 0);
      }
      error = 0;
    }
  }
  if (error != 0) throw std::system_error(error, std::generic_category(), "no room for the checksums");
}

IndexWriter::~IndexWriter() {
  if (fd_ >= 0) close(fd_);
}

void IndexWriter::SetChecksum(uint32_t slot, uint32_t word) {
  auto& cell = const_cast<ChecksumCell&>(view_.checksum_cell(slot));
  for (int i = 0; i < 3; ++i) cell.bytes[i].store(static_cast<uint8_t>(word >> (8 * i)), kRelease);
}

bool IndexWriter::CommitRange(uint64_t offset, uint64_t bytes) {
  if (AllocateFile(fd_, offset, bytes) != 0) return false;
  NoteRange(offset, bytes);
  return true;
}

void IndexWriter::NoteRange(uint64_t offset, uint64_t bytes) {
  committed_bytes_ += bytes;
  huge_pages_.Committed(offset, bytes);
}

uint32_t IndexWriter::FindRecords(uint32_t first_slot, uint32_t count) {
  const uint64_t offset = geometry_.slots_offset() + uint64_t{first_slot} * sizeof(SlotRecord);
  const uint64_t bytes = DataEnd(fd_, offset) - offset;
  const auto found = static_cast<uint32_t>(std::min<uint64_t>(count, bytes / sizeof(SlotRecord)));
  if (found > 0) NoteRange(offset, found * sizeof(SlotRecord));
  return found;
}

bool IndexWriter::HasKeyTail(uint32_t slot) {
  const uint64_t begin = geometry_.key_tails_offset() + uint64_t{slot} * sizeof(KeyTail);
  const uint64_t end = begin + sizeof(KeyTail);
  if (begin < tails_begin_ || end > tails_end_) {
    tails_begin_ = begin;
    tails_end_ = DataEnd(fd_, begin);
  }
  return end <= tails_end_;
}

bool IndexWriter::CommitRecords(uint32_t first_slot, uint32_t count) {
  return CommitRange(geometry_.slots_offset() + uint64_t{first_slot} * sizeof(SlotRecord),
                     uint64_t{count} * sizeof(SlotRecord));
}

bool IndexWriter::CommitKeyTails(uint32_t first_slot, uint32_t count) {
  return CommitRange(geometry_.key_tails_offset() + uint64_t{first_slot} * sizeof(KeyTail),
                     uint64_t{count} * sizeof(KeyTail));
}

void IndexWriter::OpenNamespace(uint32_t ns, std::string_view id, uint64_t chunk_bytes) {
  auto& record = const_cast<NamespaceRecord&>(view_.ns(ns));
  record.chunk_bytes = chunk_bytes;
  std::memcpy(record.id, id.data(), std::min(id.size(), sizeof(record.id)));
  record.epoch.store(1, kRelease);  // publishes the record
}

void IndexWriter::ReplaceNamespace(uint32_t ns, std::string_view id, uint64_t chunk_bytes, uint32_t epoch) {
  auto& record = const_cast<NamespaceRecord&>(view_.ns(ns));
  // Cut short anywhere it is the row of a namespace without chunks, under an id that no other row has.
  std::memset(record.id, 0, sizeof(record.id));
  std::memcpy(record.id, &ns, sizeof(ns));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  record.epoch_below.store(0, kRelaxed);
  record.clearing_to.store(0, kRelaxed);
  record.chunk_bytes = chunk_bytes;
  record.epoch.store(epoch, kRelease);
  std::memcpy(record.id, id.data(), std::min(id.size(), sizeof(record.id)));
}

void IndexWriter::SetEpoch(uint32_t ns, uint32_t epoch) {
  const_cast<NamespaceRecord&>(view_.ns(ns)).epoch.store(epoch, kRelease);
}

void IndexWriter::SetClearingTo(uint32_t ns, uint32_t epoch) {
  const_cast<NamespaceRecord&>(view_.ns(ns)).clearing_to.store(epoch, kRelease);
}

void IndexWriter::SetEpochBelow(uint32_t ns, uint64_t word) {
  const_cast<NamespaceRecord&>(view_.ns(ns)).epoch_below.store(word, kRelease);
}

void IndexWriter::SetFloor(uint32_t ns, uint64_t bytes) {
  const_cast<NamespaceRecord&>(view_.ns(ns)).floor_bytes.store(bytes, kRelease);
}

uint32_t IndexWriter::Reserve(uint32_t slot, uint64_t offset, uint64_t owner, const HashedKey& key,
                              SlotState state, uint32_t lease) {
  if (checksums_) SetChecksum(slot, 0);
  SlotRecord& target = record(slot);
  const uint32_t generation = target.generation.load(kRelaxed) + 1;
  RecordChange change(target);
  target.generation.store(generation, kRelease);
  target.place.store(PlaceWord(offset, state, key.bytes, lease), kRelease);
  target.owner.store(owner, kRelease);
  for (uint32_t i = 0; i < kInlineWords; ++i) target.key[i].store(key.words[i], kRelease);
  if (key.bytes > kKeyBytesInline) {
    auto& tail = const_cast<KeyTail&>(view_.key_tail(slot));
    for (uint32_t i = 0; i < 3; ++i) tail.key[i].store(key.words[kInlineWords + i], kRelease);
  }
  return generation;
}

void IndexWriter::SetState(uint32_t slot, SlotState state) {
  SlotRecord& target = record(slot);
  const uint64_t place = target.place.load(kRelaxed);
  const uint32_t lease = state == SlotState::kQuarantined ? PlaceLease(place) : 0;
  RecordChange change(target);
  target.place.store(PlaceWord(PlaceOffset(place), state, PlaceKeyBytes(place), lease), kRelease);
}

void IndexWriter::End(uint32_t slot, SlotState state) {
  SlotRecord& target = record(slot);
  const uint64_t place = target.place.load(kRelaxed);
  RecordChange change(target);
  target.generation.store(target.generation.load(kRelaxed) + 1, kRelease);
  target.place.store(PlaceWord(PlaceOffset(place), state, PlaceKeyBytes(place)), kRelease);
}

void IndexWriter::OpenSessionRow(uint32_t row, const SessionRow& session) {
  auto& target = const_cast<SessionRow&>(view_.session(row));
  target.boot_id = session.boot_id;
  target.group = session.group;
  target.start = session.start;
  target.space = session.space;
  target.pid = session.pid;
  target.session.store(session.session.load(kRelaxed), kRelease);
}

void IndexWriter::CloseSessionRow(uint32_t row) {
  const_cast<SessionRow&>(view_.session(row)).session.store(0, kRelease);
}

void IndexWriter::OpenLeaseRow(uint32_t row, uint64_t lease, uint64_t session, uint64_t group) {
  auto& target = const_cast<WriteLeaseRow&>(view_.lease(row));
  target.session = session;
  target.group = group;
  target.lease.store(lease, kRelease);
}

void IndexWriter::CloseLeaseRow(uint32_t row) {
  const_cast<WriteLeaseRow&>(view_.lease(row)).lease.store(0, kRelease);
}

void IndexWriter::NoteLastLease(uint64_t lease) {
  const_cast<MetaHeader&>(view_.header()).last_lease.store(lease, kRelease);
}

void IndexWriter::NoteLastSession(uint64_t session) {
  const_cast<MetaHeader&>(view_.header()).last_session.store(session, kRelease);
}

void IndexWriter::ClearBuckets() {
  for (uint32_t i = 0; i < view_.bucket_count(); ++i) {
    for (auto& tag : bucket(i).tags) {
      if (tag.load(kRelaxed) != 0) tag.store(0, kRelease);
    }
  }
}

void IndexWriter::WakePromoteWaiters() {
  auto& ended = const_cast<MetaHeader&>(view_.header()).promotes_ended;
  ended.fetch_add(1, kRelease);
  FutexWake(ended, INT_MAX);
}

bool IndexWriter::Insert(const HashedKey& key, uint32_t slot) {
  // The first bucket unless it is fairly full: most lookups then need no second one.
  constexpr uint32_t kFairlyFull = 6;
  const uint32_t used = CellsUsed(bucket(key.buckets[0]));
  Bucket* target = &bucket(key.buckets[0]);
  if (used >= kFairlyFull && CellsUsed(bucket(key.buckets[1])) < used) target = &bucket(key.buckets[1]);
  for (uint32_t cell = 0; cell < kBucketCells; ++cell) {
    if (target->tags[cell].load(kRelaxed) != 0) continue;
    target->slots[cell].store(slot, kRelease);
    target->tags[cell].store(key.tag, kRelease);
    return true;
  }
  return false;
}

bool IndexWriter::Remove(const HashedKey& key, uint32_t slot) {
  for (const uint32_t index : key.buckets) {
    Bucket& target = bucket(index);
    for (uint32_t cell = 0; cell < kBucketCells; ++cell) {
      if (target.tags[cell].load(kRelaxed) != key.tag || target.slots[cell].load(kRelaxed) != slot) continue;
      target.tags[cell].store(0, kRelease);
      return true;
    }
  }
  return false;
}

uint64_t IndexWriter::KeyOf(uint32_t slot, HashedKey* key) const {
  const SlotRecord& source = view_.slot(slot);
  key->bytes = PlaceKeyBytes(source.place.load(kRelaxed));
  for (uint32_t i = 0; i < kInlineWords; ++i) key->words[i] = source.key[i].load(kRelaxed);
  const bool tail = key->bytes > kKeyBytesInline;
  for (uint32_t i = 0; i < 3; ++i) {
    key->words[kInlineWords + i] = tail ? view_.key_tail(slot).key[i].load(kRelaxed) : 0;
  }
  const uint64_t owner = source.owner.load(kRelaxed);
  HashKey(view_, static_cast<uint32_t>(owner), key);
  return owner;
}

}  // namespace tpu_sync_native
