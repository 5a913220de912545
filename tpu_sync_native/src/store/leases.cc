// Read leases: pins on leading chunks, with an owner and a deadline.

#include <algorithm>

#include "index/probe.h"
#include "store/store_impl.h"

namespace tpu_sync_native {

Outcome Store::Impl::Check(SessionId session, uint32_t ns, const KeyBatch& keys) const {
  const auto found = sessions.find(session);
  if (found == sessions.end() || found->second.closed) return Outcome::kUnknownSession;
  return CheckKeys(ns, keys);
}

Outcome Store::Impl::CheckKeys(uint32_t ns, const KeyBatch& keys) const {
  if (ns >= namespaces.size()) return Outcome::kUnknownNamespace;
  if (keys.count > kBatchKeysMax) return Outcome::kBatchTooLarge;
  for (uint32_t i = 0; i < keys.count; ++i) {
    const uint32_t length = keys.length(i);
    if (length < kKeyBytesMin || length > kKeyBytesMax) return Outcome::kBadKey;
  }
  return Outcome::kOk;
}

Outcome Store::Impl::FindLease(SessionId session, LeaseId lease, LeaseRecord::Kind kind,
                               LeaseRecord** found) {
  const auto owner = sessions.find(session);
  if (owner == sessions.end() || owner->second.closed) return Outcome::kUnknownSession;
  const auto record = leases.find(lease);
  if (record == leases.end() || record->second.kind != kind || record->second.group != owner->second.group) {
    return Outcome::kUnknownLease;
  }
  *found = &record->second;
  return Outcome::kOk;
}

LeaseId Store::Impl::AddReadLease(SessionId session, uint32_t ns, std::vector<uint32_t> lease_slots) {
  const LeaseId lease = NextLease();
  leases.emplace(lease, LeaseRecord{.kind = LeaseRecord::Kind::kRead,
                                    .session = session,
                                    .group = sessions.at(session).group,
                                    .ns = ns,
                                    .epoch = namespaces[ns].epoch,
                                    .deadline_ms = SteadyMs() + options.lease_ms,
                                    .slots = std::move(lease_slots)});
  return lease;
}

void Store::Impl::TouchSlot(uint32_t slot) {
  slots.Touch(slot, tick);
  classes[slots.class_of(slot)].policy->Touch(slot);
}

ReadGrant Store::Impl::Lease(SessionId session, uint32_t ns, const KeyBatch& keys) {
  ReadGrant grant;
  grant.outcome = Check(session, ns, keys);
  if (grant.outcome == Outcome::kOk && draining) grant.outcome = Outcome::kDraining;
  if (grant.outcome != Outcome::kOk) return grant;

  ++tick;
  grant.slots.resize(keys.count);
  uint32_t hits = reader.LeadingHits(ns, keys, grant.slots.data());
  for (uint32_t i = 0; i < hits; ++i) __builtin_prefetch(&slots.cell(grant.slots[i].slot));
  std::vector<uint32_t> pinned(hits);
  for (uint32_t i = 0; i < hits; ++i) {
    pinned[i] = grant.slots[i].slot;
    if (!slots.Pin(pinned[i])) hits = i;  // more readers than a pin counter holds: the prefix ends here
  }
  const bool whole = hits == pinned.size();
  pinned.resize(hits);
  grant.slots.resize(hits);
  if (whole && hits < keys.count && (lower != nullptr || slots.count(SlotState::kPromoting) > 0)) {
    LeaseInTiers(ns, keys, Urgency::kLease, &grant.slots);
    for (size_t i = hits; i < grant.slots.size(); ++i) {
      pinned.push_back(grant.slots[i].slot);
      counters.storage_hits += slots.cell(pinned[i]).state == SlotState::kPromoting;
    }
  }
  for (uint32_t i = hits; i-- > 0;) TouchSlot(pinned[i]);  // the prefix's beginning becomes the most recent
  hits = static_cast<uint32_t>(pinned.size());

  NamespaceEntry& space = namespaces[ns];
  space.hits += hits;
  space.misses += keys.count - hits;
  counters.hits += hits;
  counters.misses += keys.count - hits;
  if (hits > 0) grant.lease = AddReadLease(session, ns, std::move(pinned));
  return grant;
}

void Store::Impl::Unpin(const LeaseRecord& lease) {
  const bool stale = namespaces[lease.ns].epoch != lease.epoch;
  for (const uint32_t slot : lease.slots) __builtin_prefetch(&slots.cell(slot));
  for (const uint32_t slot : lease.slots) Unpin(slot, stale);
}

void Store::Impl::Unpin(uint32_t slot, bool stale) {
  slots.Unpin(slot);
  const SlotCell& cell = slots.cell(slot);
  if (cell.pins > 0) return;
  if (cell.state == SlotState::kQuarantined) {
    FreeLost(slot);
  } else if (stale && cell.state == SlotState::kCommitted) {
    EvictChunk(slot);
  }
}

Outcome Store::Impl::Release(SessionId session, LeaseId lease) {
  LeaseRecord* record = nullptr;
  const Outcome outcome = FindLease(session, lease, LeaseRecord::Kind::kRead, &record);
  if (outcome != Outcome::kOk) return outcome;
  Unpin(*record);
  leases.erase(lease);
  return Outcome::kOk;
}

Outcome Store::Impl::Touch(SessionId session, uint32_t ns, const KeyBatch& keys, Why why) {
  const Outcome outcome = Check(session, ns, keys);
  if (outcome != Outcome::kOk) return outcome;
  ++tick;
  const uint64_t owner = OwnerWord(ns, namespaces[ns].epoch);
  scratch.slots.assign(keys.count, kNoSlot);
  HashedKey window[kProbeWindow];
  const auto make = [&](uint32_t i) {
    HashedKey* key = &window[i % kProbeWindow];
    return MakeKey(index.view(), ns, keys.at(i), key) ? key : nullptr;
  };
  ProbeKeys(index.view(), keys.count, make, [&](uint32_t i, const HashedKey& key, uint32_t named) {
    SlotSnapshot snapshot;
    const uint32_t slot = FindKey(index.view(), key, owner, named, &snapshot);
    // A chunk that is still being written has its place in the order already.
    const bool wanted = why == Why::kRenewed || PlaceState(snapshot.place) == SlotState::kCommitted;
    if (slot != kNoSlot && wanted) scratch.slots[i] = slot;
    return true;
  });
  for (uint32_t i = keys.count; i-- > 0;) {
    const uint32_t slot = scratch.slots[i];
    if (slot == kNoSlot) continue;
    if (why == Why::kUsed) {
      TouchSlot(slot);
    } else {
      slots.Touch(slot, tick);
      classes[slots.class_of(slot)].policy->Renew(slot);
    }
  }
  return Outcome::kOk;
}

void Store::Impl::ExpireLeases(uint64_t now_ms) {
  if (!late_slots.empty() && now_ms >= late_until_ms) EndLateReads();
  if (now_ms >= claimed_until_ms) claimant = kNone;
  for (auto it = leases.begin(); it != leases.end();) {
    LeaseRecord& lease = it->second;
    if (lease.deadline_ms > now_ms) {
      ++it;
      continue;
    }
    ++counters.expired_leases;
    if (lease.kind == LeaseRecord::Kind::kRead) {
      Unpin(lease);
    } else {
      EndWrite(it->first, lease, WritersOf(lease.group, std::nullopt));
    }
    it = leases.erase(it);
  }
}

}  // namespace tpu_sync_native
