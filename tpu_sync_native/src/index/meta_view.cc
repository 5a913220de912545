#include "index/meta_view.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/align.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kTableAlignment = 4096;

void Require(bool holds, const char* field, uint64_t value) {
  if (!holds) {
    throw std::invalid_argument(std::string("metadata: ") + field + " is " + std::to_string(value) +
                                ", which does not fit this version or file");
  }
}

// A table of `count` records at `offset` lies inside the file and is aligned.
void RequireTable(const char* field, uint64_t offset, uint64_t count, uint64_t record_bytes,
                  uint64_t meta_bytes) {
  // count is a 32-bit value and record_bytes is small: the product cannot wrap.
  const bool fits = offset >= sizeof(MetaHeader) && offset % kTableAlignment == 0 && offset <= meta_bytes &&
                    count * record_bytes <= meta_bytes - offset;
  Require(fits, field, offset);
}

template <typename Record>
const Record* TableAt(const std::byte* meta, uint64_t offset) {
  return reinterpret_cast<const Record*>(meta + offset);
}

}  // namespace

uint64_t MetaGeometry::namespaces_offset() const { return sizeof(MetaHeader); }

uint32_t MetaGeometry::leases_max() const { return std::min(slots_max, kLeaseRowsMax); }

uint64_t MetaGeometry::sessions_offset() const {
  return RoundUp(namespaces_offset() + uint64_t{namespaces_max} * sizeof(NamespaceRecord), kTableAlignment);
}

uint64_t MetaGeometry::leases_offset() const {
  return RoundUp(sessions_offset() + uint64_t{kSessionRowsMax} * sizeof(SessionRow), kTableAlignment);
}

uint64_t MetaGeometry::buckets_offset() const {
  return RoundUp(leases_offset() + uint64_t{leases_max()} * sizeof(WriteLeaseRow), kTableAlignment);
}

uint64_t MetaGeometry::slots_offset() const {
  return RoundUp(buckets_offset() + uint64_t{bucket_count} * sizeof(Bucket), kTableAlignment);
}

uint64_t MetaGeometry::key_tails_offset() const {
  return RoundUp(slots_offset() + uint64_t{slots_max} * sizeof(SlotRecord), kTableAlignment);
}

uint64_t MetaGeometry::checksums_offset() const {
  return RoundUp(key_tails_offset() + uint64_t{slots_max} * sizeof(KeyTail), kTableAlignment);
}

uint64_t MetaGeometry::meta_bytes() const {
  return RoundUp(checksums_offset() + uint64_t{slots_max} * sizeof(ChecksumCell), kTableAlignment);
}

MetaView::MetaView(const std::byte* meta, uint64_t meta_bytes) {
  Require(meta_bytes >= sizeof(MetaHeader), "file size", meta_bytes);
  MetaHeader header;
  // What lies behind is not geometry, and changes.
  std::memcpy(static_cast<void*>(&header), meta, offsetof(MetaHeader, promotes_ended));
  Require(header.magic == kMetaMagic, "magic", header.magic);
  Require(header.version == kMetaVersion, "version", header.version);
  Require(header.meta_bytes == meta_bytes, "meta_bytes", header.meta_bytes);
  Require(header.slots_max > 0 && header.slots_max < kNoSlot, "slots_max", header.slots_max);
  Require(header.bucket_count > 0, "bucket_count", header.bucket_count);
  Require(header.namespaces_max > 0, "namespaces_max", header.namespaces_max);
  Require(header.data_bytes > 0 && header.data_bytes % kPayloadUnit == 0, "data_bytes", header.data_bytes);
  RequireTable("namespaces_offset", header.namespaces_offset, header.namespaces_max, sizeof(NamespaceRecord),
               meta_bytes);
  RequireTable("sessions_offset", header.sessions_offset, header.sessions_max, sizeof(SessionRow),
               meta_bytes);
  RequireTable("leases_offset", header.leases_offset, header.leases_max, sizeof(WriteLeaseRow), meta_bytes);
  RequireTable("buckets_offset", header.buckets_offset, header.bucket_count, sizeof(Bucket), meta_bytes);
  RequireTable("slots_offset", header.slots_offset, header.slots_max, sizeof(SlotRecord), meta_bytes);
  RequireTable("key_tails_offset", header.key_tails_offset, header.slots_max, sizeof(KeyTail), meta_bytes);

  header_ = TableAt<MetaHeader>(meta, 0);
  const uint64_t checksums_offset = header_->checksums_offset;
  RequireTable("checksums_offset", checksums_offset, header.slots_max, sizeof(ChecksumCell), meta_bytes);
  namespaces_ = TableAt<NamespaceRecord>(meta, header.namespaces_offset);
  sessions_ = TableAt<SessionRow>(meta, header.sessions_offset);
  leases_ = TableAt<WriteLeaseRow>(meta, header.leases_offset);
  buckets_ = TableAt<Bucket>(meta, header.buckets_offset);
  slots_ = TableAt<SlotRecord>(meta, header.slots_offset);
  key_tails_ = TableAt<KeyTail>(meta, header.key_tails_offset);
  checksums_ = TableAt<ChecksumCell>(meta, checksums_offset);
  data_bytes_ = header.data_bytes;
  slots_max_ = header.slots_max;
  namespaces_max_ = header.namespaces_max;
  bucket_count_ = header.bucket_count;
  sessions_max_ = header.sessions_max;
  leases_max_ = header.leases_max;
  std::memcpy(seeds_, header.arena_id, sizeof(seeds_));
}

}  // namespace tpu_sync_native
