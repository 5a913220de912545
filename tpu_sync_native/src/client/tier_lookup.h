// Which leading keys of a batch are readable, from DRAM or from the tier below it; shared memory only.
#pragma once

#include "base/keys.h"
#include "catalog/catalog.h"
#include "index/index_reader.h"
#include "index/tier_hits.h"

namespace tpu_sync_native {

// A chunk counts when it is committed in DRAM, or on its way there from storage, or in the catalog while that
// serves. Lock-free.
TierHits LookupTiers(const IndexReader& index, const CatalogReader& catalog, uint32_t ns,
                     const KeyBatch& keys);

// The same of every key by itself: present[i] says whether keys.at(i) is readable. Returns how many are.
uint32_t EachPresent(const IndexReader& index, const CatalogReader& catalog, uint32_t ns,
                     const KeyBatch& keys, bool* present);

}  // namespace tpu_sync_native
