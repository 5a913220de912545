#include "index/index_reader.h"

#include "index/probe.h"

namespace tpu_sync_native {

uint32_t IndexReader::LeadingHits(uint32_t ns, const KeyBatch& keys, SlotRef* refs) const {
  if (ns >= view_.namespaces_max()) return 0;
  const NamespaceRecord& record = view_.ns(ns);
  const uint32_t epoch = record.epoch.load(std::memory_order_acquire);
  if (epoch == 0 || record.chunk_bytes > view_.data_bytes()) return 0;
  const uint64_t owner = OwnerWord(ns, epoch);
  const uint64_t offset_max = view_.data_bytes() - record.chunk_bytes;

  HashedKey window[kProbeWindow];
  const auto make = [&](uint32_t i) {
    HashedKey* key = &window[i % kProbeWindow];
    return MakeKey(view_, ns, keys.at(i), key) ? key : nullptr;
  };
  return ProbeKeys(view_, keys.count, make, [&](uint32_t i, const HashedKey& key) {
    SlotSnapshot snapshot;
    const uint32_t slot = FindKey(view_, key, owner, &snapshot);
    if (slot == kNoSlot || PlaceState(snapshot.place) != SlotState::kCommitted) return false;
    const uint64_t offset = PlaceOffset(snapshot.place);
    if (offset > offset_max) return false;
    if (refs != nullptr) refs[i] = {slot, snapshot.generation, offset};
    return true;
  });
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
