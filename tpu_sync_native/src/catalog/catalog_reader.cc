#include <cstring>
#include <stdexcept>
#include <string>

#include "base/mix.h"
#include "catalog/catalog.h"
#include "catalog/cells.h"
#include "tpu_sync_native/meta_layout.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kUnit = 4096;
constexpr uint32_t kOffsetBits = 28;
constexpr uint32_t kUnitsBits = 16;

void Require(bool holds, const char* field, uint64_t value) {
  if (!holds) {
    throw std::invalid_argument(std::string("catalog: ") + field + " is " + std::to_string(value) +
                                ", which does not fit this version or file");
  }
}

}  // namespace

CatalogKey MakeCatalogKey(const uint8_t namespace_id[16], std::string_view key) {
  if (key.size() < kKeyBytesMin || key.size() > kKeyBytesMax) return {0, 0};
  constexpr uint64_t kOdd[] = {0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
                               0xd6e8feb86659fd93};
  uint64_t seeds[2];
  std::memcpy(seeds, namespace_id, sizeof(seeds));
  uint64_t words[kKeyBytesMax / 8] = {};
  if (key.size() == 32) {  // the common length, copied without a call
    std::memcpy(words, key.data(), 32);
  } else {
    std::memcpy(words, key.data(), key.size());
  }
  // Every word meets a constant before it is multiplied: structured keys are not to meet structured factors.
  uint64_t hash = Mix(words[0] ^ seeds[0] ^ kOdd[0], words[1] ^ seeds[1] ^ kOdd[1]);
  hash = Mix(hash ^ words[2] ^ kOdd[2], words[3] ^ seeds[1] ^ kOdd[3]);
  if (key.size() > 32) {
    hash = Mix(hash ^ words[4] ^ kOdd[0], words[5] ^ seeds[0] ^ kOdd[2]);
    hash = Mix(hash ^ words[6] ^ kOdd[1], words[7] ^ seeds[1] ^ kOdd[3]);
  }
  uint64_t tag = Mix(hash ^ kOdd[2], key.size() ^ kOdd[3]);
  tag += tag == 0;
  return {tag, SecondOf(tag)};
}

uint64_t PackWhere(const Where& where) {
  const uint64_t unit = where.offset / kUnit;
  const uint64_t units = where.stored_bytes / kUnit;
  if (where.segment == 0 || where.segment > kSegmentsMax || where.offset % kUnit != 0 ||
      where.stored_bytes % kUnit != 0 || unit >> kOffsetBits != 0 || units >> kUnitsBits != 0) {
    return 0;
  }
  return uint64_t{where.segment} << (kOffsetBits + kUnitsBits) | unit << kUnitsBits | units;
}

Where UnpackWhere(uint64_t word) {
  Where where;
  where.segment = SegmentOf(word);
  where.offset = (word >> kUnitsBits & ((uint64_t{1} << kOffsetBits) - 1)) * kUnit;
  where.stored_bytes = (word & ((uint64_t{1} << kUnitsBits) - 1)) * kUnit;
  return where;
}

CatalogReader::CatalogReader(const uint8_t* base, uint64_t bytes) {
  Require(bytes >= kCatalogHeaderBytes, "file size", bytes);
  CatalogFields fields;
  std::memcpy(&fields, base, sizeof(fields));
  Require(fields.magic == kCatalogMagic, "magic", fields.magic);
  Require(fields.version == kCatalogVersion, "version", fields.version);
  Require(fields.bytes == bytes, "bytes", fields.bytes);
  // bucket_count is a 32-bit value: the product cannot wrap.
  Require(kCatalogHeaderBytes + uint64_t{fields.bucket_count} * sizeof(CatalogBucket) == bytes,
          "bucket_count", fields.bucket_count);
  header_ = reinterpret_cast<const CatalogHeader*>(base);
  buckets_ = reinterpret_cast<const CatalogBucket*>(base + kCatalogHeaderBytes);
  bucket_count_ = fields.bucket_count;
}

bool CatalogReader::serving() const {
  return bucket_count_ != 0 && header_->serving.load(std::memory_order_acquire) == 1;
}

uint64_t CatalogReader::boot_id() const { return header_ == nullptr ? 0 : header_->boot_id; }

void CatalogReader::Prefetch(const CatalogKey& key) const {
  if (bucket_count_ == 0) return;
  __builtin_prefetch(&buckets_[Scale(static_cast<uint32_t>(key.tag >> 32), bucket_count_)]);
  __builtin_prefetch(&buckets_[Scale(static_cast<uint32_t>(key.second >> 32), bucket_count_)]);
}

bool CatalogReader::Has(const CatalogKey& key) const {
  return FindCell(buckets_, bucket_count_, key) != kNoCell;
}

uint64_t CatalogReader::Find(const CatalogKey& key) const {
  const uint64_t cell = FindCell(buckets_, bucket_count_, key);
  if (cell == kNoCell) return 0;
  const CatalogBucket& bucket = buckets_[cell / kCatalogCells];
  const uint64_t word = bucket.where[cell % kCatalogCells].load(std::memory_order_acquire);
  // A cell is filled again only after it was emptied: if the tag still stands, the word was the tag's.
  return bucket.tags[cell % kCatalogCells].load(std::memory_order_relaxed) == key.tag ? word : 0;
}

}  // namespace tpu_sync_native
