// The engines of one host, as truthful as can be: what bytes a chunk has follows from its key and from the
// weights that the host's engines have, and a clear gives them new ones. So whatever is read can be judged,
// whoever wrote it, and what a clear should have ended is told from what it should not. Slots that are
// granted hold rubbish until just before they are committed; who goes away without a word writes on.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "sim/life.h"
#include "tpu_sync_native/meta_layout.h"

namespace tpu_sync_native::testing {

inline constexpr uint64_t kSimNumbers = 60;  // keys in use; the arena holds 48 chunks at most

inline void FillBytes(std::byte* target, uint64_t bytes, uint64_t from) {
  for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = Mix(from + at, 0x9e3779b97f4a7c15ull);
    std::memcpy(target + at, &word, std::min<uint64_t>(sizeof(word), bytes - at));
  }
}
inline bool HasBytes(const std::byte* data, uint64_t bytes, uint64_t from) {
  for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = Mix(from + at, 0x9e3779b97f4a7c15ull);
    if (std::memcmp(data + at, &word, std::min<uint64_t>(sizeof(word), bytes - at)) != 0) return false;
  }
  return true;
}
inline uint64_t BytesFrom(uint32_t space, uint64_t number, uint64_t weights) {
  return Mix((number + 1) * 64 + space, 0xd1342543de82ef95ull + (weights << 20));
}

class Engines {
 public:
  Engines(Schedule& run, uint64_t lease_ms) : run_(run), lease_ms_(lease_ms) {}

  // What the host's engines have, by space.
  uint64_t weights[kSpaceCount] = {};

  // Two engines, one of two processes.
  void Attach(Life& life) {
    for (const GroupId group : {1, 1, 2}) Open(life, group);
  }
  // The daemon is gone: what was leased is held without a lease, as far as the engines know.
  void Orphan() {
    awaits_promotes_ = false;
    for (Reading& reading : readings_) reading.leased = false;
    for (Writing& writing : writings_) writing.leased = false;
    for (const Session& session : open_) former_.push_back(session);
    open_.clear();
  }
  // What they held lies in an arena that nobody has any more.
  void Forget() {
    readings_.clear();
    writings_.clear();
    former_.clear();
  }
  // All their processes are gone.
  void Die(Life* life) {
    readings_.clear();
    writings_.clear();
    for (const auto& sessions : {open_, former_}) {
      for (const Session& session : sessions) {
        if (life != nullptr) life->store->CloseSession(session.id, true);
      }
    }
    open_.clear();
    former_.clear();
  }

  void Step(Life& life) {
    switch (run_.Draw(24)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Reserve(life);
      case 4:
      case 5:
      case 6:
      case 7:
        return EndWriting(life);
      case 8:
      case 9:
      case 10:
      case 11:
        return Lease(life);
      case 12:
      case 13:
      case 14:
        return Load(life);
      case 15:
      case 16:
      case 17:
        return Release(life);
      case 18:
        if (run_.Draw(4) == 0) Leave(life);
        return;
      case 19:
        return Drain(life);
      case 20:
        return WriteOn(life);
      case 21: {
        const Keys keys = Range(run_.Draw(kSimNumbers), 6);
        (void)life.store->Prefetch(AnySpace(), keys.batch());
        return;
      }
      case 22: {
        const Keys keys = Range(run_.Draw(kSimNumbers), 6);
        life.store->Touch(AnySession().id, AnySpace(), keys.batch());
        return;
      }
      default:
        life.store->Evict(AnySpace(), run_.Draw(24) * 4096);
        while (run_.Draw(2) == 0 && life.store->MakeRoom()) continue;
    }
  }

  // The chunk that was leased last was still on its way.
  bool awaits_promotes() const { return awaits_promotes_; }

  // Gives everything back.
  void Finish(Life& life) {
    std::erase_if(writings_, [](const Writing& writing) { return !writing.leased; });
    while (!readings_.empty()) Release(life);
    while (!writings_.empty()) EndWriting(life);
    while (!former_.empty()) Drain(life);
    for (const Session& session : open_) life.store->CloseSession(session.id, true);
    open_.clear();
  }

