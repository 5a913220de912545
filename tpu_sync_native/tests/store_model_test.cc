// Random calls on the store beside a model that is a map: what was committed and not since evicted, cleared
// or refused must be there, nothing else may be, and the audit must find nothing. A tier below holds a part
// of the keys; its promotes end at random, in any order, or not for long.

#include <array>
#include <map>
#include <random>
#include <set>

#include "fake_lower_tier.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kNumbers = 200;  // keys in use; the store holds 64 chunks of 4096 bytes at most
constexpr int kSteps = 6000;

class ModelTest {
 public:
  ModelTest(const char* policy, uint64_t seed) : random_(seed), f_({.policy = policy}) {
    spaces_ = {f_.ns, f_.store->OpenNamespace("namespace-large0", 3 * 4096)};
    f_.store->OpenSession(2, 2, 200);
    next_session_ = 3;
    open_ = {1, 2};
    f_.store->SetLowerTier(&below_);
  }

  void Run() {
    for (int step = 0; step < kSteps; ++step) {
      Step();
      if (step % 20 == 0) {
        f_.CheckSound();
        CheckPresence();
      }
    }
    while (!open_.empty()) {
      f_.store->CloseSession(*open_.begin(), true);
      open_.erase(open_.begin());
    }
    for (const SessionId session : undrained_) f_.store->CloseSession(session, true);
    for (const Demoting& demoting : demoting_) f_.store->EndDemote(demoting.chunks);
    while (!promoting_.empty()) EndPromote();
    while (!busy_.empty()) EndBusy();
    f_.CheckNothingHeld();
  }

 private:
  struct Held {
    SessionId session;
    uint32_t space;
    bool write;
    bool cleared;
    std::vector<std::pair<uint64_t, SlotRef>> slots;  // number -> slot
  };

  struct Promoting {
    uint32_t space;
    uint64_t number;
    SlotRef ref;
    bool cleared;
  };
  struct Demoting {
    std::vector<DemoteChunk> chunks;
  };
  using SlotId = std::pair<uint32_t, uint32_t>;  // slot, generation
  static SlotId IdOf(const SlotRef& ref) { return {ref.slot, ref.generation}; }
  static uint64_t NumberOf(std::string_view key) {
    uint64_t number = 0;
    for (int i = 0; i < 8; ++i) number |= uint64_t{static_cast<uint8_t>(key[key.size() - 8 + i])} << (8 * i);
    return number;
  }

  uint64_t Draw(uint64_t below) { return random_() % below; }
  SessionId AnySession() { return *std::next(open_.begin(), static_cast<long>(Draw(open_.size()))); }
  uint32_t AnySpace() { return spaces_[Draw(2)]; }

