// The client's half of one ring: writes records, waits for replies, never longer than the deadline.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ring/futex.h"
#include "ring/ring_map.h"
#include "store/store.h"
#include "tpu_sync_native/ring_layout.h"

namespace tpu_sync_native {

struct Outgoing {
  Op op;
  LeaseId lease = 0;
  uint32_t ns = 0;
  const KeyBatch* keys = nullptr;      // lease, reserve, touch, renew, prefetch
  std::span<const uint8_t> keep = {};  // commit
};

struct Incoming {
  Outcome outcome = Outcome::kOk;
  LeaseId lease = 0;
  std::vector<SlotRef> slots;
  std::vector<Grant> grants;
};

enum class RingStatus {
  kOk,
  kBusy,      // TryPost only: another thread has the ring, or it is full
  kDeadline,  // no answer in time; the ring must not be used again, for a late reply may still be written to
              // it
  kClosed,    // the server serves this ring no more, or its counters make no sense
};

// Thread-safe: one call at a time, under a lock whose wait counts towards the caller's deadline.
class RingClient {
 public:
  // Throws std::invalid_argument when a file does not fit. The descriptors may be closed afterwards.
  RingClient(int ring_fd, int doorbell_fd, uint64_t deadline_ns);

  // Sends and waits for the reply.
  RingStatus Call(const Outgoing& request, Incoming* reply);
  // Sends without a reply; waits (bounded) only when the ring is full or in use.
  RingStatus Post(const Outgoing& request);
  // The same, but kBusy instead of any wait.
  RingStatus TryPost(const Outgoing& request);

 private:
  RingStatus SendLocked(const Outgoing& request, bool wants_reply, bool may_wait, uint64_t deadline_ns,
                        bool* woke);
  RingStatus MakeRoomLocked(uint64_t record_bytes, bool may_wait, uint64_t deadline_ns);
  void WriteRecord(const Outgoing& request, bool wants_reply, uint64_t record_bytes);
  RingStatus AwaitReplyLocked(bool spin, uint64_t deadline_ns);
  RingStatus TakeReplyLocked(uint64_t keys_max, Incoming* reply) const;
  // Sleeps (`reason` 1: for a reply, 2: for space) until `done()` or the deadline.
  template <typename Done>
  RingStatus SleepUntil(uint32_t reason, uint64_t deadline_ns, Done done);

  void WakeServer();

  static constexpr uint64_t kSpinNs = 100 * kNsPerUs;
  // After spins in vain, calls that go to sleep at once: the server had no core to answer from. Twice as many
  // each time in a row: a client that sleeps comes back late, so the server spins in vain as well, and one
  // hiccup would slow the next hundred calls.
  static constexpr uint32_t kSpinSkipsMax = 64;
  // An empty ring goes back to its start once it stands behind this place: its first pages stay in the cache.
  static constexpr uint64_t kRewindBytes = 64u << 10;

  RingMap ring_;
  Doorbell doorbell_;
  const uint64_t deadline_ns_;
  DeadlineLock lock_;
  uint64_t tail_ = 0;             // guarded by lock_; the shared one is only told
  uint64_t sequence_ = 0;         // guarded by lock_
  uint32_t spin_skips_ = 0;       // guarded by lock_
  uint32_t spin_skips_next_ = 1;  // guarded by lock_
};

}  // namespace tpu_sync_native
