// The store's inside, split over the files of this folder by what is asked of it:
//   leases.cc      lease, release, touch, expiry         writes.cc     reserve, commit, abort
//   promotes.cc    leases that reach below, prefetches   demotes.cc    pins of the tier below
//   space.cc       free slots: evict, rebalance, reclaim  sessions.cc   sessions, groups, quarantine
//   namespaces.cc  namespaces and their epochs            observe.cc    statistics      audit.cc   invariants
//   restore.cc     what an earlier daemon left            rows.cc       what a later one has to know
//   floors.cc      what is left to a namespace, whatever the others do
//   checks.cc      checksums of payloads
//
// Every method needs the mutex. None allocates per chunk, apart from the vectors that an answer consists of.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arena/arena.h"
#include "index/index_reader.h"
#include "index/index_writer.h"
#include "index/tier_hits.h"
#include "policy/registry.h"
#include "slots/slot_table.h"
#include "store/stats.h"
#include "store/store.h"

namespace tpu_sync_native {

struct LeaseRecord {
  enum class Kind : uint8_t { kRead, kWrite };
  Kind kind;
  SessionId session;
  GroupId group;
  uint32_t ns;
  uint32_t epoch;  // the namespace's when it was granted
  uint64_t deadline_ms;
  std::vector<uint32_t> slots = {};
  uint32_t row = 0;  // of a write lease: its WriteLeaseRow + 1
};

struct SessionRecord {
  GroupId group = 0;
  uint32_t pid = 0;
  bool closed = false;  // its connection ended, but it may still be writing
  ProcessMark mark = {};
  uint64_t boot_id = 0;  // of the daemon that opened it
  uint32_t row = 0;      // its SessionRow + 1; 0 when it cannot write
};

// Slots that someone may still be writing into, though their lease is gone.
struct Quarantine {
  GroupId group;
  LeaseId lease;                   // whose slots they were
  uint32_t row;                    // of that lease
  SessionId session;               // which held it
  std::vector<SessionId> writers;  // those not yet drained; empty = over
  std::vector<uint32_t> slots;
};

// A promote that was lost while somebody leased its slot, or the lower tier may still write into it: the slot
// is quarantined until neither is so.
struct LostPromote {
  uint32_t generation;  // of the promote; the slot's own has been raised
  bool busy;            // until PromoteEnd::kGone
};

// Chunks of a namespace that are kept out of sight, under an epoch of their own; see namespaces.cc.
struct Withheld {
  uint32_t epoch;
  uint64_t chunks;
  uint64_t epoch_below;  // of which epoch of the tier below they are, + 1
};

struct NamespaceEntry {
  std::string id;
  uint64_t chunk_bytes;
  ClassId size_class;    // of what is stored from now on; the two below may both hold chunks
  ClassId shared_class;  // with all namespaces of this slot size that have no floor
  ClassId own_class = kNone;
  uint64_t floor_bytes = 0;
  uint32_t epoch;
  uint32_t last_epoch;  // the highest that slots may carry
  uint64_t chunks = 0;  // committed, of the present epoch
  std::optional<Withheld> withheld = {};
  bool used = false;  // in this daemon's time: it was opened, or slots are of it
  uint64_t hits = 0, misses = 0, stores = 0, evictions = 0;
};

struct ClassEntry {
  std::unique_ptr<EvictionPolicy> policy;
  uint32_t turnover = 0;  // evictions since it last looked for a colder slab elsewhere
  uint32_t demand = 0;    // slots that one reserve wanted of late; see MakeRoom
  uint32_t floor = 0;     // used slots that other classes leave to this one; see floors.cc
  // The tick in which no other class had a slab to give to this one: nothing changes that within a batch.
  uint64_t none_to_take = UINT64_MAX;
};

// Which rows of a shared table are free; numbers begin at 1.
struct FreeRows {
  uint32_t max = 0;
  uint32_t fresh = 1;  // from here on never used
  std::vector<uint32_t> returned;

