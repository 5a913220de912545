#include "catalog/catalog.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "base/align.h"
#include "base/mapping.h"
#include "base/zeroed_array.h"
#include "catalog/cells.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace tpu_sync_native {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kRelease = std::memory_order_release;

// Cells are made for this many tenths of the records, so that moving finds room for nearly all of them.
constexpr uint64_t kLoadTenths = 9;
// Buckets looked at for one insertion: both of the key's, their cells' other ones, and once more.
constexpr uint32_t kNodesMax = 2 + 8 + 32;
// A reader takes the count for a 32-bit one, and 2^31 buckets are 128 GiB.
constexpr uint64_t kBucketsMax = uint64_t{1} << 31;

uint32_t BucketCount(uint64_t records_max) {
  if (records_max == 0 || records_max > kBucketsMax) {
    throw std::invalid_argument("records_max is " + std::to_string(records_max) + ", allowed are 1 to " +
                                std::to_string(kBucketsMax));
  }
  return static_cast<uint32_t>(DivideUp(records_max * 10, kCatalogCells * kLoadTenths));
}

// Sizes, commits and seals the file, and writes the header, its magic last.
Mapping Format(int fd, uint32_t bucket_count, uint64_t boot_id) {
  const uint64_t bytes = kCatalogHeaderBytes + uint64_t{bucket_count} * sizeof(CatalogBucket);
  ResizeFile(fd, bytes, "the catalog");
  if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP) {
    throw std::system_error(errno, std::generic_category(),
                            "no room for the catalog: " + std::to_string(bytes) + " bytes");
  }
  Mapping mapping(fd, bytes, Mapping::Access::kReadWrite, "catalog_fd");
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    throw std::invalid_argument(
        "catalog_fd: cannot be sealed against shrinking; it must be a fresh memfd made with "
        "MFD_ALLOW_SEALING");
  }
  // No second writer, whoever gets hold of the file; older kernels do without.
  (void)fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  auto* header = reinterpret_cast<CatalogHeader*>(mapping.data());
  header->version = kCatalogVersion;
  header->bucket_count = bucket_count;
  header->bytes = bytes;
  header->boot_id = boot_id;
  header->magic = kCatalogMagic;
  return mapping;
}

}  // namespace

void MakeEmptyCatalog(int catalog_fd, uint64_t boot_id) { Format(catalog_fd, 0, boot_id); }

struct Catalog::Impl {
  Impl(int fd, uint64_t max, uint64_t boot_id)
      : records_max(max),
        bucket_count(BucketCount(max)),
        mapping(Format(fd, bucket_count, boot_id)),
        reader(reinterpret_cast<const uint8_t*>(mapping.data()), mapping.bytes()),
        buckets(reinterpret_cast<CatalogBucket*>(mapping.data() + kCatalogHeaderBytes)),
        last_use(uint64_t{bucket_count} * kCatalogCells),
        dead((kSegmentsMax + 1) / 64) {}

  std::atomic<uint64_t>& tag(uint64_t cell) const {
    return buckets[cell / kCatalogCells].tags[cell % kCatalogCells];
  }
  std::atomic<uint64_t>& where(uint64_t cell) const {
    return buckets[cell / kCatalogCells].where[cell % kCatalogCells];
  }
  std::atomic_ref<uint32_t> heat(uint64_t cell) { return std::atomic_ref<uint32_t>(last_use[cell]); }

  bool IsDead(uint32_t segment) const { return dead[segment / 64] >> (segment % 64) & 1; }
  void SetDead(uint32_t segment, bool value) {
    if (segment > kSegmentsMax) return;
    const uint64_t bit = uint64_t{1} << (segment % 64);
    dead[segment / 64] = value ? dead[segment / 64] | bit : dead[segment / 64] & ~bit;
  }

  void Fill(uint64_t cell, uint64_t tag_, uint64_t where_) {
    where(cell).store(where_, kRelease);
    tag(cell).store(tag_, kRelease);
  }
  void Empty(uint64_t cell) { tag(cell).store(0, kRelease); }

