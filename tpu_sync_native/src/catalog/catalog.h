// What lies on storage, by key: one table in shared memory, of the daemon's making. Engines map it read-only
// and read tags; the rest of a cell, and what is in the private arrays beside, only the daemon understands.
//
//   cell   tag    64-bit hash of (namespace id, key), never 0; a hint: the record's full key decides
//          where  segment (20 bits), offset / 4096 (28), stored payload units (16)
//
// A bucket is four cells, one cache line; a key stands in one of two buckets. A cell is changed by single
// stores, where before tag when it is filled, tag first when it is emptied. Both buckets follow from the tag
// alone, so a cell can be moved to its other bucket to make room; a reader in between may miss it. No cell is
// promised: one that cannot be placed is a chunk that storage holds and nobody finds.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/keys.h"

namespace tpu_sync_native {

inline constexpr uint64_t kCatalogMagic = 0x31305441'4354564bULL;  // "KVTCAT01"
inline constexpr uint32_t kCatalogVersion = 1;
inline constexpr uint32_t kCatalogCells = 4;

struct alignas(64) CatalogBucket {
  std::atomic<uint64_t> tags[kCatalogCells];
  std::atomic<uint64_t> where[kCatalogCells];
};
static_assert(sizeof(CatalogBucket) == 64);

struct CatalogHeader {  // 4096 bytes at the file's start, then the buckets
  uint64_t magic;
  uint32_t version;
  uint32_t bucket_count;
  uint64_t bytes;    // of the file
  uint64_t boot_id;  // as in MetaHeader
  // 1 while the tier answers. 0: lookups find nothing on storage (down, or no storage was configured).
  std::atomic<uint32_t> serving;
};

// The tag of a key: seeded by its namespace's 16-byte id alone, so that every host computes the same. 0 for a
// key of a wrong length, which is never found and never added.
struct CatalogKey {
  uint64_t tag;
  uint64_t second;  // picks the other bucket; follows from tag
};
CatalogKey MakeCatalogKey(const uint8_t namespace_id[16], std::string_view key);

struct Where {
  uint32_t segment = 0;       // SegmentTable's number for it, from 1
  uint64_t offset = 0;        // of the record header
  uint64_t stored_bytes = 0;  // rounded up to kStorageUnit
};
inline constexpr uint32_t kSegmentsMax = (1u << 20) - 1;
uint64_t PackWhere(const Where& where);  // 0, which is nowhere, for what does not fit
Where UnpackWhere(uint64_t word);

// The reading half; engines have this only. Lock-free.
class CatalogReader {
 public:
  CatalogReader() = default;                           // finds nothing
  CatalogReader(const uint8_t* base, uint64_t bytes);  // throws std::invalid_argument naming the field
  bool serving() const;
  uint64_t boot_id() const;
  bool Has(const CatalogKey& key) const;
  void Prefetch(const CatalogKey& key) const;
  // The cell's word; 0 when there is none.
  uint64_t Find(const CatalogKey& key) const;

 private:
  const CatalogHeader* header_ = nullptr;
  const CatalogBucket* buckets_ = nullptr;
  uint32_t bucket_count_ = 0;  // taken once, when it was checked: the file cannot move a bound later
};

// Makes `catalog_fd` the catalog of a daemon without storage: one in which nothing is found. Throws as
// Catalog.
void MakeEmptyCatalog(int catalog_fd, uint64_t boot_id);

// The writing half. Thread-safe (one mutex inside, held for one change); Find, Touch and LastUse take no
// lock.
class Catalog {
 public:
  // Sizes catalog_fd, a fresh memfd made with MFD_ALLOW_SEALING, for `records_max` records, commits its
  // memory (so that the daemon pays for it, not the first engine that reads), seals and maps it. Throws
  // std::invalid_argument or std::system_error.
  Catalog(int catalog_fd, uint64_t records_max, uint64_t boot_id);
  ~Catalog();

  void SetServing(bool serving);
  // The word of the key's cell, 0 when there is none.
  uint64_t Find(const CatalogKey& key) const;
  void Prefetch(const CatalogKey& key) const;
  enum class Added : uint8_t { kNew, kKnown, kFull };
  // kKnown: the key has a cell already, which stays, unless it names a dead segment (then it is replaced:
  // kNew); or `where` itself names one. kFull: no cell, or `where` cannot be packed.
  Added Add(const CatalogKey& key, const Where& where);
  // The segment is about to go, or gone: its cells stay until they are swept, but another copy takes their
  // place. Ends when Sweep has come to its end.
  void MarkDead(uint32_t segment);
  void Remove(const CatalogKey& key, const Where& where);  // only if it says exactly that
  // Removes the cells of a segment, which it marks dead, in bounded steps: cells from `cursor` on, 0 first;
  // returns the next cursor, 0 at the end. From then on the number may be used again.
  uint64_t Sweep(uint32_t segment, uint64_t cursor, uint64_t cells_max, uint64_t* removed);
  // The same for many at once, sorted: one pass over the table.
  uint64_t Sweep(std::span<const uint32_t> segments, uint64_t cursor, uint64_t cells_max, uint64_t* removed);
  // Heat for reclaim: seconds (of the caller's clock) when the record was last promoted or leased.
  void Touch(const CatalogKey& key, uint32_t now_s) const;
  uint32_t LastUse(const CatalogKey& key) const;

  uint64_t records() const;
  uint64_t records_max() const;
  uint64_t memory_bytes() const;  // shared and private
  uint64_t refused_full() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
