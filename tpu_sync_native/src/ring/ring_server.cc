#include "ring/ring_server.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace tpu_sync_native {

class RingServer::Change {
 public:
  explicit Change(RingServer& server) : server_(server) {
    server_.changes_waiting_.fetch_add(1);
    server_.mutex_.lock();
  }
  ~Change() {
    server_.mutex_.unlock();
    server_.changes_waiting_.fetch_sub(1);
    server_.changes_waiting_.notify_all();
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  RingServer& server_;
};

RingServer::RingServer(Store& store, int doorbell_fd)
    : store_(store), doorbell_(Doorbell::Create(doorbell_fd)) {}

RingServer::~RingServer() { Stop(); }

void RingServer::Start() {
  if (thread_.joinable()) return;
  stop_ = false;
  thread_ = std::thread([this] { Run(); });
}

void RingServer::Stop() {
  stop_ = true;
  doorbell_.Ring();
  if (thread_.joinable()) thread_.join();
  const Change change(*this);
  for (auto& served : rings_) CloseLocked(*served);
  rings_.clear();
}

void RingServer::Add(SessionId session, int ring_fd) {
  auto served = std::make_unique<Served>(Served{session, RingMap::Create(ring_fd)});
  // The thread may be asleep and has not announced it in this ring.
  served->ring.header().server_rest.store(kSleeping, std::memory_order_seq_cst);
  const Change change(*this);
  rings_.push_back(std::move(served));
  sessions_.fetch_add(1, std::memory_order_relaxed);
}

void RingServer::Remove(SessionId session) {
  const Change change(*this);
  const auto found = std::find_if(rings_.begin(), rings_.end(),
                                  [&](const auto& served) { return served->session == session; });
  if (found == rings_.end()) return;
  Served& served = **found;
  const uint64_t tail = served.ring.header().request_tail.load(std::memory_order_seq_cst);
  for (uint64_t n = kRequestAreaBytes / kRecordUnit; n > 0 && served.head != tail; --n) {
    if (ServeOneLocked(served) != Step::kServed) break;
  }
  CloseLocked(served);
  rings_.erase(found);
}

std::vector<Counter> RingServer::Counters() const {
  return {{"ring_sessions", sessions_.load()},
          {"ring_requests", requests_.load()},
          {"ring_posted_failures", posted_failures_.load()},
          {"ring_sleeps", sleeps_.load()},
          {"ring_closed_for_lies", rings_closed_.load()},
          {"ring_busy_ns", busy_ns_.load()},
          {"ring_room_ns", room_ns_.load()}};
}

void RingServer::Run() {
  pthread_setname_np(pthread_self(), "kvtier-ring");
  // An engine waits for this thread, which runs for microseconds: it should not queue behind CPU-bound ones.
  // Best effort: without the privilege it stays as it is.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
  while (!stop_.load(std::memory_order_relaxed)) {
    for (uint32_t n; (n = changes_waiting_.load()) != 0;) changes_waiting_.wait(n);
    const uint64_t before_ns = SteadyNs();
    uint32_t served = 0;
    {
      const std::lock_guard lock(mutex_);
      served = LookLocked();
    }
    if (served != 0) {
      const uint64_t after_ns = SteadyNs();
      busy_ns_.fetch_add(after_ns - before_ns, std::memory_order_relaxed);
      pace_.Served(after_ns);
      if (after_ns >= tick_ns_) KeepHouse(after_ns);
    } else if (before_ns >= tick_ns_) {
      KeepHouse(before_ns);
    } else if (store_.RoomWanted()) {
      MakeRoom(before_ns);
    } else if (pace_.Spin(before_ns)) {
      CpuRelax();
      sched_yield();  // a client may have been put on this very core
    } else {
      Sleep(before_ns);
    }
  }
}

uint32_t RingServer::LookLocked() {
  uint32_t requests = 0;
  bool closed = false;
  for (auto& served : rings_) {
    if (announced_) served->ring.header().server_rest.store(kAwake, std::memory_order_relaxed);
    for (uint32_t n = 0; n < kRequestsPerLookMax; ++n) {
      const Step step = ServeOneLocked(*served);
      if (step == Step::kServed) {
        ++requests;
        continue;
      }
      if (step == Step::kLie) {
        rings_closed_.fetch_add(1, std::memory_order_relaxed);
        CloseLocked(*served);
        served.reset();
        closed = true;
      }
      break;
    }
  }
  announced_ = false;
  if (closed) std::erase(rings_, nullptr);
  return requests;
}

RingServer::Step RingServer::ServeOneLocked(Served& served) {
  const ReadOutcome outcome = reader_.Read(served.ring, served.head);
  if (outcome == ReadOutcome::kEmpty) return Step::kEmpty;
  if (outcome == ReadOutcome::kLie) return Step::kLie;
  RingHeader& header = served.ring.header();
  served.head += reader_.record_bytes();
  header.request_head.store(served.head, std::memory_order_seq_cst);
  if (outcome == ReadOutcome::kRequest) {
    requests_.fetch_add(1, std::memory_order_relaxed);
    Answer(served);
  }
  if (header.client_sleeping.load(std::memory_order_seq_cst) == 2) {
    header.client_futex.fetch_add(1, std::memory_order_seq_cst);
    FutexWake(header.client_futex);
  }
  return Step::kServed;
}

void RingServer::Answer(Served& served) {
  const RequestHeader& request = reader_.header();
  Outcome outcome = Outcome::kOk;
  switch (reader_.op()) {
    case Op::kLease: {
      const ReadGrant grant = store_.Lease(served.session, request.ns, reader_.keys());
      return Reply(served, grant.outcome, grant.lease, grant.slots.data(),
                   static_cast<uint32_t>(grant.slots.size()), nullptr, 0);
    }
    case Op::kReserve: {
      const WriteGrant grant = store_.Reserve(served.session, request.ns, reader_.keys());
      return Reply(served, grant.outcome, grant.lease, grant.slots.data(),
                   static_cast<uint32_t>(grant.slots.size()), grant.grants.data(),
                   static_cast<uint32_t>(grant.grants.size()));
    }
    case Op::kRelease:
      outcome = store_.Release(served.session, request.lease);
      break;
    case Op::kCommit:
      outcome = store_.Commit(served.session, request.lease, reader_.keep());
      break;
    case Op::kAbort:
      outcome = store_.Abort(served.session, request.lease);
      break;
    case Op::kTouch:
      outcome = store_.Touch(served.session, request.ns, reader_.keys());
      break;
    case Op::kRenew:
      outcome = store_.Renew(served.session, request.ns, reader_.keys());
      break;
    case Op::kPrefetch:
      store_.Prefetch(request.ns, reader_.keys());
      break;
    case Op::kDrained:
      store_.CloseSession(served.session, /*drained=*/true);
      break;
    case Op::kPing:
    case Op::kSkip:
      break;
  }
  Reply(served, outcome, request.lease, nullptr, 0, nullptr, 0);
}

void RingServer::Reply(Served& served, Outcome outcome, LeaseId lease, const SlotRef* slots,
                       uint32_t slot_count, const Grant* grants, uint32_t grant_count) {
  const RequestHeader& request = reader_.header();
  if (request.wants_reply == 0) {
    if (outcome != Outcome::kOk) posted_failures_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  RingHeader& header = served.ring.header();
  std::byte* const area = served.ring.reply();
  ReplyHeader reply{};
  reply.sequence = request.sequence;
  reply.lease = lease;
  reply.slot_count = slot_count;
  reply.grant_count = grant_count;
  reply.outcome = static_cast<uint8_t>(outcome);
  std::memcpy(area, &reply, sizeof(reply));
  std::byte* const slot_bytes = area + sizeof(reply);
  if (slot_count != 0) std::memcpy(slot_bytes, slots, slot_count * sizeof(SlotRef));
  if (grant_count != 0) std::memcpy(slot_bytes + slot_count * sizeof(SlotRef), grants, grant_count);
  header.reply_sequence.store(request.sequence, std::memory_order_seq_cst);
  if (header.client_sleeping.load(std::memory_order_seq_cst) == 1) {
    header.client_futex.fetch_add(1, std::memory_order_seq_cst);
    FutexWake(header.client_futex);
  }
}

void RingServer::CloseLocked(Served& served) {
  sessions_.fetch_sub(1, std::memory_order_relaxed);
  RingHeader& header = served.ring.header();
  header.server_closed.store(1, std::memory_order_seq_cst);
  header.client_futex.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(header.client_futex);
}

void RingServer::KeepHouse(uint64_t now_ns) {
  store_.ExpireLeases(now_ns / kNsPerMs);
  const bool more = store_.ReclaimStale(kReclaimSlotsMax) == kReclaimSlotsMax;
  tick_ns_ = now_ns + (more ? kReclaimAgainNs : kTickNs);
}

void RingServer::MakeRoom(uint64_t now_ns) {
  store_.MakeRoom();
  const uint64_t after_ns = SteadyNs();
  room_ns_.fetch_add(after_ns - now_ns, std::memory_order_relaxed);
  pace_.Slept(after_ns);
}

void RingServer::Sleep(uint64_t now_ns) {
  const bool nap = now_ns - pace_.served_ns() < kNapWindowNs;
  const uint64_t rest_ns = (nap ? kNapMs : kSleepMs) * kNsPerMs;
  uint32_t rung = 0;
  {
    const std::lock_guard lock(mutex_);
    // Before the announcement: a client that was late to ring for an earlier request says kAwake, then rings.
    // Rung after this load, it keeps this thread from sleeping; rung before, what it said is overwritten.
    rung = doorbell_.word().load(std::memory_order_seq_cst);
    announced_ = true;
    for (auto& served : rings_) {
      served->ring.header().server_rest.store(nap ? kNapping : kSleeping, std::memory_order_seq_cst);
    }
    for (auto& served : rings_) {
      if (served->ring.header().request_tail.load(std::memory_order_seq_cst) != served->head) return;
    }
  }
  if (stop_.load()) return;
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  FutexWait(doorbell_.word(), rung, std::min(now_ns + rest_ns, std::max(tick_ns_, now_ns + kNsPerMs)));
  pace_.Slept(SteadyNs());
}

}  // namespace tpu_sync_native