  // One chunk stored under a number that nobody else uses. False: no room just now.
  bool Put(Life& life, uint32_t space, uint64_t number) {
    const WriteGrant grant = life.store->Reserve(open_[0].id, space, Range(number, 1).batch());
    if (grant.slots.empty()) return grant.grants[0] == Grant::kPresent;
    FillBytes(life.arena->data() + grant.slots[0].offset, kSpaces[space].chunk_bytes,
              BytesFrom(space, number, weights[space]));
    CHECK(life.store->Commit(open_[0].id, grant.lease) == Outcome::kOk);
    return true;
  }
  // One chunk leased, waited for and compared. False: a miss.
  bool Get(Life& life, uint32_t space, uint64_t number) {
    const ReadGrant grant = life.store->Lease(open_[0].id, space, Range(number, 1).batch());
    if (grant.slots.empty()) return false;
    const SlotRef ref = grant.slots[0];
    const auto readiness = [&] { return life.reader->ReadinessOf(ref.slot, ref.generation); };
    CHECK(run_.Await(60 * kNsPerS, 10 * kNsPerMs, [&] { return readiness() != Readiness::kPending; }));
    const bool ready = readiness() == Readiness::kReady;
    if (ready) CHECK(Judge(life, space, number, weights[space], ref));
    CHECK(life.store->Release(open_[0].id, grant.lease) == Outcome::kOk);
    return ready;
  }

 private:
  struct Session {
    SessionId id;
    GroupId group;
  };
  struct Slot {
    uint64_t number;
    SlotRef ref;
    bool was_ready = false;
  };
  struct Reading {
    Session session;
    LeaseId lease;
    uint32_t space;
    uint64_t weights, since_ms;
    bool leased;
    std::vector<Slot> slots;
  };
  struct Writing {
    Session session;
    SessionId writer;  // of the same engine
    LeaseId lease;
    uint32_t space;
    uint64_t weights, since_ms;
    bool leased;
    std::vector<Slot> slots;
  };

  uint64_t NowMs() const { return run_.now_ns() / kNsPerMs; }
  uint32_t AnySpace() { return static_cast<uint32_t>(run_.Draw(kSpaceCount)); }
  const Session& AnySession() { return open_[run_.Draw(open_.size())]; }
  template <typename Held>
  typename std::vector<Held>::iterator Any(std::vector<Held>& held) {
    return held.begin() + static_cast<ptrdiff_t>(run_.Draw(held.size()));
  }
  // A lease that old may have been taken back.
  bool MayBeOver(uint64_t since_ms) const { return NowMs() + 1000 >= since_ms + lease_ms_; }

  void Open(Life& life, GroupId group) {
    const SessionId id = std::max(last_session_, life.store->last_session()) + 1;
    last_session_ = id;
    life.store->OpenSession(id, group, static_cast<uint32_t>(1000 + id));
    open_.push_back({id, group});
  }

  void Rubbish(Life& life, uint32_t space, const SlotRef& ref) {
    FillBytes(life.arena->data() + ref.offset, kSpaces[space].chunk_bytes, ~(++rubbish_ << 8));
  }

  void Reserve(Life& life) {
    const Session session = AnySession();
    const uint32_t space = AnySpace();
    const uint64_t first = run_.Draw(kSimNumbers);
    const auto count = static_cast<uint32_t>(1 + run_.Draw(6));
    const WriteGrant grant = life.store->Reserve(session.id, space, Range(first, count).batch());
    CHECK(grant.outcome == Outcome::kOk && grant.grants.size() == count);
    std::vector<SessionId> group;
    for (const Session& other : open_) {
      if (other.group == session.group) group.push_back(other.id);
    }
    Writing writing{
        session, group[run_.Draw(group.size())], grant.lease, space, weights[space], NowMs(), true, {}};
    for (uint32_t i = 0; i < count; ++i) {
      if (grant.grants[i] != Grant::kGranted) continue;
      writing.slots.push_back({first + i, grant.slots[writing.slots.size()]});
      Rubbish(life, space, writing.slots.back().ref);
    }
    CHECK(writing.slots.size() == grant.slots.size());
    Say(life, "reserves", session, space, grant.lease, writing.slots);
    if (grant.lease != 0) writings_.push_back(std::move(writing));
  }