  uint32_t Take() {  // 0 when there is none
    if (returned.empty()) return fresh <= max ? fresh++ : 0;
    const uint32_t row = returned.back();
    returned.pop_back();
    return row;
  }
};

// One batch's keys on their way through Reserve, or a lease that reaches below; kept between calls for its
// memory.
struct KeyScratch {
  std::vector<HashedKey> keys;
  std::vector<uint32_t> slots;       // per key: present, then granted; kNoSlot = neither
  std::vector<Location> from;        // per key: where it lies below; 0 = nowhere, or it is here
  std::vector<uint32_t> fresh;       // keys that get a slot to be promoted into, ascending
  std::vector<PromoteChunk> chunks;  // these, for the lower tier
};
// After an unusually long batch the memory is given back.
inline constexpr size_t kScratchKeysMax = 4096;

// What one call may evict at most to move slabs between classes.
inline constexpr uint32_t kDrainBudget = 4096;

// See checks.cc.
struct Checks {
  static constexpr uint32_t kQueueMax = 1 << 14;
  static constexpr uint32_t kMany = kQueueMax / 4;

  std::vector<uint32_t> queue;  // a ring: committed, and without a checksum yet
  uint32_t queue_from = 0, queued = 0;
  uint32_t sweep_at = 0, sweep_left = 0;  // slots to look at besides
  std::vector<uint32_t> unverified;       // of an earlier daemon, the next one last
  std::vector<bool> hidden;               // by slot: not in the index, until it is verified; empty: none is
  uint64_t hidden_count = 0;
  std::vector<DamagedChunk> damaged;
  bool fresh = false;  // there is more to do than when the bell rang last
  CheckBell bell;
};

struct Store::Impl {
  Impl(std::shared_ptr<Arena> arena_in, int meta_fd, const StoreOptions& options_in);

  // ---- leases.cc ----
  Outcome Check(SessionId session, uint32_t ns, const KeyBatch& keys) const;
  Outcome CheckKeys(uint32_t ns, const KeyBatch& keys) const;
  // The lease, if it is of this kind and the session's group may end it.
  Outcome FindLease(SessionId session, LeaseId lease, LeaseRecord::Kind kind, LeaseRecord** found);
  LeaseId AddReadLease(SessionId session, uint32_t ns, std::vector<uint32_t> slots);
  ReadGrant Lease(SessionId session, uint32_t ns, const KeyBatch& keys);
  Outcome Release(SessionId session, LeaseId lease);
  enum class Why : uint8_t { kUsed, kRenewed };
  Outcome Touch(SessionId session, uint32_t ns, const KeyBatch& keys, Why why);
  void ExpireLeases(uint64_t now_ms);
  void Unpin(const LeaseRecord& lease);
  void Unpin(uint32_t slot, bool stale);  // stale: its epoch is over
  void TouchSlot(uint32_t slot);

  // ---- writes.cc ----
  WriteGrant Reserve(SessionId session, uint32_t ns, const KeyBatch& keys);
  Outcome Commit(SessionId session, LeaseId lease, std::span<const uint8_t> keep);
  Outcome Abort(SessionId session, LeaseId lease);
  void ClassifyKeys(uint32_t ns, const KeyBatch& keys, std::vector<Grant>* grants, uint32_t* missing);
  Grant ReserveKey(uint32_t ns, const HashedKey& key, uint32_t missing, uint32_t* looks, uint32_t row,
                   SlotRef* ref);
  // Puts a key that is not in the index there, with a slot of its own in `state` (reserved or promoting).
  // `row` is the write lease's, 0 of a promote. False, and *ref as it was, when there is no room.
  bool PlaceKey(uint32_t ns, const HashedKey& key, uint32_t missing, uint32_t* looks, SlotState state,
                uint32_t row, SlotRef* ref);
  void AbortSlots(const LeaseRecord& lease);  // and the end of its row

  // ---- promotes.cc; its top says what the steps are ----
  uint32_t PinInTiers(uint32_t ns, const KeyBatch& keys, uint32_t first, SlotRef* refs);
  uint32_t TakeForPromotes(uint32_t ns, uint32_t first, uint32_t end, SlotRef* refs);
  void CutWalk(uint32_t from, uint32_t end, const SlotRef* refs);
  // Goes on behind the leading keys, whose slots stand pinned in `refs`; adds the others it could pin.
  // Returns how many promotes it began.
  uint32_t LeaseInTiers(uint32_t ns, const KeyBatch& keys, Urgency urgency, std::vector<SlotRef>* refs);
  uint32_t Prefetch(uint32_t ns, const KeyBatch& keys);
  TierHits LookupTiers(uint32_t ns, const KeyBatch& keys, uint32_t first) const;  // counts from `first`
  void HurryPromotes(uint32_t first, uint32_t end, const SlotRef* refs);
  void EndPromotes(std::span<const SlotRef> refs, PromoteEnd end);
  void LosePromote(const SlotRef& ref, bool busy);
  void FreeLost(uint32_t slot);  // unless something still holds it

