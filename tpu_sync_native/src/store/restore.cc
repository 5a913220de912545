// A warm restart: what an earlier daemon left, from the slot records alone.
//
//   1  namespaces and the rows of sessions and write leases are read; boot_id has changed before, so sessions
//      of the former daemon are over
//   2  the index is emptied, and each slab's records are judged: a committed chunk that is consistent in
//      itself and with its slab goes back into the index under its old generation. A slab whose slots are all
//      of one namespace goes to that one's class, any other to the shared one. A slot that a write lease
//      had out is quarantined if any session of the lease's group is not known to have ended. One that a read
//      of storage was to fill is quarantined for a while: the kernel may end what it had begun. Every other
//      slot that was in use is free, its generation raised
//   3  the policy is given the chunks, the lowest slot of the lowest slab as the youngest: a slab is filled
//      upwards, so a prefix keeps its beginning longest. Earlier uses are forgotten
//   4  quarantines and their sessions are made; all other rows are closed
//
// Records are the truth, and judging one twice gives the same, so a daemon killed in here leaves no harm. A
// reader of before who still copies sees another boot_id, or another generation before any byte is written.

#include <algorithm>
#include <chrono>
#include <map>
#include <stdexcept>
#include <unordered_set>

#include "index/probe.h"
#include "store/store_impl.h"

namespace tpu_sync_native {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kJudgedTogether = 32;  // so that their cache misses overlap

enum class Verdict : uint8_t { kFree, kKeep, kQuarantine, kLate, kUnfinished, kCleared, kDamaged };

}  // namespace

class Restorer {
 public:
  explicit Restorer(Store::Impl& store) : store_(store), view_(store.index.view()) {}

  void Run() {
    RestoreNamespaces();
    ReadRows();
    store_.index.ClearBuckets();
    const auto slabs = static_cast<uint32_t>(store_.slots.slabs().size());
    for (uint32_t slab = 0; slab < slabs; ++slab) RestoreSlab(slab);
    for (uint32_t slab = slabs; slab-- > 0;) GiveToPolicy(slab);
    DropDoubles();
    store_.HideUnverified();
    RestoreQuarantines();
    store_.index.WakePromoteWaiters();
  }

 private:
  struct Kept {
    uint32_t slot;
    uint64_t owner;
    HashedKey key;
  };

  void RestoreNamespaces();
  void RestoreFloor(uint32_t ns, uint64_t bytes);
  void ReadRows();
  void RestoreSlab(uint32_t slab);
  // What is to become of the i-th slot of the slab at hand.
  Verdict Judge(uint32_t slot, uint32_t i);
  bool Fits(uint32_t slot, uint32_t i, uint64_t place, uint64_t owner) const;
  bool HasMemory(uint64_t offset, uint64_t bytes) const;
  void Keep(const Kept& chunk);
  void Drop(uint32_t slot) { store_.index.Free(slot); }
  void GiveToPolicy(uint32_t slab);
  void DropDoubles();
  void RestoreQuarantines();

  Store::Impl& store_;
  const MetaView& view_;
  RestartReport& report_ = store_.restart;
  std::unordered_map<GroupId, std::vector<uint32_t>> rows_of_group_;  // session rows
  std::vector<bool> waits_;                                           // per lease row: somebody may write
  // Of the slab at hand: a namespace that has a slot in it, once there is one; whether there are others; and
  // what its slots are.
  uint32_t ns_ = kNone;
  bool mixed_ = false;
  std::vector<SlotState> states_;
  uint32_t first_ = 0;
  bool key_tails_ = false;             // it keeps keys that have one
  mutable uint64_t memory_begin_ = 0;  // a stretch of the payload without holes
  mutable uint64_t memory_end_ = 0;
  std::unordered_set<uint32_t> doubles_;                   // kept slots whose key another slot has as well
  std::map<uint32_t, std::vector<uint32_t>> quarantined_;  // by lease row
};

