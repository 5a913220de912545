// Where free slots come from, in this order:
//   a slab of the class with a free slot; a free slab; a chunk of the class, evicted; a slab of another
//   class.
//
// Evicting while an engine waits costs it more than the rest of its reserve, so the ring's thread makes room
// for the next one when nobody asks for anything (MakeRoom): as many free slots as reserves wanted of late.
//
// A class that has evicted a slab's worth of chunks looks whether another class has a slab without pins that
// was not touched for longer than its own coldest one; if so that slab leaves its class. So the classes share
// the arena by age, as one queue over all chunks would, without moving single chunks. A slab is emptied in
// bounded steps, and stays where it is when somebody pins a chunk in it meanwhile.

#include <algorithm>

#include "index/probe.h"
#include "store/store_impl.h"

namespace tpu_sync_native {
namespace {

constexpr uint32_t kEvictGroup = 32;    // victims handled together, so that their cache misses overlap
constexpr uint32_t kReclaimLooks = 64;  // slots looked at for each that may be reclaimed
constexpr uint32_t kAheadShare = 16;    // at most this part of a class is kept free ahead of a reserve
constexpr uint32_t kRoomLooks = 256;    // slots looked at in one step of MakeRoom
constexpr uint32_t kCommitStep = 1024;  // slots whose records get memory in one step of MakeRoom

}  // namespace

uint32_t Store::Impl::TakeSlot(ClassId size_class, uint32_t wanted, uint32_t* looks) {
  uint32_t slot = slots.Take(size_class);
  if (slot != kNoSlot) return slot;
  if (AddSlab(size_class)) return slots.Take(size_class);

  if (BelowFloor(size_class)) {
    if (claimant == size_class) Claim(size_class);
    if (StartRebalance(size_class, /*only_colder=*/false) && AddSlab(size_class))
      return slots.Take(size_class);
  }
  if (RebalanceIfDue(size_class) && AddSlab(size_class)) return slots.Take(size_class);
  // Victims may empty a slab, which is free then, or lie in a leaving one, which offers nothing.
  while (slot == kNoSlot && EvictFrom(size_class, std::min(wanted, kEvictGroup), looks) > 0) {
    slot = slots.Take(size_class);
    if (slot == kNoSlot && AddSlab(size_class)) slot = slots.Take(size_class);
  }
  if (slot == kNoSlot && StartRebalance(size_class, /*only_colder=*/false) && AddSlab(size_class)) {
    slot = slots.Take(size_class);
  }
  return slot;
}

bool Store::Impl::AddSlab(ClassId size_class) {
  if (KeptForAnother(size_class)) return false;
  const uint32_t slab = slots.AddSlab(size_class, arena->populated_slabs());
  if (slab == kNone) return false;
  if (claimant == size_class) claimant = kNone;
  if (CommitRecords(slab, slots.slabs()[slab].slots)) return true;
  slots.ReturnSlab(slab);
  return false;
}

bool Store::Impl::CommitRecords(uint32_t slab, uint32_t needed) {
  uint32_t& committed = records_committed[slab];
  if (committed >= needed) return true;
  if (!index.CommitRecords(slots.first_slot(slab) + committed, needed - committed)) return false;
  committed = needed;
  return true;
}

bool Store::Impl::CommitKeyTails(uint32_t slot) {
  const uint32_t slab = slots.slab_of(slot);
  const uint32_t needed = slots.slabs()[slab].slots;
  uint32_t& committed = key_tails_committed[slab];
  if (committed >= needed) return true;
  if (!index.CommitKeyTails(slots.first_slot(slab) + committed, needed - committed)) return false;
  committed = needed;
  return true;
}

uint32_t Store::Impl::EvictFrom(ClassId size_class, uint32_t wanted, uint32_t* looks) {
  uint32_t victims[kEvictGroup];
  HashedKey keys[kEvictGroup];
  uint64_t owners[kEvictGroup];
  EvictionPolicy& policy = *classes[size_class].policy;
  const uint32_t count = policy.TakeVictims(std::min(wanted, kEvictGroup), looks, victims);
  for (uint32_t i = 0; i < count; ++i) __builtin_prefetch(&index.view().slot(victims[i]));
  for (uint32_t i = 0; i < count; ++i) {
    owners[i] = index.KeyOf(victims[i], &keys[i]);
    __builtin_prefetch(&index.view().bucket(keys[i].buckets[0]));
  }
  for (uint32_t i = 0; i < count; ++i) {
    policy.Evicted(victims[i], keys[i].fingerprint);
    FreeChunk(victims[i], keys[i], owners[i]);
  }
  classes[size_class].turnover += count;
  return count;
}

uint32_t Store::Impl::Shortage(ClassId size_class) const {
  const SizeClass& of = slots.classes()[size_class];
  const uint32_t wanted = std::min(classes[size_class].demand, of.slots / kAheadShare);
  const uint32_t free = of.slots - of.used;
  return wanted > free ? wanted - free : 0;
}

void Store::Impl::NoteDemand(ClassId size_class, uint32_t wanted) {
  uint32_t& demand = classes[size_class].demand;
  if (wanted > 0) demand = std::max(wanted, demand - demand / 8);
}

bool Store::Impl::MakeRoom() {
  drain_budget = kEvictGroup;
  DrainLeavingSlab();
  for (ClassId i = 0; i < classes.size(); ++i) {
    if (Shortage(i) > 0 && MakeRoomIn(i)) return true;
  }
  room_wanted.store(false, std::memory_order_relaxed);
  return false;
}

// One step: true when there may be another one to do.
bool Store::Impl::MakeRoomIn(ClassId size_class) {
  const uint32_t slab = slots.NextFreeSlab(arena->populated_slabs());
  if (slab != kNone) {  // nobody has to go; only the memory of its records is made ready
    const uint32_t committed = records_committed[slab];
    const uint32_t needed = std::min(slots.SlotsPerSlab(size_class), committed + kCommitStep);
    return committed < needed && CommitRecords(slab, needed);
  }
  if (!MayGive(size_class, 1))
    return BelowFloor(size_class) && StartRebalance(size_class, /*only_colder=*/false);
  if (RebalanceIfDue(size_class)) return true;
  uint32_t looks = kRoomLooks;
  return EvictFrom(size_class, std::min(Shortage(size_class), kEvictGroup), &looks) > 0;
}

bool Store::Impl::RebalanceIfDue(ClassId size_class) {
  uint32_t& turnover = classes[size_class].turnover;
  if (turnover < slots.SlotsPerSlab(size_class)) return false;
  turnover = 0;
  return StartRebalance(size_class, /*only_colder=*/true);
}

bool Store::Impl::StartRebalance(ClassId to, bool only_colder) {
  if (leaving_slab != kNone || drain_budget == 0) return false;  // one at a time, bounded for each call
  if (classes[to].none_to_take == tick) return false;
  ++counters.rebalance_searches;
  uint64_t own_coldest = UINT64_MAX;
  uint32_t candidate = kNone;
  for (uint32_t i = 0; i < slots.slabs().size(); ++i) {
    const Slab& slab = slots.slabs()[i];
    if (slab.size_class == kNone) continue;
    if (slab.size_class == to) {
      own_coldest = std::min(own_coldest, slab.touched);
    } else if (slab.busy == 0 && MayGive(slab.size_class, slab.used) &&
               (candidate == kNone || slab.touched < slots.slabs()[candidate].touched)) {
      candidate = i;
    }
  }
  if (candidate == kNone) {
    classes[to].none_to_take = tick;
    return false;
  }
  if (only_colder && slots.slabs()[candidate].touched >= own_coldest) return false;
  leaving_slab = candidate;
  if (BelowFloor(to)) Claim(to);
  slots.SetLeaving(candidate, true);
  DrainLeavingSlab();
  return true;
}

void Store::Impl::DrainLeavingSlab() {
  if (leaving_slab == kNone) return;
  const uint32_t slab = leaving_slab;
  const uint32_t end = slots.first_slot(slab) + slots.slabs()[slab].fresh;
  for (uint32_t slot = slots.first_slot(slab); slot < end && drain_budget > 0; ++slot) {
    if (!slots.slabs()[slab].leaving) break;  // its last chunk went: it is free
    if (!slots.cell(slot).evictable()) continue;
    if (!MayGive(slots.class_of(slot), slots.slabs()[slab].used)) break;
    EvictChunk(slot);
    --drain_budget;
  }
  const bool gone = !slots.slabs()[slab].leaving;
  const Slab& left = slots.slabs()[slab];
  const bool blocked = !gone && (left.busy > 0 || !MayGive(left.size_class, left.used));
  if (gone) ++counters.rebalances;
  if (blocked) slots.SetLeaving(slab, false);
  if (gone || blocked) leaving_slab = kNone;
}

// Both buckets of the key are full: one of the chunks in them has to go.
bool Store::Impl::MakeIndexRoom(const HashedKey& key, ClassId size_class) {
  for (const uint32_t number : key.buckets) {
    for (const auto& cell : index.view().bucket(number).slots) {
      const uint32_t slot = cell.load(std::memory_order_relaxed);
      if (!slots.cell(slot).evictable()) continue;
      const ClassId of = slots.class_of(slot);
      if (of != size_class && !MayGive(of, 1)) continue;
      EvictChunk(slot);
      return true;
    }
  }
  return false;
}

bool Store::Impl::Stale(uint64_t owner) const {
  return namespaces[static_cast<uint32_t>(owner)].epoch != static_cast<uint32_t>(owner >> 32);
}

bool Store::Impl::IsWithheld(uint64_t owner) const {
  const auto& withheld = namespaces[static_cast<uint32_t>(owner)].withheld;
  return withheld && withheld->epoch == static_cast<uint32_t>(owner >> 32);
}

void Store::Impl::EvictChunk(uint32_t slot) {
  classes[slots.class_of(slot)].policy->Remove(slot);
  HashedKey key;
  const uint64_t owner = index.KeyOf(slot, &key);
  FreeChunk(slot, key, owner);
}

void Store::Impl::FreeChunk(uint32_t slot, const HashedKey& key, uint64_t owner) {
  NamespaceEntry& space = namespaces[static_cast<uint32_t>(owner)];
  if (IsHidden(slot)) Unhide(slot);
  if (Stale(owner)) {
    --stale_slots;
    if (IsWithheld(owner)) {
      --withheld_slots;
      --space.withheld->chunks;
    }
  } else {
    --space.chunks;
    ++space.evictions;
    ++counters.evictions;
    counters.evicted_bytes += space.chunk_bytes;
    chunk_bytes -= space.chunk_bytes;
  }
  index.Remove(key, slot);
  index.Free(slot);
  slots.Free(slot);
}

void Store::Impl::DropReserved(uint32_t slot) {
  classes[slots.class_of(slot)].policy->Remove(slot);
  HashedKey key;
  index.KeyOf(slot, &key);
  index.Remove(key, slot);
  index.Free(slot);
  slots.Free(slot);
}

uint64_t Store::Impl::ReclaimStale(uint64_t slots_max) {
  drain_budget = kDrainBudget;
  DrainLeavingSlab();
  uint64_t freed = 0;
  const uint64_t looks = std::min<uint64_t>(slots_max * kReclaimLooks, options.slots_max);
  for (uint64_t i = 0; i < looks && freed < slots_max && stale_slots > withheld_slots; ++i) {
    const uint32_t slot = reclaim_cursor;
    reclaim_cursor = slot + 1 < options.slots_max ? slot + 1 : 0;
    if (!slots.cell(slot).evictable()) continue;
    const uint64_t owner = index.view().slot(slot).owner.load(std::memory_order_relaxed);
    if (!Stale(owner) || IsWithheld(owner)) continue;
    EvictChunk(slot);
    ++freed;
  }
  return freed;
}

uint64_t Store::Impl::EvictNamespace(uint32_t ns, uint64_t bytes, uint32_t chunks_max) {
  if (ns >= namespaces.size()) return 0;
  const NamespaceEntry& space = namespaces[ns];
  uint64_t freed = EvictNamespaceFrom(space.shared_class, ns, bytes, &chunks_max);
  if (space.own_class != kNone && freed < bytes) {
    freed += EvictNamespaceFrom(space.own_class, ns, bytes - freed, &chunks_max);
  }
  return freed;
}

uint64_t Store::Impl::EvictNamespaceFrom(ClassId size_class, uint32_t ns, uint64_t bytes,
                                         uint32_t* chunks_max) {
  const NamespaceEntry& space = namespaces[ns];
  const EvictionPolicy& policy = *classes[size_class].policy;
  const uint64_t owner = OwnerWord(ns, space.epoch);
  uint64_t freed = 0;
  for (uint32_t slot = policy.Coldest(); slot != kNoSlot && freed < bytes && *chunks_max > 0;) {
    const uint32_t warmer = policy.Warmer(slot);
    if (slots.cell(slot).evictable() &&
        index.view().slot(slot).owner.load(std::memory_order_relaxed) == owner) {
      EvictChunk(slot);
      freed += space.chunk_bytes;
      --*chunks_max;
    }
    slot = warmer;
  }
  return freed;
}

}  // namespace tpu_sync_native
