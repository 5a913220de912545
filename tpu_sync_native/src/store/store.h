// The host tier: who may use which slot, and what lies in it.
//
// States of a slot:
//
//   FREE -Reserve-> RESERVED -Commit-> COMMITTED (evictable when unpinned) -evict-> FREE
//                   RESERVED -Abort-> FREE
//                   RESERVED -session died or lease expired-> QUARANTINED -group drained or gone-> FREE
//   FREE -Lease or Prefetch of a chunk below-> PROMOTING -read-> COMMITTED
//                   PROMOTING -failed-> FREE, or QUARANTINED while somebody leases it or may write into it
//
// Only Commit makes a chunk readable. Nothing is pinned without an owner and a deadline: a pin belongs to a
// read lease, a read lease to a session. A session belongs to a group (the processes of one engine); slots a
// dead session had reserved stay quarantined until no other process of its group can still be writing them.
//
// Threads: every method is thread-safe (one mutex inside; the store is the only writer of the shared
// metadata). No method but AwaitSettled blocks on anything but that mutex, and none holds it for longer than
// one batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/keys.h"        // KeyBatch, SlotRef
#include "index/meta_file.h"  // HostBoot
#include "index/tier_hits.h"  // TierHits
#include "store/checks.h"
#include "store/defaults.h"
#include "store/lower_tier.h"

namespace tpu_sync_native {

class Arena;  // arena/arena.h: the mapped payload file, its slabs and how far it is pre-faulted

using SessionId = uint64_t;
using GroupId = uint64_t;
using LeaseId = uint64_t;  // never reused within an arena's life; 0 is no lease

// More keys than this in one call are refused (kBatchTooLarge): it bounds how long the mutex is held.
inline constexpr uint32_t kBatchKeysMax = 65536;

enum class Outcome : uint8_t {
  kOk = 0,
  kUnknownNamespace,  // no such index (or of an earlier boot)
  kUnknownSession,
  kUnknownLease,  // never granted, already given back, or expired
  kBadKey,        // a key's length is outside 16..64
  kBatchTooLarge,
  kDraining,  // the daemon is stopping: no new leases
  kCleared,   // commit only: the namespace was cleared since the reserve; the chunks are gone
};

enum class Grant : uint8_t {
  kGranted = 0,
  kPresent,  // already committed
  kPending,  // another writer has it reserved
  kNoSpace,  // nothing evictable
};

struct ReadGrant {
  Outcome outcome = Outcome::kOk;
  LeaseId lease = 0;           // 0 when slots is empty
  std::vector<SlotRef> slots;  // the leading hits, in key order; some may still be kPromoting
};

struct WriteGrant {
  Outcome outcome = Outcome::kOk;
  LeaseId lease = 0;           // 0 when nothing was granted
  std::vector<Grant> grants;   // one per key
  std::vector<SlotRef> slots;  // one per granted key, in key order
};

// A process as a later daemon can find it again.
struct ProcessMark {
  uint64_t start = 0;  // when it began, as /proc/PID/stat says it; 0 = unknown
  uint64_t space = 0;  // in which PID namespace its pid means something; 0 = unknown
  bool maps = true;    // it has the arena mapped, so it may write into granted slots
};

struct StoreOptions {
  uint64_t boot_id = 0;
  HostBoot host = {};      // see index/meta_file.h
  bool keep = false;       // take over the chunks of an earlier daemon: the files must fit, see WhyNotKept
  uint32_t slots_max = 0;  // 0: DefaultSlotsMax of the arena
  uint32_t namespaces_max = 1024;
  std::string policy = "lru";   // a name in policy/registry.h
  uint64_t lease_ms = 600'000;  // a lease not given back by then is taken back
  // How long after a restart a read of storage may land that the kernel had begun for the daemon before.
  uint64_t late_read_ms = 600'000;
  ChecksumPolicy checksum = ChecksumPolicy::kOff;
};

struct Counter {
  std::string_view name;
  uint64_t value;
};

// What became of an earlier daemon's chunks. Chunks that were not kept are counted by reason.
struct RestartReport {
  uint64_t restarts = 0;     // in the life of the arena
  uint64_t kept = 0;         // chunks served again
  uint64_t quarantined = 0;  // slots that a process of before may still be writing into
  uint64_t late = 0;         // slots that a read of storage of before may still land in
  uint64_t unfinished = 0;   // reserved, with no such process
  uint64_t cleared = 0;      // of a namespace's earlier epoch
  uint64_t damaged = 0;      // torn, or not consistent with what stands beside it
  uint64_t microseconds = 0;
};

// A session of an earlier daemon whose process may still be writing into quarantined slots.
struct RestoredSession {
  SessionId session;
  GroupId group;
  uint64_t boot_id;
  uint32_t pid;
  ProcessMark mark;
};

class Store {
 public:
  // Takes the arena and a metadata file: an empty one, made anew here, or with `keep` that of an earlier
  // daemon. Throws std::invalid_argument naming the option; construction and namespace set-up are the control
  // path.
  Store(std::shared_ptr<Arena> arena, int meta_fd, const StoreOptions& options);
  ~Store();