  // ---- demotes.cc ----
  std::vector<DemoteChunk> PinForDemote(uint32_t ns, uint32_t epoch, std::span<const uint32_t> wanted);
  void EndDemote(std::span<const DemoteChunk> chunks);

  // ---- space.cc ----
  uint32_t TakeSlot(ClassId size_class, uint32_t wanted, uint32_t* looks);
  bool AddSlab(ClassId size_class);
  bool CommitKeyTails(uint32_t slot);
  uint32_t EvictFrom(ClassId size_class, uint32_t wanted, uint32_t* looks);
  // Free slots that this class lacks for a reserve as large as the last ones; 0 when it has them.
  uint32_t Shortage(ClassId size_class) const;
  void NoteDemand(ClassId size_class, uint32_t wanted);
  bool MakeRoom();
  bool MakeRoomIn(ClassId size_class);
  bool CommitRecords(uint32_t slab, uint32_t needed);
  // Whether the class has evicted enough to look for a colder slab elsewhere, and has one on its way now.
  bool RebalanceIfDue(ClassId size_class);
  // Starts to move the coldest slab without pins out of another class; only one colder than all of this
  // class's when `only_colder`.
  bool StartRebalance(ClassId to, bool only_colder);
  void DrainLeavingSlab();
  bool MakeIndexRoom(const HashedKey& key, ClassId size_class);
  void EvictChunk(uint32_t slot);                                       // committed, unpinned, in its policy
  void FreeChunk(uint32_t slot, const HashedKey& key, uint64_t owner);  // the same, out of its policy
  void DropReserved(uint32_t slot);                                     // reserved -> free
  bool Stale(uint64_t owner) const;
  bool IsWithheld(uint64_t owner) const;
  bool IsGone(uint64_t owner) const { return Stale(owner) && !IsWithheld(owner); }
  uint64_t ReclaimStale(uint64_t slots_max);
  uint64_t EvictNamespace(uint32_t ns, uint64_t bytes, uint32_t chunks_max);
  uint64_t EvictNamespaceFrom(ClassId size_class, uint32_t ns, uint64_t bytes, uint32_t* chunks_max);

  // ---- floors.cc ----
  void SetFloor(uint32_t ns, uint64_t bytes);
  ClassId OwnClass(NamespaceEntry* space);
  uint32_t SlotsFor(const NamespaceEntry& space, uint64_t bytes) const;
  uint64_t SlabsFor(const NamespaceEntry& space, uint64_t bytes) const;
  // Slots of the class that hold a chunk, or will.
  uint32_t Usable(ClassId size_class) const;
  // What is emptied now is kept for the class, unless it asks no more.
  void Claim(ClassId size_class);
  // The class has less than is left to it: it takes a slab from another one before it evicts its own.
  bool BelowFloor(ClassId size_class) const;
  // Whether the only free slab is kept for another class.
  bool KeptForAnother(ClassId size_class) const;
  // Whether others may take `count` used slots from the class.
  bool MayGive(ClassId size_class, uint32_t count) const;

  // ---- sessions.cc ----
  void OpenSession(SessionId session, GroupId group, uint32_t pid, const ProcessMark& mark);
  bool CloseSession(SessionId session, bool drained, const std::vector<LeaseId>* held);
  bool Succeed(SessionId former, SessionId heir);
  bool MayBeWriting(SessionId session) const;
  void ForgetSession(SessionId session);
  std::vector<SessionId> WritersOf(GroupId group, std::optional<SessionId> except) const;
  // Abort, or quarantine if there is any writer.
  void EndWrite(LeaseId id, const LeaseRecord& lease, std::vector<SessionId> writers);
  // The group says that nobody writes under this lease any more, whose time was over before.
  void EndLate(SessionId session, LeaseId lease);
  void EndQuarantines();
  void EndLateReads();

  // ---- checks.cc ----
  bool WantsChecksum(uint32_t slot, uint32_t generation) const;
  void NoteForCheck(uint32_t slot);  // it is readable now
  // Once a second: it costs a system call, and the reader's work is felt less in large pieces. After a batch
  // of commits only when many are waiting.
  void RingForChecks(uint32_t queued_min) {
    if (checks.queued >= queued_min && std::exchange(checks.fresh, false)) checks.bell.Ring();
  }
  void AddCheck(uint32_t slot, bool hidden, std::vector<ChunkCheck>* found) const;
  bool TakeChecks(std::vector<ChunkCheck>* found);
  void EndChecks(std::span<const ChunkCheck> done);
  void NoteDamaged(uint32_t slot);
  void HideUnverified();
  bool IsHidden(uint32_t slot) const { return checks.hidden_count > 0 && checks.hidden[slot]; }
  void Unhide(uint32_t slot);
  void Reveal(uint32_t slot);