void Restorer::RestoreNamespaces() {
  for (uint32_t i = 0; i < view_.namespaces_max(); ++i) {
    const NamespaceRecord& record = view_.ns(i);
    uint32_t epoch = record.epoch.load(kRelaxed);
    if (epoch == 0) break;
    if (const uint32_t wanted = record.clearing_to.load(kRelaxed); wanted > epoch) {
      store_.index.SetEpochBelow(i, record.epoch_below.load(kRelaxed) | kUnconfirmedClear);
      store_.index.SetEpoch(i, epoch = wanted);
    }
    const std::string_view id(reinterpret_cast<const char*>(record.id), sizeof(record.id));
    store_.AddNamespace(id, record.chunk_bytes, epoch);
    if (const uint64_t floor = record.floor_bytes.load(kRelaxed)) RestoreFloor(i, floor);
  }
}

// The sum was checked when they were set; the slabs are the same. A damaged one is none.
void Restorer::RestoreFloor(uint32_t ns, uint64_t bytes) {
  try {
    store_.SetFloor(ns, bytes);
  } catch (const std::invalid_argument&) {
    store_.index.SetFloor(ns, 0);
  }
}

void Restorer::ReadRows() {
  store_.last_lease = view_.header().last_lease.load(kRelaxed);
  store_.last_session = view_.header().last_session.load(kRelaxed);
  store_.session_rows.fresh = view_.sessions_max() + 1;
  store_.lease_rows.fresh = view_.leases_max() + 1;
  for (uint32_t i = 0; i < view_.sessions_max(); ++i) {
    const SessionRow& row = view_.session(i);
    if (row.session.load(kRelaxed) != 0) rows_of_group_[row.group].push_back(i);
  }
  waits_.resize(view_.leases_max());
  for (uint32_t i = 0; i < view_.leases_max(); ++i) {
    const WriteLeaseRow& row = view_.lease(i);
    waits_[i] = row.lease.load(kRelaxed) != 0 && rows_of_group_.count(row.group) == 1;
  }
}

bool Restorer::Fits(uint32_t slot, uint32_t i, uint64_t place, uint64_t owner) const {
  const auto ns = static_cast<uint32_t>(owner);
  if (ns >= store_.namespaces.size()) return false;
  const ClassId size_class = store_.namespaces[ns].shared_class;
  if (ns_ != kNone && store_.namespaces[ns_].shared_class != size_class) return false;
  if (i >= store_.slots.SlotsPerSlab(size_class)) return false;
  const uint64_t slab_offset = store_.slots.slab_of(slot) * store_.slots.slab_bytes();
  return PlaceOffset(place) == slab_offset + i * store_.slots.classes()[size_class].slot_bytes;
}

bool Restorer::HasMemory(uint64_t offset, uint64_t bytes) const {
  if (offset < memory_begin_ || offset + bytes > memory_end_) {
    memory_begin_ = offset;
    memory_end_ = store_.arena->MemoryEnd(offset);
  }
  return offset + bytes <= memory_end_;
}

