// Where a tag may stand in the catalog's table; shared by its reading and its writing half.
#pragma once

#include <cstdint>

#include "base/mix.h"
#include "catalog/catalog.h"

namespace tpu_sync_native {

inline constexpr uint64_t kCatalogHeaderBytes = 4096;
static_assert(sizeof(CatalogHeader) <= kCatalogHeaderBytes);
inline constexpr uint64_t kNoCell = ~uint64_t{0};

// The header's plain fields, to be copied before they are checked.
struct CatalogFields {
  uint64_t magic;
  uint32_t version;
  uint32_t bucket_count;
  uint64_t bytes;
};

inline uint64_t SecondOf(uint64_t tag) { return Mix(tag ^ 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93); }

struct BucketPair {
  uint32_t first, second;
};

inline BucketPair BucketsOf(const CatalogKey& key, uint32_t bucket_count) {
  return {Scale(static_cast<uint32_t>(key.tag >> 32), bucket_count),
          Scale(static_cast<uint32_t>(key.second >> 32), bucket_count)};
}

inline uint32_t SegmentOf(uint64_t where) { return static_cast<uint32_t>(where >> 44); }

// Number of the cell that holds the tag (bucket * kCatalogCells + cell), or kNoCell.
inline uint64_t FindCell(const CatalogBucket* buckets, uint32_t bucket_count, const CatalogKey& key) {
  if (bucket_count == 0 || key.tag == 0) return kNoCell;
  const BucketPair pair = BucketsOf(key, bucket_count);
  for (const uint32_t index : {pair.first, pair.second}) {
    for (uint32_t cell = 0; cell < kCatalogCells; ++cell) {
      if (buckets[index].tags[cell].load(std::memory_order_acquire) == key.tag) {
        return uint64_t{index} * kCatalogCells + cell;
      }
    }
  }
  return kNoCell;
}

}  // namespace tpu_sync_native