  // ---- rows.cc ----
  LeaseId NextLease();
  // A row for a write lease of this session; 0 when all are taken.
  uint32_t OpenLeaseRow(LeaseId lease, SessionId session, GroupId group);
  void CloseLeaseRow(uint32_t row);
  // False when all are taken.
  bool OpenSessionRow(SessionId id, SessionRecord* session);
  void CloseSessionRow(const SessionRecord& session);

  // ---- restore.cc ----
  void Restore();
  std::vector<RestoredSession> RestoredSessions() const;

  // ---- namespaces.cc ----
  uint32_t AddNamespace(std::string_view id, uint64_t chunk_bytes, uint32_t epoch);
  // Gives the row of one that is not used to another; kNone when all are.
  uint32_t ReplaceNamespace(std::string_view id, uint64_t chunk_bytes);
  NamespaceEntry NewEntry(std::string_view id, uint64_t chunk_bytes, uint32_t epoch);
  void FillClasses();  // `classes` is as long as slots.classes()
  uint32_t OpenNamespace(std::string_view id, uint64_t chunk_bytes);
  uint64_t ClearNamespace(uint32_t ns);
  void WithholdNamespace(uint32_t ns);
  void EndWithhold(uint32_t ns, bool keep);
  // Makes an epoch in which there is nothing yet the present one; how many chunks that left behind.
  uint64_t BeginEpoch(uint32_t ns);
  uint64_t EpochBelow(uint32_t ns) const;
  void NoteEpochsBelow();

  // ---- observe.cc, audit.cc ----
  std::vector<Counter> Stats() const;
  std::vector<NamespaceStats> Namespaces() const;
  std::vector<SessionStats> Sessions() const;
  std::vector<ChunkInfo> ListChunks(uint32_t ns, uint32_t after, uint32_t limit) const;
  uint64_t IndexBytes() const;
  std::vector<std::string> Audit() const;

  mutable std::mutex mutex;
  const std::shared_ptr<Arena> arena;
  const StoreOptions options;
  IndexWriter index;
  const IndexReader reader;
  SlotTable slots;
  const PolicyFactory make_policy;
  std::vector<ClassEntry> classes;  // as slots.classes()
  std::vector<NamespaceEntry> namespaces;
  std::unordered_map<std::string, uint32_t> namespace_by_id;
  std::unordered_map<SessionId, SessionRecord> sessions;
  std::unordered_map<LeaseId, LeaseRecord> leases;
  std::vector<Quarantine> quarantines;
  std::atomic<LowerTier*> lower{nullptr};                   // changed under the mutex
  std::unordered_map<uint32_t, LostPromote> lost_promotes;  // by slot
  std::vector<uint32_t> late_slots;                         // quarantined for late reads of an earlier daemon
  uint64_t late_until_ms = 0;
  std::unordered_map<uint32_t, uint32_t> demote_pins;  // by slot
  std::vector<uint32_t> records_committed;             // per slab: slots whose record has memory
  std::vector<uint32_t> key_tails_committed;           // per slab: the same for key tails
  KeyScratch scratch;
  Checks checks;
  StoreCounters counters;
  uint64_t stale_slots = 0;         // committed under another epoch than the present one
  uint64_t withheld_slots = 0;      // of these, those that may come back
  std::condition_variable settled;  // a namespace withholds nothing any more
  uint64_t chunk_bytes = 0;         // of readable chunks
  uint32_t reclaim_cursor = 0;
  uint32_t leaving_slab = kNone;
  ClassId claimant = kNone;  // below its floor: what was emptied last is kept for it; see Claim
  uint64_t claimed_until_ms = 0;
  uint32_t drain_budget = 0;  // chunks that this call may still evict to empty a slab
  uint64_t tick = 0;          // one for every batch
  LeaseId last_lease = 0;
  SessionId last_session = 0;
  FreeRows lease_rows, session_rows;
  RestartReport restart;
  bool draining = false;
  std::atomic<bool> room_wanted{false};  // changed under the mutex
};

// A steady clock in milliseconds; the one whose time ExpireLeases is given.
uint64_t SteadyMs();

}  // namespace tpu_sync_native
