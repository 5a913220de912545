// Random calls on the store beside a model that is a map: what was committed and not since evicted, cleared
// or refused must be there, nothing else may be, and the audit must find nothing.

#include <map>
#include <random>
#include <set>

#include "store_fixture.h"

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

  uint64_t Draw(uint64_t below) { return random_() % below; }
  SessionId AnySession() { return *std::next(open_.begin(), static_cast<long>(Draw(open_.size()))); }
  uint32_t AnySpace() { return spaces_[Draw(2)]; }

  void Step() {
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
        return;
      default:
        f_.store->ReclaimStale(Draw(30));
        if (Draw(5) == 0) f_.store->Evict(AnySpace(), Draw(5) * 4096);
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
          CHECK(!f_.Hits(first + i, 1, held.space) && reserved_.insert(key).second);
          held.slots.emplace_back(first + i, grant.slots[granted++]);
          break;
        case Grant::kPresent:
          CHECK(committed_.count(key) == 1 && f_.Hits(first + i, 1, held.space) == 1);
          break;
        case Grant::kPending:
          CHECK(reserved_.count(key) == 1);
          break;
        case Grant::kNoSpace:
          CHECK(reserved_.count(key) == 0);
      }
    }
    CHECK(granted == grant.slots.size() && (grant.lease != 0) == (granted > 0));
    CheckDisjoint(held);
    if (grant.lease != 0) held_[grant.lease] = held;
  }

  // A slot granted for writing is in nobody else's hands.
  void CheckDisjoint(const Held& fresh) {
    for (const auto& [number, ref] : fresh.slots) {
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
    const uint32_t hits = f_.Hits(first, count, held.space);
    const ReadGrant grant = f_.store->Lease(held.session, held.space, Range(first, count).batch());
    CHECK(grant.outcome == Outcome::kOk && grant.slots.size() == hits && (grant.lease != 0) == (hits > 0));
    for (uint32_t i = 0; i < hits; ++i) {
      CHECK(committed_.count({held.space, first + i}) == 1);
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
      for (const auto& [number, ref] : held.slots) CHECK(f_.reader->Unchanged(ref.slot, ref.generation));
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
    for (auto& [lease, held] : held_) held.cleared |= held.space == space;
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
        const bool there = f_.Hits(number, 1, space) == 1;
        CHECK(!there || committed_.count({space, number}) == 1);
        if (!there) committed_.erase({space, number});
      }
    }
    for (const auto& [lease, held] : held_) {  // a chunk under lease cannot be gone
      for (const auto& [number, ref] : held.slots) {
        if (!held.write && !held.cleared) CHECK(f_.Hits(number, 1, held.space) == 1);
      }
    }
  }

  std::mt19937_64 random_;
  StoreFixture f_;
  std::vector<uint32_t> spaces_;
  std::set<SessionId> open_;
  std::vector<SessionId> undrained_;
  SessionId next_session_;
  std::map<LeaseId, Held> held_;
  std::set<std::pair<uint32_t, uint64_t>> committed_;
  std::set<std::pair<uint32_t, uint64_t>> reserved_;
};

void RunSeeds(const char* policy) {
  for (int i = 0; i < 4; ++i) {
    const uint64_t seed = std::random_device{}();
    std::fprintf(stderr, "        %s seed %llu\n", policy, static_cast<unsigned long long>(seed));
    ModelTest(policy, seed).Run();
  }
}

}  // namespace

TEST(RandomCallsAgreeWithAMapUnderLru) { RunSeeds("lru"); }
TEST(RandomCallsAgreeWithAMapUnderS3Fifo) { RunSeeds("s3fifo"); }

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