Verdict Restorer::Judge(uint32_t slot, uint32_t i) {
  const SlotRecord& record = view_.slot(slot);
  const bool torn = (record.seq.load(kRelaxed) & 1) != 0;
  // One word, so whole even in a torn record.
  const uint64_t place = record.place.load(kRelaxed);
  const uint64_t owner = record.owner.load(kRelaxed);
  switch (PlaceState(place)) {
    case SlotState::kFree:
      return torn ? Verdict::kUnfinished : Verdict::kFree;
    case SlotState::kPromoting:
    case SlotState::kReserved:
    case SlotState::kQuarantined: {
      const uint32_t lease = PlaceLease(place);
      // No lease: a read of storage was to fill it, which was under way, overdue, or late in a life before.
      const bool late = lease == 0 && PlaceState(place) != SlotState::kReserved;
      if (!late && (lease == 0 || lease > waits_.size() || !waits_[lease - 1])) return Verdict::kUnfinished;
      if (Fits(slot, i, place, owner)) return late ? Verdict::kLate : Verdict::kQuarantine;
      return torn ? Verdict::kUnfinished : Verdict::kDamaged;  // torn: nobody has learned of it
    }
    case SlotState::kCommitted:
      break;
    default:
      return Verdict::kDamaged;
  }
  if (torn) return Verdict::kUnfinished;  // a commit or an evict
  if (!Fits(slot, i, place, owner)) return Verdict::kDamaged;
  const NamespaceEntry& space = store_.namespaces[static_cast<uint32_t>(owner)];
  if (space.epoch != static_cast<uint32_t>(owner >> 32)) return Verdict::kCleared;
  const uint32_t key_bytes = PlaceKeyBytes(place);
  if (key_bytes < kKeyBytesMin || key_bytes > kKeyBytesMax) return Verdict::kDamaged;
  if (key_bytes > kKeyBytesInline && !store_.index.HasKeyTail(slot)) return Verdict::kDamaged;
  return HasMemory(PlaceOffset(place), space.chunk_bytes) ? Verdict::kKeep : Verdict::kDamaged;
}

void Restorer::RestoreSlab(uint32_t slab) {
  first_ = store_.slots.first_slot(slab);
  const uint32_t count = store_.index.FindRecords(first_, store_.slots.slots_per_slab());
  store_.records_committed[slab] = count;
  if (count == 0) return;
  ns_ = kNone;
  mixed_ = false;
  key_tails_ = false;
  states_.assign(count, SlotState::kFree);
  Kept kept[kJudgedTogether];
  for (uint32_t begin = 0; begin < count; begin += kJudgedTogether) {
    uint32_t found = 0;
    for (uint32_t i = begin; i < std::min(begin + kJudgedTogether, count); ++i) {
      const uint32_t slot = first_ + i;
      const Verdict verdict = Judge(slot, i);
      if (verdict == Verdict::kFree) continue;
      const uint64_t owner = view_.slot(slot).owner.load(kRelaxed);
      if (verdict == Verdict::kKeep || verdict == Verdict::kQuarantine || verdict == Verdict::kLate) {
        const auto ns = static_cast<uint32_t>(owner);
        mixed_ = mixed_ || (ns_ != kNone && ns_ != ns);
        ns_ = ns;
        store_.namespaces[ns].used = true;
      }
      switch (verdict) {
        case Verdict::kKeep:
          kept[found].slot = slot;
          kept[found].owner = store_.index.KeyOf(slot, &kept[found].key);
          key_tails_ |= kept[found].key.bytes > kKeyBytesInline;
          for (const uint32_t bucket : kept[found].key.buckets) __builtin_prefetch(&view_.bucket(bucket));
          ++found;
          break;
        case Verdict::kQuarantine:
          states_[i] = SlotState::kQuarantined;
          quarantined_[PlaceLease(view_.slot(slot).place.load(kRelaxed)) - 1].push_back(slot);
          store_.index.SetState(slot, SlotState::kQuarantined);
          ++report_.quarantined;
          break;
        case Verdict::kLate:
          states_[i] = SlotState::kQuarantined;
          store_.index.Lose(slot);
          store_.late_slots.push_back(slot);
          ++report_.late;
          break;
        default: {
          // A record that was only torn while free never was anybody's chunk.
          const bool chunk = PlaceState(view_.slot(slot).place.load(kRelaxed)) != SlotState::kFree;
          if (verdict == Verdict::kUnfinished) report_.unfinished += chunk;
          if (verdict == Verdict::kCleared) ++report_.cleared;
          if (verdict == Verdict::kDamaged) ++report_.damaged;
          Drop(slot);
        }
      }
    }
    for (uint32_t k = 0; k < found; ++k) Keep(kept[k]);
  }
  const bool used =
      std::any_of(states_.begin(), states_.end(), [](SlotState state) { return state != SlotState::kFree; });
  if (!used) return;
  const NamespaceEntry& space = store_.namespaces[ns_];
  store_.slots.RestoreSlab(slab, mixed_ ? space.shared_class : space.size_class, states_);
  // So that they count as memory of the index. Where there is no room, the next long key tries again.
  if (key_tails_) (void)store_.CommitKeyTails(first_);
}

