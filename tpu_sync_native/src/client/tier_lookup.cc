#include "client/tier_lookup.h"

namespace tpu_sync_native {

TierHits LookupTiers(const IndexReader& index, const CatalogReader& catalog, uint32_t ns,
                     const KeyBatch& keys) {
  // All in DRAM, or nothing below it: the common case pays for one table only.
  const uint32_t host = index.LongestPrefix(ns, keys);
  TierHits hits{host, host};
  if (host == keys.count || !catalog.serving() || ns >= index.view().namespaces_max()) return hits;
  const uint8_t* const id = index.view().ns(ns).id;
  CatalogKey window[kProbeWindow];
  const TierHits more = LeadingTierHits(
      index.view(), ns, keys, host, [&](uint32_t i) { return catalog.Has(window[i % kProbeWindow]); },
      [&](uint32_t i) {
        window[i % kProbeWindow] = MakeCatalogKey(id, keys.at(i));
        catalog.Prefetch(window[i % kProbeWindow]);
      });
  hits.chunks += more.chunks;
  hits.host_chunks += more.host_chunks;
  return hits;
}

uint32_t EachPresent(const IndexReader& index, const CatalogReader& catalog, uint32_t ns,
                     const KeyBatch& keys, bool* present) {
  uint32_t total = 0;
  for (uint32_t i = 0; i < keys.count; ++i) {
    const KeyBatch one{keys.bytes, keys.offsets + i, 1};
    present[i] = LookupTiers(index, catalog, ns, one).chunks != 0;
    total += present[i];
  }
  return total;
}

}  // namespace tpu_sync_native
