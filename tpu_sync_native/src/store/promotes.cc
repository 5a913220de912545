// Leases that reach into the tier below, and prefetches. From the first key on that is not committed here:
//   1  what is here (or on its way up already) is pinned; of the rest the lower tier says where it lies. The
//      walk ends at a key that neither has, or that an engine is storing: nobody waits for a store
//   2  each key that lies below gets a slot, in order, in state kPromoting. What this call needs is pinned by
//      now, so it evicts none of it
//   3  the lower tier takes all of them or none
//   4  the policy is told, last key first
// A walk that is cut short gives back what lies behind the cut.
//
// A promote belongs to nobody: its slot is kPromoting until EndPromotes, leased or not. A lost one keeps its
// slot aside for as long as somebody leases it, or a read of the lower tier may still write into it.

#include <algorithm>
#include <cstring>

#include "index/probe.h"
#include "store/store_impl.h"

namespace tpu_sync_native {
namespace {

// In place of a location: the key stands in this batch before, and is promoted for that one.
constexpr Location kAgain = UINT64_MAX;

PromoteChunk ChunkOf(const SlotRef& ref, Location from, const HashedKey& key) {
  PromoteChunk chunk{};
  chunk.ref = ref;
  chunk.from = from;
  chunk.key_bytes = static_cast<uint8_t>(key.bytes);
  std::memcpy(chunk.key, key.words, key.bytes);
  return chunk;
}

}  // namespace

// Step 1: returns where the walk ends. Keys before it have a pinned slot in `refs`, or kNoSlot and a
// location.
uint32_t Store::Impl::PinInTiers(uint32_t ns, const KeyBatch& keys, uint32_t first, SlotRef* refs) {
  const uint64_t owner = OwnerWord(ns, namespaces[ns].epoch);
  scratch.keys.resize(std::max<size_t>(scratch.keys.size(), keys.count));
  scratch.from.assign(keys.count, 0);
  uint32_t asked_to = first;  // of the keys before this one the lower tier has said where they lie
  const auto make = [&](uint32_t i) {
    HashedKey* key = &scratch.keys[first + i];
    return MakeKey(index.view(), ns, keys.at(first + i), key) ? key : nullptr;
  };
  const auto visit = [&](uint32_t i, const HashedKey& key, uint32_t named) {
    const uint32_t at = first + i;
    SlotSnapshot snapshot;
    const uint32_t slot = FindKey(index.view(), key, owner, named, &snapshot);
    if (slot != kNoSlot) {
      if (PlaceState(snapshot.place) == SlotState::kReserved || !slots.Pin(slot)) return false;
      refs[at] = {slot, snapshot.generation, PlaceOffset(snapshot.place)};
      scratch.from[at] = 0;
      return true;
    }
    if (lower == nullptr) return false;
    if (at >= asked_to) asked_to = at + lower.load()->Find(ns, keys, at, &scratch.from[at]) + 1;
    return scratch.from[at] != 0;
  };
  return first + ProbeKeys(index.view(), keys.count - first, make, visit);
}

// Step 2: returns where the walk ends now. The slots of scratch.fresh are the new ones.
uint32_t Store::Impl::TakeForPromotes(uint32_t ns, uint32_t first, uint32_t end, SlotRef* refs) {
  const uint64_t owner = OwnerWord(ns, namespaces[ns].epoch);
  scratch.fresh.clear();
  scratch.chunks.clear();
  const auto missing_in = [&](uint32_t i) { return refs[i].slot == kNoSlot; };
  uint32_t missing = 0;
  for (uint32_t i = first; i < end; ++i) missing += missing_in(i);
  if (missing == 0) return end;
  NoteDemand(namespaces[ns].size_class, missing);
  uint32_t looks = 8 * missing + 1024;
  for (uint32_t i = first; i < end; ++i) {
    if (!missing_in(i)) continue;
    const HashedKey& key = scratch.keys[i];
    SlotRef ref{kNoSlot, 0, 0};
    SlotSnapshot snapshot;
    const uint32_t slot = FindKey(index.view(), key, owner, &snapshot);
    if (slot != kNoSlot) {
      scratch.from[i] = kAgain;
      ref = {slot, snapshot.generation, PlaceOffset(snapshot.place)};
    } else if (PlaceKey(ns, key, missing, &looks, SlotState::kPromoting, /*row=*/0, &ref)) {
      scratch.fresh.push_back(i);
      scratch.chunks.push_back(ChunkOf(ref, scratch.from[i], key));
    }
    --missing;
    if (ref.slot == kNoSlot || !slots.Pin(ref.slot)) {
      counters.promote_refusals += missing + 1;
      CutWalk(i, end, refs);
      return i;
    }
    refs[i] = ref;
  }
  return end;
}

// Gives back the keys [from, end) of a walk; those of scratch.fresh are in no policy yet.
void Store::Impl::CutWalk(uint32_t from, uint32_t end, const SlotRef* refs) {
  for (uint32_t i = from; i < end; ++i) {
    if (refs[i].slot != kNoSlot) slots.Unpin(refs[i].slot);
  }
  while (!scratch.fresh.empty() && scratch.fresh.back() >= from) {
    const uint32_t slot = scratch.chunks.back().ref.slot;
    index.Remove(scratch.keys[scratch.fresh.back()], slot);
    index.Free(slot);
    slots.Free(slot);
    scratch.fresh.pop_back();
    scratch.chunks.pop_back();
  }
}

uint32_t Store::Impl::LeaseInTiers(uint32_t ns, const KeyBatch& keys, Urgency urgency,
                                   std::vector<SlotRef>* refs) {
  drain_budget = kDrainBudget;
  DrainLeavingSlab();
  const auto first = static_cast<uint32_t>(refs->size());
  refs->resize(keys.count, SlotRef{kNoSlot, 0, 0});
  uint32_t end = PinInTiers(ns, keys, first, refs->data());
  end = TakeForPromotes(ns, first, end, refs->data());
  if (urgency == Urgency::kLease) HurryPromotes(first, end, refs->data());
  if (!scratch.chunks.empty() && !lower.load()->Promote(ns, scratch.chunks, urgency)) {
    counters.promote_refusals += scratch.chunks.size();
    const uint32_t cut = scratch.fresh.front();
    CutWalk(cut, end, refs->data());
    end = cut;
  }
  refs->resize(end);

  EvictionPolicy& policy = *classes[namespaces[ns].size_class].policy;
  for (uint32_t i = end; i-- > first;) {
    const uint32_t slot = (*refs)[i].slot;
    if (scratch.from[i] == 0) {
      TouchSlot(slot);
    } else if (scratch.from[i] != kAgain) {
      slots.Touch(slot, tick);
      policy.Insert(slot, scratch.keys[i].fingerprint);
    }
  }
  if (Shortage(namespaces[ns].size_class) > 0) room_wanted.store(true, std::memory_order_relaxed);
  const auto promoted = static_cast<uint32_t>(scratch.fresh.size());
  if (scratch.keys.size() > kScratchKeysMax) scratch = {};
  return promoted;
}

// Those of the walk that were under way before it: perhaps as a prefetch, which others overtake.
void Store::Impl::HurryPromotes(uint32_t first, uint32_t end, const SlotRef* refs) {
  scratch.slots.clear();
  for (uint32_t i = first; i < end; ++i) {
    const bool found = scratch.from[i] == 0;
    if (found && slots.cell(refs[i].slot).state == SlotState::kPromoting)
      scratch.slots.push_back(refs[i].slot);
  }
  if (!scratch.slots.empty() && lower != nullptr) lower.load()->Hurry(scratch.slots);
}

uint32_t Store::Impl::Prefetch(uint32_t ns, const KeyBatch& keys) {
  if (draining || CheckKeys(ns, keys) != Outcome::kOk) return 0;
  ++tick;
  std::vector<SlotRef> refs;
  const uint32_t promoted = LeaseInTiers(ns, keys, Urgency::kPrefetch, &refs);
  for (const SlotRef& ref : refs) slots.Unpin(ref.slot);
  return promoted;
}

// The same walk without any effect.
TierHits Store::Impl::LookupTiers(uint32_t ns, const KeyBatch& keys, uint32_t first) const {
  if (CheckKeys(ns, keys) != Outcome::kOk) return {};
  std::vector<Location> from(keys.count, 0);
  uint32_t asked_to = first;
  return LeadingTierHits(index.view(), ns, keys, first, [&](uint32_t at) {
    if (lower == nullptr) return false;
    if (at >= asked_to) asked_to = at + lower.load()->Find(ns, keys, at, &from[at]) + 1;
    return from[at] != 0;
  });
}

void Store::Impl::EndPromotes(std::span<const SlotRef> refs, PromoteEnd end) {
  for (const SlotRef& ref : refs) {
    if (ref.slot >= options.slots_max) continue;
    if (end == PromoteEnd::kGone) {
      const auto lost = lost_promotes.find(ref.slot);
      if (lost == lost_promotes.end() || lost->second.generation != ref.generation) continue;
      lost->second.busy = false;
      FreeLost(ref.slot);
      continue;
    }
    if (slots.cell(ref.slot).state != SlotState::kPromoting) continue;
    const SlotRecord& record = index.view().slot(ref.slot);
    if (record.generation.load(std::memory_order_relaxed) != ref.generation) continue;
    const uint64_t owner = record.owner.load(std::memory_order_relaxed);
    if (end == PromoteEnd::kReadable && !Stale(owner)) {
      NamespaceEntry& space = namespaces[static_cast<uint32_t>(owner)];
      slots.Commit(ref.slot);
      index.SetState(ref.slot, SlotState::kCommitted);
      NoteForCheck(ref.slot);
      ++space.chunks;
      chunk_bytes += space.chunk_bytes;
      ++counters.promotes;
    } else {
      LosePromote(ref, /*busy=*/end == PromoteEnd::kLostBusy);
    }
  }
}

void Store::Impl::LosePromote(const SlotRef& ref, bool busy) {
  ++counters.promote_losses;
  classes[slots.class_of(ref.slot)].policy->Remove(ref.slot);
  HashedKey key;
  index.KeyOf(ref.slot, &key);
  index.Remove(key, ref.slot);
  index.Lose(ref.slot);  // whoever leases it sees another generation
  slots.Quarantine(ref.slot);
  lost_promotes[ref.slot] = {ref.generation, busy};
  FreeLost(ref.slot);
}

void Store::Impl::FreeLost(uint32_t slot) {
  const auto lost = lost_promotes.find(slot);
  if (lost == lost_promotes.end() || lost->second.busy || slots.cell(slot).pins > 0) return;
  lost_promotes.erase(lost);
  index.Free(slot);
  slots.Free(slot);
}

}  // namespace tpu_sync_native