  void EndWriting(Life& life) {
    if (writings_.empty()) return;
    const auto it = Any(writings_);
    const Writing writing = *it;
    if (!writing.leased) return;  // its session is gone: it ends with its writer
    const bool commit = run_.Draw(4) != 0;
    const auto keep = static_cast<uint8_t>(run_.Draw(2) == 0 ? 255 : run_.Draw(256));
    for (size_t i = 0; i < writing.slots.size(); ++i) {
      if (!commit || (keep >> i & 1) == 0) continue;
      const Slot& slot = writing.slots[i];
      FillBytes(life.arena->data() + slot.ref.offset, kSpaces[writing.space].chunk_bytes,
                BytesFrom(writing.space, slot.number, writing.weights));
      run_.Point();
    }
    writings_.erase(it);
    Say(life, commit ? "commits" : "aborts", writing.session, writing.space, writing.lease, writing.slots);
    const Outcome outcome = commit ? life.store->Commit(writing.session.id, writing.lease, {&keep, 1})
                                   : life.store->Abort(writing.session.id, writing.lease);
    if (outcome == Outcome::kUnknownLease) {
      CHECK(MayBeOver(writing.since_ms));
      return;
    }
    const bool cleared = writing.weights != weights[writing.space];
    CHECK(outcome == (commit && cleared ? Outcome::kCleared : Outcome::kOk));
    for (size_t i = 0; commit && !cleared && i < writing.slots.size(); ++i) {
      const bool here =
          life.reader->LongestPrefix(writing.space, Range(writing.slots[i].number, 1).batch()) == 1;
      if ((keep >> i & 1) != 0) CHECK(here);
    }
  }

  void Lease(Life& life) {
    const Session session = AnySession();
    const uint32_t space = AnySpace();
    const uint64_t first = run_.Draw(kSimNumbers);
    const Keys keys = Range(first, static_cast<uint32_t>(1 + run_.Draw(8)));
    const ReadGrant grant = life.store->Lease(session.id, space, keys.batch());
    CHECK(grant.outcome == Outcome::kOk && (grant.lease != 0) == !grant.slots.empty());
    Reading reading{session, grant.lease, space, weights[space], NowMs(), true, {}};
    for (const SlotRef& ref : grant.slots) reading.slots.push_back({first + reading.slots.size(), ref});
    if (grant.lease == 0) return;
    Say(life, "leases", session, space, grant.lease, reading.slots);
    Copy(life, reading);
    readings_.push_back(std::move(reading));
  }

  // Whether the bytes are those that were committed, as long as they are said to be readable. Others go on
  // while it copies.
  bool Judge(Life& life, uint32_t space, uint64_t number, uint64_t of_weights, const SlotRef& ref) {
    std::vector<std::byte> copy(kSpaces[space].chunk_bytes);
    const std::byte* const data = life.arena->data() + ref.offset;
    const size_t half = copy.size() / 2;
    std::memcpy(copy.data(), data, half);
    run_.Point();
    std::memcpy(copy.data() + half, data + half, copy.size() - half);
    if (life.reader->ReadinessOf(ref.slot, ref.generation) != Readiness::kReady) return true;
    if (HasBytes(copy.data(), copy.size(), BytesFrom(space, number, of_weights))) return true;
    Explain(space, number, copy);
    return false;
  }

  void Copy(Life& life, Reading& reading) {
    const bool pinned = reading.leased && !MayBeOver(reading.since_ms);
    for (Slot& slot : reading.slots) {
      const Readiness readiness = life.reader->ReadinessOf(slot.ref.slot, slot.ref.generation);
      if (pinned && slot.was_ready) CHECK(readiness == Readiness::kReady);
      awaits_promotes_ = readiness == Readiness::kPending;
      if (readiness != Readiness::kReady) continue;
      slot.was_ready = true;
      CHECK(Judge(life, reading.space, slot.number, reading.weights, slot.ref));
    }
  }