  // Why these files cannot be kept by a store of these options, in words that name the field and both values;
  // empty: they can.
  static std::string WhyNotKept(int data_fd, uint64_t data_bytes, uint64_t slab_bytes, int meta_fd,
                                const StoreOptions& options);
  RestartReport restart_report() const;
  // Closed, and known to be still about: whoever made the store sees to it that CloseSession says of each
  // that it is drained, or gone.
  std::vector<RestoredSession> RestoredSessions() const;
  // The highest session number that was ever open in this arena.
  SessionId last_session() const;

  // ---- namespaces (control path; throw std::invalid_argument) ----
  // Index of the namespace `id` (16 bytes), made if new. Refuses another chunk size for a known id, and a
  // chunk larger than a slab. When there are namespaces_max, one of an earlier daemon that left no slots and
  // that nobody has opened since makes way.
  uint32_t OpenNamespace(std::string_view id, uint64_t chunk_bytes);
  // Makes every chunk of the namespace unreadable at once (epoch + 1). Returns how many were committed.
  uint64_t ClearNamespace(uint32_t ns);
  // The namespace's floor: so many bytes of its chunks are evicted for none but itself, and it gets so many,
  // from whoever has more than its own floor, before it evicts its own. 0: none. Holds for what is stored
  // from now on; what lies here already shares slabs with others. Outlives the daemon. Refused when the arena
  // has not as many slabs as all floors together need.
  void SetFloor(uint32_t ns, uint64_t bytes);
  // NamespaceRecord::epoch_below of one; and brought up to date, of all, from what the tier below says.
  uint64_t EpochBelow(uint32_t ns) const;
  void NoteEpochsBelow();
  void SetEpochBelow(uint32_t ns, uint64_t word);
  // For a namespace of an earlier daemon that is opened by somebody who does not know of which epoch below
  // its chunks are: none of them is served until the tier below has said of which epoch the namespace is (see
  // EpochWord). If it is theirs they are back then, else they are gone. What is stored meanwhile is served.
  void WithholdNamespace(uint32_t ns);
  // NamespaceRecord::epoch_below of what is withheld of it; 0: nothing is.
  uint64_t WithheldBelow(uint32_t ns) const;
  // Waits until nothing of the namespace is withheld; false when the time was over first.
  bool AwaitSettled(uint32_t ns, uint64_t wait_ms);

  // ---- sessions ----
  void OpenSession(SessionId session, GroupId group, uint32_t pid, const ProcessMark& mark = {});
  // The process is gone (drained = true when it said so itself, or its end is proven; false when only the
  // connection ended and it may still be writing). Read leases go back at once, write leases are aborted
  // (drained, and no other process in the group) or quarantined; those not in `held`, if it is given, are
  // aborted at once: the process says that it never learned of them. The same with `held` ends such
  // quarantines of a session that was closed before, or restored. Calling again with drained = true ends this
  // session's part in its group's quarantines. Idempotent. True: it may still be writing, so somebody must
  // see to its process's end, or say who succeeds it.
  bool CloseSession(SessionId session, bool drained, const std::vector<LeaseId>* held = nullptr);
  // `heir` is the next session of the client that had `former`, which is closed: what its end is waited for
  // waits for the heir's from now on. False, and nothing is done: one of them is not there, or in another
  // group.
  bool Succeed(SessionId former, SessionId heir);

