// One process's life with the daemon, over shared memory.
//
// Lost: after one missed deadline, a ring the daemon closed, another boot id, a fork, or MarkLost (the
// session socket ended), a session is lost for good. Every later call then returns at once; a lookup says 0.
// Nothing undoes it: the owner attaches anew and gets another session. The maps stay readable as long as
// somebody holds them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/arena_map.h"
#include "client/catalog_map.h"
#include "client/ring_client.h"
#include "client/tier_lookup.h"
#include "store/store.h"

namespace tpu_sync_native {

enum class Lost : uint8_t {
  kNo = 0,
  kDeadline,   // the daemon did not answer in time
  kClosed,     // the daemon closed the ring
  kOtherBoot,  // a daemon of another boot owns the metadata now
  kForked,     // this is a child of the process that attached
  kMarked,     // the session socket ended, or the session was closed
};
const char* ToText(Lost lost);

// What a posted request came to.
enum class Posted { kYes, kWouldWait, kLost };

// Thread-safe. Lookups take no lock.
class Session {
 public:
  // Maps the files; the descriptors may be closed afterwards. catalog_fd below 0: nothing is found on
  // storage. Throws std::invalid_argument, std::system_error.
  Session(int data_fd, int meta_fd, int ring_fd, int doorbell_fd, int catalog_fd, uint64_t deadline_ms);

  // Why the session is lost, or kNo. Cheap: a getpid and two loads.
  Lost lost() const;
  void MarkLost() { SetLost(Lost::kMarked); }

  // Leading keys that are readable from any tier; no IPC, no side effect; none when lost.
  TierHits Lookup(uint32_t ns, const KeyBatch& keys) const;
  // Of each key by itself whether it is readable; nothing is when lost.
  void Present(uint32_t ns, const KeyBatch& keys, bool* present) const;

  // NamespaceRecord::epoch_below, as the daemon left it; also when lost.
  uint64_t EpochBelow(uint32_t ns) const;

  // Wait for the daemon. On anything but kNo, `reply` means nothing.
  Lost Call(const Outgoing& request, Incoming* reply);
  // Returns before the daemon has seen it. `may_wait` false: kWouldWait rather than any wait.
  Posted Post(const Outgoing& request, bool may_wait);

  // Waits until each slot is committed under its generation or lost, at most until the deadline (of
  // SteadyNs); ends early when the session is lost. Returns how many leading ones are committed. Sleeps on
  // the daemon's word that promotes have ended; as a dead daemon says nothing, it looks after itself now and
  // then.
  uint32_t WaitReady(std::span<const uint32_t> slots, std::span<const uint32_t> generations,
                     uint64_t deadline_ns) const;
  // Per slot, whether it is reserved, promoting or committed under this very generation still.
  void Unchanged(std::span<const uint32_t> slots, std::span<const uint32_t> generations,
                 bool* unchanged) const;

  const std::shared_ptr<const ArenaMap>& arena() const { return arena_; }
  // Not kNo once somebody has noticed that the session is lost; for those who may outlive it.
  std::shared_ptr<const std::atomic<Lost>> lost_flag() const { return lost_; }
  std::vector<Counter> Counters() const;

 private:
  void SetLost(Lost reason) const;
  Lost Judge(RingStatus status) const;

  static constexpr uint64_t kLookMs = 50;

  const std::shared_ptr<const ArenaMap> arena_;
  const CatalogMap catalog_;
  RingClient ring_;
  const int32_t pid_;
  const std::shared_ptr<std::atomic<Lost>> lost_ = std::make_shared<std::atomic<Lost>>(Lost::kNo);
  mutable std::atomic<uint64_t> lookups_{0}, lookup_keys_{0}, lookup_hits_{0}, lookup_storage_hits_{0},
      timeouts_{0};
  std::atomic<uint64_t> calls_{0}, posts_{0}, call_ns_{0};
};

}  // namespace tpu_sync_native