void Restorer::Keep(const Kept& chunk) {
  SlotSnapshot snapshot;
  const uint32_t other = FindKey(view_, chunk.key, chunk.owner, &snapshot);
  if (other != kNoSlot) doubles_.insert(other);  // which of the two is right is not known: neither is kept
  if (other != kNoSlot || !store_.index.Insert(chunk.key, chunk.slot)) {
    ++report_.damaged;
    Drop(chunk.slot);
    return;
  }
  states_[chunk.slot - first_] = SlotState::kCommitted;
  NamespaceEntry& space = store_.namespaces[static_cast<uint32_t>(chunk.owner)];
  ++space.chunks;
  store_.chunk_bytes += space.chunk_bytes;
  ++report_.kept;
}

void Restorer::GiveToPolicy(uint32_t slab) {
  const Slab& of = store_.slots.slabs()[slab];
  if (of.size_class == kNone) return;
  EvictionPolicy& policy = *store_.classes[of.size_class].policy;
  const uint32_t first = store_.slots.first_slot(slab);
  for (uint32_t i = of.fresh; i-- > 0;) {
    if (store_.slots.cell(first + i).state != SlotState::kCommitted) continue;
    HashedKey key;
    store_.index.KeyOf(first + i, &key);
    policy.Insert(first + i, key.fingerprint);
  }
}

void Restorer::DropDoubles() {
  for (const uint32_t slot : doubles_) {
    const auto ns = static_cast<uint32_t>(view_.slot(slot).owner.load(kRelaxed));
    --store_.namespaces[ns].chunks;
    store_.chunk_bytes -= store_.namespaces[ns].chunk_bytes;
    store_.DropReserved(slot);
    --report_.kept;
    ++report_.damaged;
  }
}

void Restorer::RestoreQuarantines() {
  std::vector<bool> used(view_.sessions_max());
  for (const auto& [row, held] : quarantined_) {
    const WriteLeaseRow& lease = view_.lease(row);
    std::vector<SessionId> writers;
    for (const uint32_t i : rows_of_group_.at(lease.group)) {
      const SessionRow& from = view_.session(i);
      const SessionId id = from.session.load(kRelaxed);
      const SessionRecord session{from.group,   from.pid, /*closed=*/true, {from.start, from.space},
                                  from.boot_id, i + 1};
      if (store_.sessions.emplace(id, session).second) used[i] = true;
      if (std::find(writers.begin(), writers.end(), id) == writers.end()) writers.push_back(id);
    }
    store_.quarantines.push_back(
        {lease.group, lease.lease.load(kRelaxed), row + 1, lease.session, std::move(writers), held});
  }
  for (uint32_t i = 0; i < view_.leases_max(); ++i) {
    if (quarantined_.count(i) == 0) store_.CloseLeaseRow(i + 1);
  }
  for (uint32_t i = 0; i < view_.sessions_max(); ++i) {
    if (!used[i]) store_.CloseSessionRow({.row = i + 1});
  }
}

void Store::Impl::Restore() {
  const auto begin = std::chrono::steady_clock::now();
  restart.restarts = index.view().header().restarts;
  late_until_ms = SteadyMs() + options.late_read_ms;
  arena->CountPopulated();
  Restorer(*this).Run();
  const auto took = std::chrono::steady_clock::now() - begin;
  restart.microseconds =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count());
}

std::vector<RestoredSession> Store::Impl::RestoredSessions() const {
  std::vector<RestoredSession> restored;
  for (const auto& [id, session] : sessions) {
    if (session.boot_id == options.boot_id) continue;
    restored.push_back({id, session.group, session.boot_id, session.pid, session.mark});
  }
  return restored;
}

}  // namespace tpu_sync_native
