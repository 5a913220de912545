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
  uint64_t Find(std::string_view key) { return Find(MakeCatalogKey(ns_.id, key)); }

  // Words of the keys from `first` on, up to the first that is 0, which is written too; how many are not.
  uint32_t FindRun(const KeyBatch& keys, uint32_t first, uint64_t* words) {
    CatalogKey group[kGroup];
    for (uint32_t begin = first; begin < keys.count; begin += kGroup) {
      const uint32_t count = std::min(kGroup, keys.count - begin);
      for (uint32_t i = 0; i < count; ++i) {
        group[i] = MakeCatalogKey(ns_.id, keys.at(begin + i));
        context_.catalog->Prefetch(group[i]);
      }
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t at = begin + i - first;
        words[at] = Find(group[i]);
        if (words[at] == 0) return at;
      }
    }
    return keys.count - std::min(first, keys.count);
  }

 private:
  static constexpr uint32_t kGroup = 16;  // keys whose cells are on their way from memory at once

  uint64_t Find(const CatalogKey& key) {
    const uint64_t word = context_.catalog->Find(key);
    if (word == 0) return 0;
    const uint32_t segment = UnpackWhere(word).segment;
    if (segment != last_) {
      last_ = segment;
      last_lives_ = Lives(segment);
    }
    return last_lives_ ? word : 0;
  }

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
