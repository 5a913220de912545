// Write leases. A reserve goes over its keys three times:
//   1  find what is there, and hold it for the call
//   2  give every missing key a slot, in order; the first that finds no room ends it for those behind it,
//   since
//      a prefix with a hole is of little use
//   3  tell the policy, last key first

#include <algorithm>

#include "index/probe.h"
#include "store/store_impl.h"

namespace tpu_sync_native {

// Step 1. Slots found present are pinned for the call; lengths were checked before.
void Store::Impl::ClassifyKeys(uint32_t ns, const KeyBatch& keys, std::vector<Grant>* grants,
                               uint32_t* missing) {
  const MetaView& view = index.view();
  const uint64_t owner = OwnerWord(ns, namespaces[ns].epoch);
  const auto make = [&](uint32_t i) {
    HashedKey* key = &scratch.keys[i];
    return MakeKey(view, ns, keys.at(i), key) ? key : nullptr;
  };
  ProbeKeys(view, keys.count, make, [&](uint32_t i, const HashedKey& key, uint32_t named) {
    SlotSnapshot snapshot;
    const uint32_t slot = FindKey(view, key, owner, named, &snapshot);
    if (slot == kNoSlot) {
      ++*missing;
    } else if (PlaceState(snapshot.place) == SlotState::kCommitted) {
      (*grants)[i] = Grant::kPresent;
      if (slots.Pin(slot)) scratch.slots[i] = slot;
    } else {
      (*grants)[i] = Grant::kPending;
    }
    return true;
  });
}

// Step 2 for one key; `missing` keys are left, this one included.
Grant Store::Impl::ReserveKey(uint32_t ns, const HashedKey& key, uint32_t missing, uint32_t* looks,
                              uint32_t row, SlotRef* ref) {
  SlotSnapshot snapshot;
  if (FindKey(index.view(), key, OwnerWord(ns, namespaces[ns].epoch), &snapshot) != kNoSlot)
    return Grant::kPending;  // earlier in this batch
  const bool placed = PlaceKey(ns, key, missing, looks, SlotState::kReserved, row, ref);
  return placed ? Grant::kGranted : Grant::kNoSpace;
}

bool Store::Impl::PlaceKey(uint32_t ns, const HashedKey& key, uint32_t missing, uint32_t* looks,
                           SlotState state, uint32_t row, SlotRef* ref) {
  NamespaceEntry& space = namespaces[ns];
  space.used = true;
  const uint32_t slot = TakeSlot(space.size_class, missing, looks);
  if (slot == kNoSlot) return false;
  const bool ready = key.bytes <= kKeyBytesInline || CommitKeyTails(slot);
  if (!ready) {
    slots.Free(slot);
    return false;
  }
  if (state == SlotState::kPromoting) slots.Promote(slot);
  const uint64_t offset = slots.offset_of(slot);
  const uint32_t generation = index.Reserve(slot, offset, OwnerWord(ns, space.epoch), key, state, row);
  if (index.Insert(key, slot) || (MakeIndexRoom(key, space.size_class) && index.Insert(key, slot))) {
    *ref = {slot, generation, offset};
    return true;
  }
  ++counters.index_refusals;
  index.Free(slot);
  slots.Free(slot);
  return false;
}

WriteGrant Store::Impl::Reserve(SessionId session, uint32_t ns, const KeyBatch& keys) {
  WriteGrant grant;
  grant.outcome = Check(session, ns, keys);
  if (grant.outcome == Outcome::kOk && draining) grant.outcome = Outcome::kDraining;
  if (grant.outcome != Outcome::kOk) return grant;

  ++tick;
  drain_budget = kDrainBudget;
  DrainLeavingSlab();
  scratch.keys.resize(std::max<size_t>(scratch.keys.size(), keys.count));
  scratch.slots.assign(keys.count, kNoSlot);
  grant.grants.assign(keys.count, Grant::kGranted);
  uint32_t missing = 0;
  ClassifyKeys(ns, keys, &grant.grants, &missing);

  NoteDemand(namespaces[ns].size_class, missing);
  grant.slots.reserve(missing);
  std::vector<uint32_t> granted;
  granted.reserve(missing);
  uint32_t looks = 8 * missing + 1024;
  LeaseRecord lease{.kind = LeaseRecord::Kind::kWrite,
                    .session = session,
                    .group = sessions.at(session).group,
                    .ns = ns,
                    .epoch = namespaces[ns].epoch,
                    .deadline_ms = SteadyMs() + options.lease_ms};
  LeaseId id = 0;
  if (missing > 0) lease.row = OpenLeaseRow(id = NextLease(), session, lease.group);
  bool no_space = lease.row == 0;
  for (uint32_t i = 0; i < keys.count; ++i) {
    if (grant.grants[i] != Grant::kGranted) continue;
    SlotRef ref{kNoSlot, 0, 0};
    grant.grants[i] =
        no_space ? Grant::kNoSpace : ReserveKey(ns, scratch.keys[i], missing, &looks, lease.row, &ref);
    --missing;
    if (grant.grants[i] == Grant::kGranted) {
      grant.slots.push_back(ref);
      granted.push_back(ref.slot);
      scratch.slots[i] = ref.slot;
    } else if (grant.grants[i] == Grant::kNoSpace) {
      no_space = true;
      ++counters.refusals;
    }
  }

  EvictionPolicy& policy = *classes[namespaces[ns].size_class].policy;
  for (uint32_t i = keys.count; i-- > 0;) {
    const uint32_t slot = scratch.slots[i];
    if (slot == kNoSlot) continue;
    if (grant.grants[i] == Grant::kGranted) {
      slots.Touch(slot, tick);
      policy.Insert(slot, scratch.keys[i].fingerprint);
    } else {
      slots.Unpin(slot);
      TouchSlot(slot);
    }
  }
  if (granted.empty()) {
    CloseLeaseRow(lease.row);
  } else {
    lease.slots = std::move(granted);
    leases.emplace(grant.lease = id, std::move(lease));
  }
  if (Shortage(namespaces[ns].size_class) > 0) room_wanted.store(true, std::memory_order_relaxed);
  if (scratch.keys.size() > kScratchKeysMax) scratch = {};
  return grant;
}

Outcome Store::Impl::Commit(SessionId session, LeaseId lease, std::span<const uint8_t> keep) {
  LeaseRecord* record = nullptr;
  const Outcome outcome = FindLease(session, lease, LeaseRecord::Kind::kWrite, &record);
  if (outcome == Outcome::kUnknownLease) EndLate(session, lease);
  if (outcome != Outcome::kOk) return outcome;

  NamespaceEntry& space = namespaces[record->ns];
  const bool cleared = space.epoch != record->epoch;
  size_t readable = 0;  // record->slots begins with these, in key order
  for (const uint32_t slot : record->slots) __builtin_prefetch(&index.view().slot(slot));
  for (uint32_t i = 0; i < record->slots.size(); ++i) {
    const uint32_t slot = record->slots[i];
    // A bitmap that ends early keeps nothing beyond its end.
    const bool kept = keep.empty() || (i / 8 < keep.size() && (keep[i / 8] >> (i % 8) & 1) != 0);
    if (!kept || cleared) {
      ++(kept ? counters.cleared : counters.aborts);
      DropReserved(slot);
      continue;
    }
    slots.Commit(slot);
    index.SetState(slot, SlotState::kCommitted);
    NoteForCheck(slot);
    ++space.chunks;
    ++space.stores;
    ++counters.stores;
    counters.stored_bytes += space.chunk_bytes;
    chunk_bytes += space.chunk_bytes;
    record->slots[readable++] = slot;
  }
  if (readable > 0 && lower != nullptr) {
    lower.load()->Committed(record->ns, record->epoch, std::span(record->slots).first(readable));
  }
  CloseLeaseRow(record->row);
  leases.erase(lease);
  return cleared ? Outcome::kCleared : Outcome::kOk;
}

void Store::Impl::AbortSlots(const LeaseRecord& lease) {
  counters.aborts += lease.slots.size();
  for (const uint32_t slot : lease.slots) DropReserved(slot);
  CloseLeaseRow(lease.row);
}

Outcome Store::Impl::Abort(SessionId session, LeaseId lease) {
  LeaseRecord* record = nullptr;
  const Outcome outcome = FindLease(session, lease, LeaseRecord::Kind::kWrite, &record);
  if (outcome == Outcome::kUnknownLease) EndLate(session, lease);
  if (outcome != Outcome::kOk) return outcome;
  AbortSlots(*record);
  leases.erase(lease);
  return Outcome::kOk;
}

}  // namespace tpu_sync_native
