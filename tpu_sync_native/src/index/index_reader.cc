#include "index/index_reader.h"

#include <algorithm>

#include "index/probe.h"

namespace tpu_sync_native {

uint32_t IndexReader::LeadingHits(uint32_t ns, const KeyBatch& keys, SlotRef* refs) const {
  if (ns >= view_.namespaces_max()) return 0;
  const NamespaceRecord& record = view_.ns(ns);
  const uint32_t epoch = record.epoch.load(std::memory_order_acquire);
  if (epoch == 0 || record.chunk_bytes > view_.data_bytes()) return 0;
  const uint64_t owner = OwnerWord(ns, epoch);
  const uint64_t offset_max = view_.data_bytes() - record.chunk_bytes;

  HashedKey group[kProbeGroup];
  for (uint32_t start = 0; start < keys.count; start += kProbeGroup) {
    const uint32_t wanted = std::min(kProbeGroup, keys.count - start);
    uint32_t count = 0;
    while (count < wanted && MakeKey(view_, ns, keys.at(start + count), &group[count])) {
      PrefetchBucket(view_, group[count++]);
    }
    for (uint32_t i = 0; i < count; ++i) PrefetchRecord(view_, group[i]);
    for (uint32_t i = 0; i < count; ++i) {
      SlotSnapshot snapshot;
      const uint32_t slot = FindKey(view_, group[i], owner, &snapshot);
      if (slot == kNoSlot || PlaceState(snapshot.place) != SlotState::kCommitted) return start + i;
      const uint64_t offset = PlaceOffset(snapshot.place);
      if (offset > offset_max) return start + i;
      if (refs != nullptr) refs[start + i] = {slot, snapshot.generation, offset};
    }
    if (count < wanted) return start + count;  // a key of a wrong length
  }
  return keys.count;
}

bool IndexReader::Unchanged(uint32_t slot, uint32_t generation) const {
  if (slot >= view_.slots_max()) return false;
  const SlotRecord& record = view_.slot(slot);
  // The generation is raised before a slot changes hands, so if it is the same after the state was read, the
  // state is one of this generation.
  const SlotState state = PlaceState(record.place.load(std::memory_order_acquire));
  const bool held = state == SlotState::kReserved || state == SlotState::kCommitted;
  return held && record.generation.load(std::memory_order_acquire) == generation;
}

}  // namespace tpu_sync_native