  void Step() {
    if (Draw(4) == 0) return StepBelow();
    switch (Draw(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
        return Reserve();
      case 6:
      case 7:
      case 8:
      case 9:
        return Lease();
      case 10:
      case 11:
      case 12:
      case 13:
      case 14:
      case 15:
        return EndOne();
      case 16: {
        const uint64_t first = Draw(kNumbers);
        f_.store->Touch(AnySession(), AnySpace(), Range(first, 5).batch());
        return;
      }
      case 17:
        if (Draw(4) == 0) ReplaceSession();
        return;
      case 18:
        if (Draw(20) == 0) Clear(AnySpace());
        if (Draw(10) == 0) f_.store->SetFloor(AnySpace(), Draw(3) * 8 * 4096);
        return;
      default:
        f_.store->ReclaimStale(Draw(30));
        if (Draw(5) == 0) f_.store->Evict(AnySpace(), Draw(5) * 4096);
    }
  }

  void StepBelow() {
    switch (Draw(8)) {
      case 0:
        return below_.Put(AnySpace(), Draw(kNumbers), static_cast<uint32_t>(Draw(12)));
      case 1:
        return below_.Drop(AnySpace(), Draw(kNumbers));
      case 2:
        return below_.Refuse(Draw(4) == 0);
      case 3: {
        const uint32_t space = AnySpace();
        const uint32_t begun = f_.store->Prefetch(space, Range(Draw(kNumbers), 8).batch());
        CHECK(begun == TakeOffered());
        return;
      }
      case 4:
        return Demote();
      case 5:
        if (!busy_.empty()) EndBusy();
        return;
      default:
        if (!promoting_.empty()) EndPromote();
    }
  }

  // What the store has asked the tier for; each is a slot of its own, for a key that had none.
  uint32_t TakeOffered() {
    const auto offered = below_.TakeOffered();
    for (const auto& one : offered) {
      const uint64_t number = NumberOf(one.key());
      CHECK(one.chunk.from == 1000 + number);
      committed_.erase({one.ns, number});  // it was evicted, or it would not be asked for
      CHECK(on_the_way_.insert({one.ns, number}).second && reserved_.count({one.ns, number}) == 0);
      CheckDisjoint({0, one.ns, false, false, {{number, one.chunk.ref}}});
      promoting_.push_back({one.ns, number, one.chunk.ref, false});
    }
    return static_cast<uint32_t>(offered.size());
  }

  void EndPromote() {
    const auto it = promoting_.begin() + static_cast<long>(Draw(promoting_.size()));
    const Promoting one = *it;
    promoting_.erase(it);
    const auto end = std::array{Store::PromoteEnd::kReadable, Store::PromoteEnd::kReadable,
                                Store::PromoteEnd::kLost, Store::PromoteEnd::kLostBusy}[Draw(4)];
    CHECK(f_.reader->StateOf(one.ref.slot, one.ref.generation) == SlotState::kPromoting);
    f_.store->EndPromotes({&one.ref, 1}, end);
    if (!one.cleared) on_the_way_.erase({one.space, one.number});
    const bool readable = end == Store::PromoteEnd::kReadable && !one.cleared;
    CHECK(f_.reader->ReadinessOf(one.ref.slot, one.ref.generation) ==
          (readable ? Readiness::kReady : Readiness::kLost));
    if (readable) committed_.insert({one.space, one.number});
    if (!readable) lost_.insert(IdOf(one.ref));
    if (end == Store::PromoteEnd::kLostBusy)
      busy_.push_back({0, one.space, false, true, {{one.number, one.ref}}});
    f_.store->EndPromotes({&one.ref, 1}, Store::PromoteEnd::kReadable);  // it has ended
  }

  void EndBusy() {
    const auto it = busy_.begin() + static_cast<long>(Draw(busy_.size()));
    f_.store->EndPromotes({&it->slots[0].second, 1}, Store::PromoteEnd::kGone);
    busy_.erase(it);
  }

  void Demote() {
    if (demoting_.size() > 3) {
      f_.store->EndDemote(demoting_.front().chunks);
      demoting_.erase(demoting_.begin());
    }
    for (const auto& call : below_.TakeCommitted()) {
      const auto chunks = f_.store->PinForDemote(call.ns, call.epoch, call.slots);
      for (const DemoteChunk& chunk : chunks) {
        const std::string_view key(reinterpret_cast<const char*>(chunk.key), chunk.key_bytes);
        CHECK(committed_.count({call.ns, NumberOf(key)}) == 1);
      }
      demoting_.push_back({chunks});
    }
  }

  void Reserve() {
    const uint64_t first = Draw(kNumbers);
    const auto count = static_cast<uint32_t>(Draw(12) + 1);
    Held held{AnySession(), AnySpace(), true, false, {}};
    const WriteGrant grant = f_.store->Reserve(held.session, held.space, Range(first, count).batch());
    CHECK(grant.outcome == Outcome::kOk && grant.grants.size() == count);
    size_t granted = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const auto key = std::pair(held.space, first + i);
      switch (grant.grants[i]) {
        case Grant::kGranted:
          CHECK(!Here(first + i, held.space) && reserved_.insert(key).second);
          held.slots.emplace_back(first + i, grant.slots[granted++]);
          break;
        case Grant::kPresent:
          CHECK(committed_.count(key) == 1 && Here(first + i, held.space));
          break;
        case Grant::kPending:
          CHECK(reserved_.count(key) + on_the_way_.count(key) == 1);
          break;
        case Grant::kNoSpace:
          CHECK(reserved_.count(key) == 0);
      }
    }
    CHECK(granted == grant.slots.size() && (grant.lease != 0) == (granted > 0));
    CheckDisjoint(held);
    if (grant.lease != 0) held_[grant.lease] = held;
  }

  bool Here(uint64_t number, uint32_t space) const {
    return f_.reader->LongestPrefix(space, Range(number, 1).batch()) == 1;
  }

  // A slot granted for writing is in nobody else's hands; neither is one that a read may still write into.
  void CheckDisjoint(const Held& fresh) {
    for (const auto& [number, ref] : fresh.slots) {
      for (const Held& other : busy_) CHECK(other.slots[0].second.offset != ref.offset);
      for (const Promoting& other : promoting_) CHECK(other.ref.offset != ref.offset);
      for (const auto& [lease, other] : held_) {
        for (const auto& [other_number, other_ref] : other.slots) {
          const bool same_class = other.space == fresh.space;
          CHECK(!same_class || other_ref.slot != ref.slot);
          CHECK(other_ref.offset != ref.offset);
        }
      }
    }
  }

  void Lease() {
    const uint64_t first = Draw(kNumbers);
    const auto count = static_cast<uint32_t>(Draw(12) + 1);
    Held held{AnySession(), AnySpace(), false, false, {}};
    const Keys keys = Range(first, count);
    const uint32_t here = f_.reader->LongestPrefix(held.space, keys.batch());
    const uint32_t anywhere = f_.store->LongestPrefix(held.space, keys.batch());
    const ReadGrant grant = f_.store->Lease(held.session, held.space, keys.batch());
    TakeOffered();
    const size_t hits = grant.slots.size();
    // Less than storage has when there is no room for it, or when it does not answer.
    CHECK(grant.outcome == Outcome::kOk && here <= hits && hits <= anywhere);
    CHECK((grant.lease != 0) == (hits > 0));
    for (uint32_t i = 0; i < hits; ++i) {
      const std::pair key(held.space, first + i);
      const SlotState state = f_.reader->StateOf(grant.slots[i].slot, grant.slots[i].generation);
      CHECK(state == (committed_.count(key) == 1 ? SlotState::kCommitted : SlotState::kPromoting));
      CHECK(committed_.count(key) + on_the_way_.count(key) == 1);
      held.slots.emplace_back(first + i, grant.slots[i]);
    }
    if (hits > 0) held_[grant.lease] = held;
  }

