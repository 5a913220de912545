// What the catalog says of keys of one namespace, as far as it may be believed now: cells outlive their
// segments, and segments their epochs.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include "storage/context.h"

namespace tpu_sync_native {

// For one call that looks up many keys; consecutive ones mostly lie in one segment.
class LiveCells {
 public:
  LiveCells(const StorageContext& context, const StorageNamespace& ns)
      : context_(context), ns_(ns), epoch_(ns.epoch.load()) {}

  // The word of the key's cell; 0: not on storage, as far as this host knows.
  uint64_t Find(std::string_view key) {
    const uint64_t word = context_.catalog->Find(MakeCatalogKey(ns_.id, key));
    if (word == 0) return 0;
    const uint32_t segment = UnpackWhere(word).segment;
    if (segment != last_) {
      last_ = segment;
      last_lives_ = Lives(segment);
    }
    return last_lives_ ? word : 0;
  }

 private:
  bool Lives(uint32_t id) const {
    const std::shared_ptr<Segment> segment = context_.segments->Get(id);
    return segment != nullptr && segment->identity.epoch == epoch_ &&
           segment->identity.chunk_bytes == ns_.chunk_bytes &&
           std::equal(std::begin(ns_.id), std::end(ns_.id), std::begin(segment->identity.namespace_id));
  }

  const StorageContext& context_;
  const StorageNamespace& ns_;
  const uint64_t epoch_;
  uint32_t last_ = 0;
  bool last_lives_ = false;
};

}  // namespace tpu_sync_native
