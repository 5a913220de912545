// Leading keys of a batch over two tiers: this index, and one below that is asked for what is not here.
#pragma once

#include <cstdint>

#include "base/keys.h"
#include "index/probe.h"

namespace tpu_sync_native {

struct TierHits {
  uint32_t chunks = 0;       // leading keys that can be read, from either tier
  uint32_t host_chunks = 0;  // of these, committed here
};

struct NothingAhead {
  void operator()(uint32_t) const {}
};

// Goes over the keys from `first` on, as long as each is committed here, on its way up (promoting), or, when
// it is not here at all, below(i) says that the tier below has it. A key that is being stored is neither:
// nobody waits for a store. Counts from `first`. ahead(i) comes some keys before below(i), at most
// kProbeWindow: it may ask for the memory that below(i) will read.
template <typename Below, typename Ahead = NothingAhead>
inline TierHits LeadingTierHits(const MetaView& view, uint32_t ns, const KeyBatch& keys, uint32_t first,
                                Below below, Ahead ahead = {}) {
  TierHits hits;
  if (ns >= view.namespaces_max() || first >= keys.count) return hits;
  const uint32_t epoch = view.ns(ns).epoch.load(std::memory_order_acquire);
  if (epoch == 0) return hits;
  const uint64_t owner = OwnerWord(ns, epoch);
  HashedKey window[kProbeWindow];
  const auto make = [&](uint32_t i) {
    HashedKey* key = &window[i % kProbeWindow];
    if (!MakeKey(view, ns, keys.at(first + i), key)) return static_cast<HashedKey*>(nullptr);
    ahead(first + i);
    return key;
  };
  const auto visit = [&](uint32_t i, const HashedKey& key, uint32_t named) {
    SlotSnapshot snapshot;
    const uint32_t slot = FindKey(view, key, owner, named, &snapshot);
    if (slot == kNoSlot) return static_cast<bool>(below(first + i));
    const SlotState state = PlaceState(snapshot.place);
    hits.host_chunks += state == SlotState::kCommitted;
    return state == SlotState::kCommitted || state == SlotState::kPromoting;
  };
  hits.chunks = ProbeKeys(view, keys.count - first, make, visit);
  return hits;
}

}  // namespace tpu_sync_native