  void EndOne() {
    if (held_.empty()) return;
    const auto it = std::next(held_.begin(), static_cast<long>(Draw(held_.size())));
    const LeaseId lease = it->first;
    const Held held = it->second;
    held_.erase(it);
    if (!held.write) {
      for (const auto& [number, ref] : held.slots) {
        CHECK(f_.reader->Unchanged(ref.slot, ref.generation) == !lost_.contains(IdOf(ref)));
      }
      CHECK(f_.store->Release(held.session, lease) == Outcome::kOk);
      return;
    }
    Unreserve(held);
    if (Draw(4) == 0) {
      CHECK(f_.store->Abort(held.session, lease) == Outcome::kOk);
      return;
    }
    const auto keep = static_cast<uint8_t>(Draw(256));
    const uint8_t bitmap[] = {keep, keep};
    const Outcome outcome = f_.store->Commit(held.session, lease, bitmap);
    CHECK(outcome == (held.cleared ? Outcome::kCleared : Outcome::kOk));
    for (size_t i = 0; i < held.slots.size() && !held.cleared; ++i) {
      if (keep >> (i % 8) & 1) committed_.insert({held.space, held.slots[i].first});
    }
  }

  void Unreserve(const Held& held) {
    if (held.cleared) return;
    for (const auto& [number, ref] : held.slots) reserved_.erase({held.space, number});
  }

  void Clear(uint32_t space) {
    f_.store->ClearNamespace(space);
    std::erase_if(committed_, [&](const auto& key) { return key.first == space; });
    std::erase_if(reserved_, [&](const auto& key) { return key.first == space; });
    std::erase_if(on_the_way_, [&](const auto& key) { return key.first == space; });
    for (auto& [lease, held] : held_) held.cleared |= held.space == space;
    for (Promoting& one : promoting_) one.cleared |= one.space == space;
  }

  void ReplaceSession() {
    const SessionId session = AnySession();
    const bool drained = Draw(2) == 0;
    f_.store->CloseSession(session, drained);
    if (!drained) undrained_.push_back(session);
    if (undrained_.size() > 2) {
      f_.store->CloseSession(undrained_.front(), true);
      undrained_.erase(undrained_.begin());
    }
    std::erase_if(held_, [&](const auto& item) {
      if (item.second.session != session) return false;
      if (item.second.write) Unreserve(item.second);
      return true;
    });
    open_.erase(session);
    f_.store->OpenSession(next_session_, 1 + next_session_ % 3, 300);
    open_.insert(next_session_++);
  }

  // Evictions are the store's choice: what is gone is taken out of the model, what is there must be in it.
  void CheckPresence() {
    for (const uint32_t space : spaces_) {
      for (uint64_t number = 0; number < kNumbers + 12; ++number) {
        const bool there = Here(number, space);
        CHECK(!there || committed_.count({space, number}) == 1);
        if (!there) committed_.erase({space, number});
      }
    }
    for (const auto& [lease, held] : held_) {  // a chunk under lease cannot be gone
      for (const auto& [number, ref] : held.slots) {
        if (held.write || held.cleared) continue;
        CHECK(f_.reader->Unchanged(ref.slot, ref.generation) == !lost_.contains(IdOf(ref)));
        const SlotState state = f_.reader->StateOf(ref.slot, ref.generation);
        CHECK(Here(number, held.space) == (state == SlotState::kCommitted) || lost_.contains(IdOf(ref)));
      }
    }
  }

  std::mt19937_64 random_;
  StoreFixture f_;
  FakeLowerTier below_;
  std::vector<uint32_t> spaces_;
  std::set<SessionId> open_;
  std::vector<SessionId> undrained_;
  SessionId next_session_;
  std::map<LeaseId, Held> held_;
  std::set<std::pair<uint32_t, uint64_t>> committed_;
  std::set<std::pair<uint32_t, uint64_t>> reserved_;
  std::set<std::pair<uint32_t, uint64_t>> on_the_way_;  // of the present epoch
  std::vector<Promoting> promoting_;                    // of any
  std::set<SlotId> lost_;
  std::vector<Held> busy_;  // lost, and not gone
  std::vector<Demoting> demoting_;
};

void RunSeeds(const char* policy) {
  const uint64_t seed = RunSeed();
  for (uint64_t i = 0; i < 4; ++i) ModelTest(policy, SeedOf(seed, i)).Run();
}

}  // namespace

TEST(RandomCallsAgreeWithAMapUnderLru) { RunSeeds("lru"); }
TEST(RandomCallsAgreeWithAMapUnderS3Fifo) { RunSeeds("s3fifo"); }

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