  uint64_t FreeCell(uint32_t bucket) const {
    for (uint32_t i = 0; i < kCatalogCells; ++i) {
      if (buckets[bucket].tags[i].load(kRelaxed) == 0) return uint64_t{bucket} * kCatalogCells + i;
    }
    return kNoCell;
  }
  // The bucket in which the cell's key may stand too.
  uint32_t OtherBucket(uint64_t cell) const {
    const uint64_t its_tag = tag(cell).load(kRelaxed);
    const BucketPair pair = BucketsOf({its_tag, SecondOf(its_tag)}, bucket_count);
    return cell / kCatalogCells == pair.first ? pair.second : pair.first;
  }
  // There first, then not here: a reader may see it twice.
  void Move(uint64_t from, uint64_t to) {
    Fill(to, tag(from).load(kRelaxed), where(from).load(kRelaxed));
    heat(to).store(heat(from).load(kRelaxed), kRelaxed);
    Empty(from);
  }

  uint64_t CellFor(const CatalogKey& key);
  uint64_t MakeRoom(const BucketPair& pair);

  const uint64_t records_max;
  const uint32_t bucket_count;
  Mapping mapping;
  CatalogReader reader;
  CatalogBucket* const buckets;
  ZeroedArray<uint32_t> last_use;  // per cell, seconds
  std::mutex mutex;
  std::vector<uint64_t> dead;  // one bit a segment; guarded by mutex
  std::atomic<uint64_t> records{0}, refused_full{0};
};

// An empty cell of the key's buckets, emptied for it if need be; kNoCell when there is none to be had.
uint64_t Catalog::Impl::CellFor(const CatalogKey& key) {
  const BucketPair pair = BucketsOf(key, bucket_count);
  uint64_t cell = FreeCell(pair.first);
  if (cell == kNoCell) cell = FreeCell(pair.second);
  return cell != kNoCell ? cell : MakeRoom(pair);
}

// Breadth first over the buckets that can be reached by moving cells to their other bucket, until one has
// room; then the cells on the way move up by one, the last first. Cells of dead segments do not move: a sweep
// that has passed their new place would never see them.
uint64_t Catalog::Impl::MakeRoom(const BucketPair& pair) {
  struct Node {
    uint32_t bucket;
    uint32_t parent;
    uint64_t cell;  // of the parent's bucket, whose other bucket this is
  };
  Node nodes[kNodesMax];
  uint32_t count = 2;
  nodes[0] = {pair.first, 0, kNoCell};
  nodes[1] = {pair.second, 1, kNoCell};
  for (uint32_t n = 0; n < count; ++n) {
    for (uint32_t i = 0; i < kCatalogCells; ++i) {
      uint64_t cell = uint64_t{nodes[n].bucket} * kCatalogCells + i;
      if (IsDead(SegmentOf(where(cell).load(kRelaxed)))) continue;
      const uint32_t other = OtherBucket(cell);
      uint64_t room = FreeCell(other);
      if (room == kNoCell) {
        if (count < kNodesMax) nodes[count++] = {other, n, cell};
        continue;
      }
      for (uint32_t at = n;; at = nodes[at].parent) {
        Move(cell, room);
        if (nodes[at].cell == kNoCell) return cell;
        room = cell;
        cell = nodes[at].cell;
      }
    }
  }
  return kNoCell;
}

Catalog::Catalog(int catalog_fd, uint64_t records_max, uint64_t boot_id)
    : impl_(std::make_unique<Impl>(catalog_fd, records_max, boot_id)) {}

Catalog::~Catalog() { SetServing(false); }

void Catalog::SetServing(bool serving) {
  reinterpret_cast<CatalogHeader*>(impl_->mapping.data())->serving.store(serving ? 1 : 0, kRelease);
}

uint64_t Catalog::Find(const CatalogKey& key) const { return impl_->reader.Find(key); }
void Catalog::Prefetch(const CatalogKey& key) const { impl_->reader.Prefetch(key); }

