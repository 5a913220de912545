// The tables of a metadata file, found through its header, which is checked once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tpu_sync_native/meta_layout.h"

namespace tpu_sync_native {

// What sizes a metadata file.
struct MetaGeometry {
  uint64_t data_bytes = 0;
  uint64_t slab_bytes = 0;
  uint32_t slots_max = 0;
  uint32_t namespaces_max = 0;
  uint32_t bucket_count = 0;

  uint32_t leases_max() const;
  uint64_t namespaces_offset() const;
  uint64_t sessions_offset() const;
  uint64_t leases_offset() const;
  uint64_t buckets_offset() const;
  uint64_t slots_offset() const;
  uint64_t key_tails_offset() const;
  uint64_t checksums_offset() const;
  uint64_t meta_bytes() const;
};

// Pointers into a mapped metadata file; copies are cheap. Borrows the mapping.
class MetaView {
 public:
  // Throws std::invalid_argument naming the field of the header that does not fit.
  MetaView(const std::byte* meta, uint64_t meta_bytes);

  const MetaHeader& header() const { return *header_; }
  // Taken from the header once, when it was checked: a later change of the file cannot move a bound.
  uint32_t slots_max() const { return slots_max_; }
  uint32_t namespaces_max() const { return namespaces_max_; }
  uint32_t bucket_count() const { return bucket_count_; }
  uint32_t sessions_max() const { return sessions_max_; }
  uint32_t leases_max() const { return leases_max_; }
  uint64_t data_bytes() const { return data_bytes_; }
  uint64_t seed(uint32_t i) const { return seeds_[i]; }  // of the key hash; two words of the arena id

  const NamespaceRecord& ns(uint32_t i) const { return namespaces_[i]; }
  // These two for the daemon alone; row numbers begin at 0.
  const SessionRow& session(uint32_t i) const { return sessions_[i]; }
  const WriteLeaseRow& lease(uint32_t i) const { return leases_[i]; }
  const Bucket& bucket(uint32_t i) const { return buckets_[i]; }
  const SlotRecord& slot(uint32_t i) const { return slots_[i]; }
  const KeyTail& key_tail(uint32_t i) const { return key_tails_[i]; }
  uint32_t checksum(uint32_t i) const {
    const auto byte = [&](int k) { return uint32_t{checksums_[i].bytes[k].load(std::memory_order_acquire)}; };
    return byte(0) | byte(1) << 8 | byte(2) << 16;
  }
  const ChecksumCell& checksum_cell(uint32_t i) const { return checksums_[i]; }

 private:
  const MetaHeader* header_;
  const NamespaceRecord* namespaces_;
  const SessionRow* sessions_;
  const WriteLeaseRow* leases_;
  const Bucket* buckets_;
  const SlotRecord* slots_;
  const KeyTail* key_tails_;
  const ChecksumCell* checksums_;
  uint64_t data_bytes_;
  uint64_t seeds_[2];
  uint32_t slots_max_;
  uint32_t namespaces_max_;
  uint32_t bucket_count_;
  uint32_t sessions_max_;
  uint32_t leases_max_;
};

}  // namespace tpu_sync_native
