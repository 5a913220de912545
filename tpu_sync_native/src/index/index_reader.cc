#include "index/index_reader.h"

#include "base/futex.h"
#include "index/probe.h"

namespace tpu_sync_native {

uint32_t IndexReader::LeadingHits(uint32_t ns, const KeyBatch& keys, SlotRef* refs) const {
  if (ns >= view_.namespaces_max()) return 0;
  const NamespaceRecord& record = view_.ns(ns);
  const uint32_t epoch = record.epoch.load(std::memory_order_acquire);
  const uint64_t chunk_bytes = record.chunk_bytes;
  if (epoch == 0 || chunk_bytes > view_.data_bytes()) return 0;
  const uint64_t owner = OwnerWord(ns, epoch);
  const uint64_t offset_max = view_.data_bytes() - chunk_bytes;

  HashedKey window[kProbeWindow];
  const auto make = [&](uint32_t i) {
    HashedKey* key = &window[i % kProbeWindow];
    return MakeKey(view_, ns, keys.at(i), key) ? key : nullptr;
  };
  return ProbeKeys(view_, keys.count, make, [&](uint32_t i, const HashedKey& key, uint32_t named) {
    SlotSnapshot snapshot;
    const uint32_t slot = FindKey(view_, key, owner, named, &snapshot);
    if (slot == kNoSlot || PlaceState(snapshot.place) != SlotState::kCommitted) return false;
    const uint64_t offset = PlaceOffset(snapshot.place);
    if (offset > offset_max) return false;
    if (refs != nullptr) refs[i] = {slot, snapshot.generation, offset};
    return true;
  });
}

SlotState IndexReader::StateOf(uint32_t slot, uint32_t generation) const {
  if (slot >= view_.slots_max()) return SlotState::kFree;
  const SlotRecord& record = view_.slot(slot);
  // The generation is raised before a slot changes hands, so if it is the same after the state was read, the
  // state is one of this generation.
  const SlotState state = PlaceState(record.place.load(std::memory_order_acquire));
  return record.generation.load(std::memory_order_acquire) == generation ? state : SlotState::kFree;
}

Readiness IndexReader::ReadinessOf(uint32_t slot, uint32_t generation) const {
  const SlotState state = StateOf(slot, generation);
  if (state == SlotState::kPromoting) return Readiness::kPending;
  const bool ready = state == SlotState::kReserved || state == SlotState::kCommitted;
  return ready ? Readiness::kReady : Readiness::kLost;
}

void IndexReader::AwaitPromotes(uint32_t promotes_ended, uint64_t deadline_ns) const {
  FutexWait(view_.header().promotes_ended, promotes_ended, deadline_ns);
}

bool IndexReader::Writable(uint32_t slot, uint32_t generation) const {
  return StateOf(slot, generation) == SlotState::kReserved;
}

uint64_t IndexReader::ChunkBytes(uint32_t slot, uint32_t generation, uint64_t offset) const {
  if (slot >= view_.slots_max()) return 0;
  const SlotRecord& record = view_.slot(slot);
  const uint64_t place = record.place.load(std::memory_order_acquire);
  const auto ns = static_cast<uint32_t>(record.owner.load(std::memory_order_acquire));
  // Neither changes within a generation, apart from the state.
  if (!Unchanged(slot, generation) || PlaceOffset(place) != offset) return 0;
  if (ns >= view_.namespaces_max() || offset >= view_.data_bytes()) return 0;
  const uint64_t chunk_bytes = view_.ns(ns).chunk_bytes;
  return chunk_bytes <= view_.data_bytes() - offset ? chunk_bytes : 0;
}

}  // namespace tpu_sync_native