  void Load(Life& life) {
    if (!readings_.empty()) Copy(life, *Any(readings_));
  }

  void Release(Life& life) {
    if (readings_.empty()) return;
    const auto it = Any(readings_);
    Reading reading = *it;
    readings_.erase(it);
    Say(life, "releases", reading.session, reading.space, reading.lease, reading.slots);
    Copy(life, reading);
    if (!reading.leased) return;
    const Outcome outcome = life.store->Release(reading.session.id, reading.lease);
    CHECK(outcome == Outcome::kOk || (outcome == Outcome::kUnknownLease && MayBeOver(reading.since_ms)));
  }

  // A process goes, or its connection does; another one comes.
  void Leave(Life& life) {
    const auto it = Any(open_);
    const Session session = *it;
    open_.erase(it);
    const bool drained = run_.Draw(2) == 0;
    if (drained) StopWriting(session.id);
    for (Writing& writing : writings_) writing.leased &= writing.session.id != session.id;
    for (Reading& reading : readings_) reading.leased &= reading.session.id != session.id;
    run_.Say("%p: session %llu leaves, drained %d", static_cast<void*>(&life),
             static_cast<unsigned long long>(session.id), drained);
    life.store->CloseSession(session.id, drained);
    if (!drained) former_.push_back(session);
    Open(life, session.group);
  }

  // The process does not write any more. What it wrote for another one's lease, that one ends.
  void StopWriting(SessionId session) {
    std::erase_if(writings_, [&](const Writing& writing) {
      return writing.writer == session && (!writing.leased || writing.session.id == session);
    });
    for (Writing& writing : writings_) {
      if (writing.writer == session) writing.writer = writing.session.id;
    }
  }

  void Drain(Life& life) {
    if (former_.empty()) return;
    const auto it = Any(former_);
    const SessionId session = it->id;
    former_.erase(it);
    StopWriting(session);
    run_.Say("%p: session %llu has drained", static_cast<void*>(&life),
             static_cast<unsigned long long>(session));
    life.store->CloseSession(session, true);
  }

  // Who may still write, does.
  void WriteOn(Life& life) {
    for (const Writing& writing : writings_) {
      for (const Slot& slot : writing.slots) Rubbish(life, writing.space, slot.ref);
    }
  }

  void Say(const Life& life, const char* what, const Session& session, uint32_t space, LeaseId lease,
           const std::vector<Slot>& slots) const {
    std::string list;
    for (const Slot& slot : slots) {
      list += " " + std::to_string(slot.number) + "@" + std::to_string(slot.ref.slot) + "." +
              std::to_string(slot.ref.generation);
    }
    run_.Say("%p: session %llu %s in %u, lease %llu:%s", static_cast<const void*>(&life),
             static_cast<unsigned long long>(session.id), what, space, static_cast<unsigned long long>(lease),
             list.c_str());
  }

  void Explain(uint32_t space, uint64_t number, const std::vector<std::byte>& copy) const {
    std::fprintf(stderr, "  space %u, chunk %llu, weights %llu: ", space,
                 static_cast<unsigned long long>(number), static_cast<unsigned long long>(weights[space]));
    for (uint64_t other = 0; other < 4096; ++other) {
      for (uint64_t any = 0; any < kSimNumbers + 16; ++any) {
        if (!HasBytes(copy.data(), copy.size(), BytesFrom(space, any, other))) continue;
        std::fprintf(stderr, "has the bytes of chunk %llu under weights %llu\n",
                     static_cast<unsigned long long>(any), static_cast<unsigned long long>(other));
        return;
      }
    }
    std::fprintf(stderr, "has bytes of nobody\n");
  }

  Schedule& run_;
  const uint64_t lease_ms_;
  SessionId last_session_ = 0;
  uint64_t rubbish_ = 0;
  bool awaits_promotes_ = false;
  std::vector<Session> open_, former_;  // former: gone without a word, perhaps not for ever
  std::vector<Reading> readings_;
  std::vector<Writing> writings_;
};

}  // namespace tpu_sync_native::testing