Catalog::Added Catalog::Add(const CatalogKey& key, const Where& where) {
  const uint64_t word = PackWhere(where);
  const std::lock_guard lock(impl_->mutex);
  if (word != 0 && key.tag != 0) {
    if (impl_->IsDead(where.segment)) return Added::kKnown;
    uint64_t cell = FindCell(impl_->buckets, impl_->bucket_count, key);
    if (cell != kNoCell) {
      if (!impl_->IsDead(SegmentOf(impl_->where(cell).load(kRelaxed)))) return Added::kKnown;
      impl_->Empty(cell);
      impl_->Fill(cell, key.tag, word);
      return Added::kNew;
    }
    if (impl_->records.load(kRelaxed) < impl_->records_max) cell = impl_->CellFor(key);
    if (cell != kNoCell) {
      impl_->heat(cell).store(0, kRelaxed);
      impl_->Fill(cell, key.tag, word);
      impl_->records.fetch_add(1, kRelaxed);
      return Added::kNew;
    }
  }
  impl_->refused_full.fetch_add(1, kRelaxed);
  return Added::kFull;
}

void Catalog::MarkDead(uint32_t segment) {
  const std::lock_guard lock(impl_->mutex);
  impl_->SetDead(segment, true);
}

void Catalog::Remove(const CatalogKey& key, const Where& where) {
  const uint64_t word = PackWhere(where);
  const std::lock_guard lock(impl_->mutex);
  const uint64_t cell = FindCell(impl_->buckets, impl_->bucket_count, key);
  if (cell == kNoCell || word == 0 || impl_->where(cell).load(kRelaxed) != word) return;
  impl_->Empty(cell);
  impl_->records.fetch_sub(1, kRelaxed);
}

uint64_t Catalog::Sweep(uint32_t segment, uint64_t cursor, uint64_t cells_max, uint64_t* removed) {
  return Sweep({&segment, 1}, cursor, cells_max, removed);
}

uint64_t Catalog::Sweep(std::span<const uint32_t> segments, uint64_t cursor, uint64_t cells_max,
                        uint64_t* removed) {
  const uint64_t cells = uint64_t{impl_->bucket_count} * kCatalogCells;
  const std::lock_guard lock(impl_->mutex);
  for (const uint32_t segment : segments) impl_->SetDead(segment, true);
  const uint64_t end = cursor >= cells || cells_max > cells - cursor ? cells : cursor + cells_max;
  for (uint64_t cell = cursor; cell < end; ++cell) {
    if (impl_->tag(cell).load(kRelaxed) == 0) continue;
    const uint32_t segment = SegmentOf(impl_->where(cell).load(kRelaxed));
    if (!impl_->IsDead(segment) || !std::binary_search(segments.begin(), segments.end(), segment)) continue;
    impl_->Empty(cell);
    impl_->records.fetch_sub(1, kRelaxed);
    if (removed != nullptr) ++*removed;
  }
  if (end < cells) return end;
  for (const uint32_t segment : segments) impl_->SetDead(segment, false);
  return 0;
}

void Catalog::Touch(const CatalogKey& key, uint32_t now_s) const {
  const uint64_t cell = FindCell(impl_->buckets, impl_->bucket_count, key);
  if (cell != kNoCell) impl_->heat(cell).store(now_s, kRelaxed);
}

uint32_t Catalog::LastUse(const CatalogKey& key) const {
  const uint64_t cell = FindCell(impl_->buckets, impl_->bucket_count, key);
  return cell == kNoCell ? 0 : impl_->heat(cell).load(kRelaxed);
}

uint64_t Catalog::records() const { return impl_->records.load(kRelaxed); }
uint64_t Catalog::records_max() const { return impl_->records_max; }
uint64_t Catalog::memory_bytes() const {
  return impl_->mapping.bytes() + impl_->last_use.size() * sizeof(uint32_t) +
         impl_->dead.size() * sizeof(uint64_t);
}
uint64_t Catalog::refused_full() const { return impl_->refused_full.load(kRelaxed); }

}  // namespace tpu_sync_native
