#include "client/ring_client.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace tpu_sync_native {
namespace {

constexpr uint64_t RoundUp(uint64_t bytes) { return (bytes + kRecordUnit - 1) / kRecordUnit * kRecordUnit; }

uint64_t BodyBytes(const Outgoing& request) {
  if (request.keys == nullptr) return request.keep.size();
  return (request.keys->count + 1ull) * sizeof(uint32_t) + request.keys->offsets[request.keys->count];
}

class Unlocker {
 public:
  explicit Unlocker(DeadlineLock& lock) : lock_(lock) {}
  ~Unlocker() { lock_.Unlock(); }
  Unlocker(const Unlocker&) = delete;
  Unlocker& operator=(const Unlocker&) = delete;

 private:
  DeadlineLock& lock_;
};

}  // namespace

RingClient::RingClient(int ring_fd, int doorbell_fd, uint64_t deadline_ns)
    : ring_(RingMap::Open(ring_fd)), doorbell_(Doorbell::Open(doorbell_fd)), deadline_ns_(deadline_ns) {}

RingStatus RingClient::Call(const Outgoing& request, Incoming* reply) {
  const uint64_t deadline_ns = SteadyNs() + deadline_ns_;
  if (!lock_.LockUntil(deadline_ns)) return RingStatus::kDeadline;
  const Unlocker unlocker(lock_);
  bool woke = false;
  RingStatus status = SendLocked(request, /*wants_reply=*/true, /*may_wait=*/true, deadline_ns, &woke);
  if (status != RingStatus::kOk) return status;
  // A server that had to be woken needs the core more than it needs to be watched.
  status = AwaitReplyLocked(/*spin=*/!woke, deadline_ns);
  if (status != RingStatus::kOk) return status;
  return TakeReplyLocked(request.keys == nullptr ? 0 : request.keys->count, reply);
}

RingStatus RingClient::Post(const Outgoing& request) {
  const uint64_t deadline_ns = SteadyNs() + deadline_ns_;
  if (!lock_.LockUntil(deadline_ns)) return RingStatus::kDeadline;
  const Unlocker unlocker(lock_);
  bool woke = false;
  return SendLocked(request, /*wants_reply=*/false, /*may_wait=*/true, deadline_ns, &woke);
}

RingStatus RingClient::TryPost(const Outgoing& request) {
  if (!lock_.TryLock()) return RingStatus::kBusy;
  const Unlocker unlocker(lock_);
  bool woke = false;
  return SendLocked(request, /*wants_reply=*/false, /*may_wait=*/false, /*deadline_ns=*/0, &woke);
}

RingStatus RingClient::SendLocked(const Outgoing& request, bool wants_reply, bool may_wait,
                                  uint64_t deadline_ns, bool* woke) {
  RingHeader& header = ring_.header();
  const uint64_t record_bytes = RoundUp(sizeof(RequestHeader) + BodyBytes(request));
  const RingStatus room = MakeRoomLocked(record_bytes, may_wait, deadline_ns);
  if (room != RingStatus::kOk) return room;
  WriteRecord(request, wants_reply, record_bytes);
  tail_ += record_bytes;
  header.request_tail.store(tail_, std::memory_order_seq_cst);
  // The server announced its rest before its last look: either it saw the tail, or we see the announcement.
  const uint32_t rest = header.server_rest.load(std::memory_order_seq_cst);
  const bool wakes = request.op == Op::kCommit || request.op == Op::kPrefetch;
  const bool urgent = wants_reply || (wakes && rest == kSleeping);
  if (rest != kAwake && urgent) {
    WakeServer();
    *woke = true;
  }
  return RingStatus::kOk;
}

void RingClient::WakeServer() {
  ring_.header().server_rest.store(kAwake, std::memory_order_relaxed);
  doorbell_.Ring();
}

RingStatus RingClient::MakeRoomLocked(uint64_t record_bytes, bool may_wait, uint64_t deadline_ns) {
  RingHeader& header = ring_.header();
  const auto used = [&] { return tail_ - header.request_head.load(std::memory_order_seq_cst); };
  uint64_t used_bytes = used();
  if (header.server_closed.load(std::memory_order_relaxed) != 0 || used_bytes > kRequestAreaBytes) {
    return RingStatus::kClosed;
  }
  const uint64_t offset = tail_ % kRequestAreaBytes;
  const uint64_t until_end = kRequestAreaBytes - offset;
  // What is before `offset` must hold the record: the skip takes all that is behind it.
  const bool by_choice = used_bytes == 0 && offset >= kRewindBytes && offset >= record_bytes;
  const bool rewind = record_bytes > until_end || by_choice;
  const uint64_t needed_bytes = record_bytes + (rewind ? until_end : 0);
  if (kRequestAreaBytes - used_bytes < needed_bytes) {
    if (!may_wait) return RingStatus::kBusy;
    if (header.server_rest.load(std::memory_order_seq_cst) != kAwake) WakeServer();
    const RingStatus status = SleepUntil(2, deadline_ns, [&] {
      used_bytes = used();
      return used_bytes > kRequestAreaBytes || kRequestAreaBytes - used_bytes >= needed_bytes;
    });
    if (status != RingStatus::kOk) return status;
    if (used_bytes > kRequestAreaBytes) return RingStatus::kClosed;
  }
  if (rewind) {
    RequestHeader skip{};
    skip.record_bytes = static_cast<uint32_t>(until_end);
    skip.op = static_cast<uint8_t>(Op::kSkip);
    std::memcpy(ring_.requests() + offset, &skip, sizeof(skip));
    tail_ += until_end;
  }
  return RingStatus::kOk;
}

