#include "index/index_writer.h"

#include <fcntl.h>
#include <sys/random.h>
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

// fallocate that tells shortage from anything else: a file system that cannot reserve is not a shortage.
int Allocate(int fd, uint64_t offset, uint64_t bytes) {
  int error = 0;
  do {
    error = fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error == EOPNOTSUPP ? 0 : error;
}

int Duplicate(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw std::system_error(errno, std::generic_category(), "meta_fd cannot be duplicated");
  return copy;
}

void FillRandom(uint8_t* bytes, size_t count) {
  if (getrandom(bytes, count, 0) != static_cast<ssize_t>(count)) {
    throw std::system_error(errno, std::generic_category(), "no random bytes");
  }
}

// Sizes the file, commits what every lookup touches, and writes the header, its magic last.
Mapping Format(int fd, const MetaGeometry& geometry, uint64_t boot_id) {
  ResizeFile(fd, 0, "the metadata");
  ResizeFile(fd, geometry.meta_bytes(), "the metadata");
  if (const int error = Allocate(fd, 0, geometry.slots_offset()); error != 0) {
    throw std::system_error(
        error, std::generic_category(),
        "no room for the metadata: " + std::to_string(geometry.slots_offset()) + " bytes");
  }
  Mapping mapping(fd, geometry.meta_bytes(), Mapping::Access::kReadWrite, "the metadata");
  auto* header = reinterpret_cast<MetaHeader*>(mapping.data());
  header->version = kMetaVersion;
  header->namespaces_max = geometry.namespaces_max;
  header->data_bytes = geometry.data_bytes;
  header->meta_bytes = geometry.meta_bytes();
  header->slab_bytes = geometry.slab_bytes;
  header->slots_max = geometry.slots_max;
  header->bucket_count = geometry.bucket_count;
  header->namespaces_offset = geometry.namespaces_offset();
  header->buckets_offset = geometry.buckets_offset();
  header->slots_offset = geometry.slots_offset();
  header->key_tails_offset = geometry.key_tails_offset();
  header->boot_id = boot_id;
  FillRandom(header->arena_id, sizeof(header->arena_id));
  header->magic = kMetaMagic;
  return mapping;
}

// One change of a slot record, seen by readers as a whole.
class RecordChange {
 public:
  explicit RecordChange(SlotRecord& record) : record_(record), seq_(record.seq.load(kRelaxed)) {
    record_.seq.store(seq_ + 1, kRelaxed);
  }
  ~RecordChange() { record_.seq.store(seq_ + 2, kRelease); }
  RecordChange(const RecordChange&) = delete;
  RecordChange& operator=(const RecordChange&) = delete;

 private:
  SlotRecord& record_;
  const uint32_t seq_;
};

uint32_t CellsUsed(const Bucket& bucket) {
  const TagMatches empty = MatchTags(bucket, 0);
  return kBucketCells - static_cast<uint32_t>(std::popcount(empty.half[0]) + std::popcount(empty.half[1]));
}

}  // namespace

IndexWriter::IndexWriter(int meta_fd, const MetaGeometry& geometry, uint64_t boot_id)
    : fd_(-1),
      mapping_(Format(meta_fd, geometry, boot_id)),
      view_(mapping_.data(), mapping_.bytes()),
      geometry_(geometry),
      committed_bytes_(geometry.slots_offset()),
      huge_pages_(mapping_.data(), mapping_.bytes()) {
  fd_ = Duplicate(meta_fd);
  huge_pages_.Committed(0, committed_bytes_);
}

IndexWriter::~IndexWriter() {
  if (fd_ >= 0) close(fd_);
}

bool IndexWriter::CommitRange(uint64_t offset, uint64_t bytes) {
  if (Allocate(fd_, offset, bytes) != 0) return false;
  committed_bytes_ += bytes;
  huge_pages_.Committed(offset, bytes);
  return true;
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

uint32_t IndexWriter::RaiseEpoch(uint32_t ns) {
  auto& record = const_cast<NamespaceRecord&>(view_.ns(ns));
  uint32_t epoch = record.epoch.load(kRelaxed) + 1;
  if (epoch == 0) epoch = 1;
  record.epoch.store(epoch, kRelease);
  return epoch;
}

void IndexWriter::SetEpochBelow(uint32_t ns, uint64_t word) {
  const_cast<NamespaceRecord&>(view_.ns(ns)).epoch_below.store(word, kRelease);
}

uint32_t IndexWriter::Reserve(uint32_t slot, uint64_t offset, uint64_t owner, const HashedKey& key,
                              SlotState state) {
  SlotRecord& target = record(slot);
  const uint32_t generation = target.generation.load(kRelaxed) + 1;
  RecordChange change(target);
  target.generation.store(generation, kRelease);
  target.place.store(PlaceWord(offset, state, key.bytes), kRelease);
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
  RecordChange change(target);
  target.place.store(PlaceWord(PlaceOffset(place), state, PlaceKeyBytes(place)), kRelease);
}

void IndexWriter::End(uint32_t slot, SlotState state) {
  SlotRecord& target = record(slot);
  const uint64_t place = target.place.load(kRelaxed);
  RecordChange change(target);
  target.generation.store(target.generation.load(kRelaxed) + 1, kRelease);
  target.place.store(PlaceWord(PlaceOffset(place), state, PlaceKeyBytes(place)), kRelease);
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