  // ---- the hot calls; served from the ring, and the same over gRPC ----
  // Leading keys that can be read, from both tiers; a hint, no side effect.
  TierHits LookupTiers(uint32_t ns, const KeyBatch& keys) const;
  uint32_t LongestPrefix(uint32_t ns, const KeyBatch& keys) const { return LookupTiers(ns, keys).chunks; }
  ReadGrant Lease(SessionId session, uint32_t ns, const KeyBatch& keys);
  Outcome Release(SessionId session, LeaseId lease);
  WriteGrant Reserve(SessionId session, uint32_t ns, const KeyBatch& keys);
  // Both say that nobody of the group writes under the lease any more. That frees its slots even when the
  // lease was taken back before and they are quarantined; the answer is kUnknownLease then.
  // keep: bit i says whether granted slot i is committed (else aborted); empty = all.
  Outcome Commit(SessionId session, LeaseId lease, std::span<const uint8_t> keep = {});
  Outcome Abort(SessionId session, LeaseId lease);
  Outcome Touch(SessionId session, uint32_t ns, const KeyBatch& keys);  // somebody had a use for these
  // What was reserved after these belongs behind them: they are to go after it. No use.
  Outcome Renew(SessionId session, uint32_t ns, const KeyBatch& keys);

  // ---- the tier below; see lower_tier.h ----
  // Before the first session. Null: there is none (any more): it is not called again once this has returned.
  void SetLowerTier(LowerTier* lower);
  // As Lease without the lease: what lies below is promoted, what lies here is touched. How many are
  // promoted.
  uint32_t Prefetch(uint32_t ns, const KeyBatch& keys);
  // Each promote ends once: readable, or lost to whoever leases it. Others than those under way are ignored.
  // kLost gives the slot back; kLostBusy keeps it aside until kGone, because a read may still write into it.
  enum class PromoteEnd : uint8_t { kReadable, kLost, kLostBusy, kGone };
  void EndPromotes(std::span<const SlotRef> refs, PromoteEnd end);
  // Pins those of `slots` that are committed chunks of `ns` under `epoch`, with their keys.
  std::vector<DemoteChunk> PinForDemote(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots);
  void EndDemote(std::span<const DemoteChunk> chunks);

  // ---- checksums of payloads in memory; see checks.cc ----
  // Work that is to be done now, and whether to ask again at once; else the bell says when.
  bool TakeChecks(std::vector<ChunkCheck>* checks);
  void EndChecks(std::span<const ChunkCheck> checks);
  CheckBell& check_bell();
  ChecksumPolicy checksum_policy() const;
  // Chunks that were dropped since the last call because they were not as they had been; not all of many.
  std::vector<DamagedChunk> TakeDamaged();

  // ---- per second (called by the daemon's housekeeping thread) ----
  void ExpireLeases(uint64_t now_ms);         // steady clock; tests pass their own time
  uint64_t ReclaimStale(uint64_t slots_max);  // frees slots of cleared epochs; returns how many
  void SetDraining(bool draining);

  // ---- when nobody asks for anything ----
  // One step of making room for the next reserve, some microseconds; true when more may be done. RoomWanted
  // costs a load and says whether it is worth the call.
  bool MakeRoom();
  bool RoomWanted() const;

  // ---- admin and observation ----
  uint64_t Evict(uint32_t ns, uint64_t bytes);  // evict unpinned chunks of one namespace; bytes freed
  std::vector<Counter> Stats() const;           // names in stats.h; gauges and monotonic counters
  struct NamespaceStats {
    uint32_t index;
    std::string id;
    uint64_t chunk_bytes, epoch, chunks, bytes, hits, misses, stores, evictions, floor_bytes;
  };
  struct SessionStats {
    SessionId session;
    GroupId group;
    uint32_t pid;
    uint64_t read_leases, write_leases, pinned_slots, reserved_slots;
  };
  struct ChunkInfo {
    std::string key;
    uint32_t slot, generation, pins;
    uint64_t offset;
    uint8_t state;
  };
  std::vector<NamespaceStats> Namespaces() const;
  std::vector<SessionStats> Sessions() const;
  // Chunks of a namespace from slot `after` on (exclusive; kNoSlot = from the start), at most limit.
  std::vector<ChunkInfo> ListChunks(uint32_t ns, uint32_t after, uint32_t limit) const;
  // Checks every invariant (docs/protocol.md) and returns the broken ones in words; empty when sound. For
  // tests.
  std::vector<std::string> Audit() const;

  struct Impl;  // store_impl.h

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
