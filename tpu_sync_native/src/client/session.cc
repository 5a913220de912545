#include "client/session.h"

#include <unistd.h>

#include <algorithm>

namespace tpu_sync_native {

const char* ToText(Lost lost) {
  switch (lost) {
    case Lost::kNo:
      return "not lost";
    case Lost::kDeadline:
      return "the daemon did not answer in time";
    case Lost::kClosed:
      return "the daemon closed the ring";
    case Lost::kOtherBoot:
      return "the daemon has restarted";
    case Lost::kForked:
      return "the process has forked; the child must attach anew";
    case Lost::kMarked:
      return "the session has ended";
  }
  return "lost";
}

Session::Session(int data_fd, int meta_fd, int ring_fd, int doorbell_fd, int catalog_fd, uint64_t deadline_ms)
    : arena_(std::make_shared<const ArenaMap>(data_fd, meta_fd)),
      catalog_(catalog_fd),
      ring_(ring_fd, doorbell_fd, deadline_ms * kNsPerMs),
      pid_(getpid()) {}

void Session::SetLost(Lost reason) const {
  Lost none = Lost::kNo;
  lost_->compare_exchange_strong(none, reason);  // the first reason is the one to tell
}

Lost Session::lost() const {
  const Lost known = lost_->load(std::memory_order_acquire);
  if (known != Lost::kNo) return known;
  if (getpid() != pid_) {
    SetLost(Lost::kForked);
  } else if (!arena_->SameBoot()) {
    SetLost(Lost::kOtherBoot);
  }
  return lost_->load(std::memory_order_acquire);
}

Lost Session::Judge(RingStatus status) const {
  if (status == RingStatus::kDeadline) {
    timeouts_.fetch_add(1, std::memory_order_relaxed);
    SetLost(Lost::kDeadline);
  } else if (status == RingStatus::kClosed) {
    SetLost(Lost::kClosed);
  }
  return lost();
}

TierHits Session::Lookup(uint32_t ns, const KeyBatch& keys) const {
  if (lost() != Lost::kNo) return {};
  const TierHits hits = LookupTiers(arena_->index(), catalog_.reader(), ns, keys);
  lookups_.fetch_add(1, std::memory_order_relaxed);
  lookup_keys_.fetch_add(keys.count, std::memory_order_relaxed);
  lookup_hits_.fetch_add(hits.chunks, std::memory_order_relaxed);
  if (hits.chunks != hits.host_chunks) {
    lookup_storage_hits_.fetch_add(hits.chunks - hits.host_chunks, std::memory_order_relaxed);
  }
  return hits;
}

void Session::Present(uint32_t ns, const KeyBatch& keys, bool* present) const {
  if (lost() != Lost::kNo) {
    std::fill_n(present, keys.count, false);
    return;
  }
  const uint32_t found = EachPresent(arena_->index(), catalog_.reader(), ns, keys, present);
  lookups_.fetch_add(1, std::memory_order_relaxed);
  lookup_keys_.fetch_add(keys.count, std::memory_order_relaxed);
  lookup_hits_.fetch_add(found, std::memory_order_relaxed);
}

uint64_t Session::EpochBelow(uint32_t ns) const {
  const MetaView& view = arena_->index().view();
  return ns < view.namespaces_max() ? view.ns(ns).epoch_below.load(std::memory_order_acquire) : 0;
}

Lost Session::Call(const Outgoing& request, Incoming* reply) {
  if (const Lost known = lost(); known != Lost::kNo) return known;
  const uint64_t start_ns = SteadyNs();
  const Lost lost_now = Judge(ring_.Call(request, reply));
  calls_.fetch_add(1, std::memory_order_relaxed);
  call_ns_.fetch_add(SteadyNs() - start_ns, std::memory_order_relaxed);
  return lost_now;
}

Posted Session::Post(const Outgoing& request, bool may_wait) {
  if (lost() != Lost::kNo) return Posted::kLost;
  const RingStatus status = may_wait ? ring_.Post(request) : ring_.TryPost(request);
  if (status == RingStatus::kBusy) return Posted::kWouldWait;
  posts_.fetch_add(1, std::memory_order_relaxed);
  return Judge(status) == Lost::kNo ? Posted::kYes : Posted::kLost;
}

uint32_t Session::WaitReady(std::span<const uint32_t> slots, std::span<const uint32_t> generations,
                            uint64_t deadline_ns) const {
  const IndexReader& index = arena_->index();
  const auto state = [&](size_t i) { return index.StateOf(slots[i], generations[i]); };
  size_t decided = 0;  // slots before it are committed or lost: neither state is left again under a lease
  for (;;) {
    const uint32_t ended = index.promotes_ended();
    while (decided < slots.size() && state(decided) != SlotState::kPromoting) ++decided;
    const uint64_t now_ns = SteadyNs();
    if (decided == slots.size() || now_ns >= deadline_ns || lost() != Lost::kNo) break;
    index.AwaitPromotes(ended, std::min(deadline_ns, now_ns + kLookMs * kNsPerMs));
  }
  uint32_t ready = 0;
  while (ready < slots.size() && state(ready) == SlotState::kCommitted) ++ready;
  return ready;
}

void Session::Unchanged(std::span<const uint32_t> slots, std::span<const uint32_t> generations,
                        bool* unchanged) const {
  for (size_t i = 0; i < slots.size(); ++i)
    unchanged[i] = arena_->index().Unchanged(slots[i], generations[i]);
}

std::vector<Counter> Session::Counters() const {
  return {{"calls", calls_.load()},
          {"call_ns", call_ns_.load()},
          {"posts", posts_.load()},
          {"timeouts", timeouts_.load()},
          {"lookups", lookups_.load()},
          {"lookup_keys", lookup_keys_.load()},
          {"lookup_hits", lookup_hits_.load()},
          {"lookup_storage_hits", lookup_storage_hits_.load()},
          {"lost", lost() == Lost::kNo ? 0u : 1u}};
}

}  // namespace tpu_sync_native