void RingClient::WriteRecord(const Outgoing& request, bool wants_reply, uint64_t record_bytes) {
  std::byte* const record = ring_.requests() + tail_ % kRequestAreaBytes;
  std::byte* const body = record + sizeof(RequestHeader);
  RequestHeader header{};
  header.record_bytes = static_cast<uint32_t>(record_bytes);
  header.op = static_cast<uint8_t>(request.op);
  header.wants_reply = wants_reply ? 1 : 0;
  header.sequence = ++sequence_;
  header.lease = request.lease;
  header.ns = request.ns;
  header.keep_bytes = static_cast<uint32_t>(request.keep.size());
  if (request.keys != nullptr) {
    const KeyBatch& keys = *request.keys;
    const uint64_t offsets_bytes = (keys.count + 1ull) * sizeof(uint32_t);
    header.key_count = keys.count;
    std::memcpy(body, keys.offsets, offsets_bytes);
    if (keys.offsets[keys.count] != 0)
      std::memcpy(body + offsets_bytes, keys.bytes, keys.offsets[keys.count]);
  } else if (!request.keep.empty()) {
    std::memcpy(body, request.keep.data(), request.keep.size());
  }
  std::memcpy(record, &header, sizeof(header));
}

RingStatus RingClient::AwaitReplyLocked(bool spin, uint64_t deadline_ns) {
  RingHeader& header = ring_.header();
  const auto replied = [&] { return header.reply_sequence.load(std::memory_order_seq_cst) == sequence_; };
  if (spin && spin_skips_ > 0) {
    --spin_skips_;
  } else if (spin) {
    const uint64_t spin_until_ns = std::min(SteadyNs() + kSpinNs, deadline_ns);
    uint64_t now_ns = 0;
    do {
      for (int i = 0; i < 8; ++i) {
        if (replied()) {
          spin_skips_next_ = 1;
          return RingStatus::kOk;
        }
        CpuRelax();
      }
      sched_yield();  // the server may have been put on this very core
      now_ns = SteadyNs();
    } while (now_ns < spin_until_ns);
    // Others want the core if it was away for long: then it is better to be woken than to queue.
    if (now_ns > spin_until_ns + kSpinNs) spin_skips_next_ = kSpinSkipsMax;
    spin_skips_ = spin_skips_next_;
    spin_skips_next_ = std::min(2 * spin_skips_next_, kSpinSkipsMax);
  }
  return SleepUntil(1, deadline_ns, replied);
}

template <typename Done>
RingStatus RingClient::SleepUntil(uint32_t reason, uint64_t deadline_ns, Done done) {
  RingHeader& header = ring_.header();
  header.client_sleeping.store(reason, std::memory_order_seq_cst);
  RingStatus status = RingStatus::kOk;
  for (;;) {
    const uint32_t rung = header.client_futex.load(std::memory_order_seq_cst);
    if (done()) break;
    if (header.server_closed.load(std::memory_order_seq_cst) != 0) {
      status = RingStatus::kClosed;
      break;
    }
    if (SteadyNs() >= deadline_ns) {
      status = RingStatus::kDeadline;
      break;
    }
    FutexWait(header.client_futex, rung, deadline_ns);
  }
  header.client_sleeping.store(0, std::memory_order_relaxed);
  return status;
}

RingStatus RingClient::TakeReplyLocked(uint64_t keys_max, Incoming* reply) const {
  const std::byte* const area = ring_.reply();
  ReplyHeader header{};
  std::memcpy(&header, area, sizeof(header));
  if (header.sequence != sequence_ || header.slot_count > keys_max || header.grant_count > keys_max) {
    return RingStatus::kClosed;
  }
  reply->outcome = static_cast<Outcome>(header.outcome);
  reply->lease = header.lease;
  reply->slots.resize(header.slot_count);
  reply->grants.resize(header.grant_count);
  const std::byte* const slots = area + sizeof(header);
  const uint64_t slots_bytes = header.slot_count * sizeof(SlotRef);
  if (slots_bytes != 0) std::memcpy(reply->slots.data(), slots, slots_bytes);
  if (header.grant_count != 0) std::memcpy(reply->grants.data(), slots + slots_bytes, header.grant_count);
  return RingStatus::kOk;
}

}  // namespace tpu_sync_native
