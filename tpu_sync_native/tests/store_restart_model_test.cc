// Random histories beside a model that is a map, cut at random moments, with records torn at random: the next
// life holds exactly what was committed, with its bytes, and gives nobody a slot that a writer of before has.

#include <random>
#include <set>

#include "restart_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kNumbers = 160;
constexpr int kSteps = 1200;
constexpr int kLives = 24;  // cuts of one history

class RestartModel {
 public:
  RestartModel(const char* policy, uint64_t seed)
      : random_(seed), shape_{.policy = policy}, f_(shape_), spaces_{f_.ns} {
    spaces_.push_back(f_.store->OpenNamespace("namespace-large0", 3 * 4096));
    f_.store->OpenSession(2, 2, 200);
    open_ = {1, 2};
  }

  void Run() {
    for (int step = 0; step < kSteps; ++step) {
      Step();
      if (Draw(kSteps / kLives) == 0) Cut();
    }
    Cut();
  }

 private:
  struct Held {
    SessionId session;
    uint32_t space;
    std::vector<std::pair<uint64_t, SlotRef>> slots;
  };

  uint64_t Draw(uint64_t below) { return random_() % below; }
  SessionId AnySession() { return *std::next(open_.begin(), static_cast<long>(Draw(open_.size()))); }

  // What the bytes of a chunk are: no two chunks, and no two versions of one, have the same.
  static uint64_t& WordAt(const std::shared_ptr<Arena>& arena, uint64_t offset) {
    return *reinterpret_cast<uint64_t*>(arena->data() + offset);
  }

  void Step() {
    const uint32_t space = spaces_[Draw(2)];
    switch (Draw(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return Reserve(space);
      case 5:
      case 6:
      case 7:
      case 8:
        return End();
      case 9:
        if (Draw(25) == 0) Clear(space);
        if (Draw(5) == 0) f_.store->SetFloor(space, Draw(3) * 8 * 4096);
        return;
      case 10:
        if (Draw(6) == 0) ReplaceSession();
        return;
      default:
        f_.store->ReclaimStale(Draw(10));
        if (Draw(4) == 0) f_.store->Evict(space, Draw(4) * 4096);
    }
  }

  void Reserve(uint32_t space) {
    const uint64_t first = Draw(kNumbers);
    const auto count = static_cast<uint32_t>(Draw(10) + 1);
    Held held{AnySession(), space, {}};
    const WriteGrant grant = f_.store->Reserve(held.session, space, Range(first, count).batch());
    size_t granted = 0;
    for (uint32_t i = 0; i < count; ++i) {
      if (grant.grants[i] != Grant::kGranted) continue;
      const SlotRef ref = grant.slots[granted++];
      WordAt(f_.arena, ref.offset) = ++version_;
      held.slots.emplace_back(first + i, ref);
    }
    if (grant.lease != 0) held_[grant.lease] = held;
  }

  void End() {
    if (held_.empty()) return;
    const auto it = std::next(held_.begin(), static_cast<long>(Draw(held_.size())));
    const auto [lease, held] = *it;
    held_.erase(it);
    if (Draw(4) == 0) {
      CHECK(f_.store->Abort(held.session, lease) == Outcome::kOk);
      return;
    }
    if (f_.store->Commit(held.session, lease) != Outcome::kOk) return;  // cleared meanwhile
    for (const auto& [number, ref] : held.slots) {
      committed_[{held.space, number}] = WordAt(f_.arena, ref.offset);
    }
  }

  void Clear(uint32_t space) {
    f_.store->ClearNamespace(space);
    std::erase_if(committed_, [&](const auto& item) { return item.first.first == space; });
  }

  void ReplaceSession() {
    const SessionId session = AnySession();
    f_.store->CloseSession(session, /*drained=*/Draw(2) == 0);
    std::erase_if(held_, [&](const auto& item) { return item.second.session == session; });
    open_.erase(session);
    f_.store->OpenSession(next_session_, 1 + next_session_ % 3, 300);
    open_.insert(next_session_++);
  }

  bool Here(const Store& store, uint32_t space, uint64_t number) const {
    return store.LongestPrefix(space, Range(number, 1).batch()) == 1;
  }

  void Cut() {
    const bool harm = Draw(2) == 0;
    std::set<uint32_t> torn;
    NextLife next(f_, shape_, [&](MetaView& view) {
      for (uint64_t left = harm ? Draw(6) : 0; left > 0; --left) {
        const auto slot = static_cast<uint32_t>(Draw(view.slots_max()));
        const_cast<SlotRecord&>(view.slot(slot)).seq.fetch_or(1);
        torn.insert(slot);
      }
    });
    next.CheckSound();
    CheckChunks(next, torn);
    const std::set<uint64_t> aside = WrittenStill();
    CHECK(harm || next.Stat("quarantined_slots") == aside.size());
    CheckSlotsOf(next, aside);
    for (const RestoredSession& session : next.store->RestoredSessions()) {
      next.store->CloseSession(session.session, true);
    }
    CHECK(next.Stat("quarantined_slots") == 0);
    next.CheckSound();
  }

  void CheckChunks(const NextLife& next, const std::set<uint32_t>& torn) {
    for (const uint32_t space : spaces_) {
      for (uint64_t number = 0; number < kNumbers + 10; ++number) {
        const bool before = Here(*f_.store, space, number);
        const bool after = Here(*next.store, space, number);
        CHECK(before || !after);
        if (!before) continue;
        SlotRef ref{};
        CHECK(f_.reader->LeadingHits(space, Range(number, 1).batch(), &ref) == 1);
        CHECK(after != (torn.count(ref.slot) == 1));
        if (!after) continue;
        SlotRef now{};
        CHECK(next.reader->LeadingHits(space, Range(number, 1).batch(), &now) == 1);
        CHECK(now.slot == ref.slot && now.generation == ref.generation && now.offset == ref.offset);
        CHECK(WordAt(next.arena, now.offset) == committed_.at({space, number}));
      }
    }
  }

  // Payload offsets that some process may write into: the store's own view of before.
  std::set<uint64_t> WrittenStill() const {
    std::set<uint64_t> offsets;
    const MetaView& view = f_.reader->view();
    for (uint32_t slot = 0; slot < view.slots_max(); ++slot) {
      const uint64_t place = view.slot(slot).place.load();
      const SlotState state = PlaceState(place);
      if (state == SlotState::kReserved || state == SlotState::kQuarantined)
        offsets.insert(PlaceOffset(place));
    }
    return offsets;
  }

  // All there is is asked for, by both chunk sizes: nothing that somebody may write into is given out.
  void CheckSlotsOf(NextLife& next, const std::set<uint64_t>& aside) {
    next.store->OpenSession(9000, 9000, 1);
    for (const uint32_t space : spaces_) {
      const uint64_t chunk_bytes = space == f_.ns ? 4096 : 3 * 4096;
      const WriteGrant grant = next.store->Reserve(9000, space, Range(5000, 80).batch());
      for (const SlotRef& ref : grant.slots) {
        for (const uint64_t offset : aside) CHECK(offset < ref.offset || offset >= ref.offset + chunk_bytes);
        CHECK(ref.generation > f_.reader->view().slot(ref.slot).generation.load());
      }
      next.CheckSound();
      if (Draw(2) == 0 && grant.lease != 0) CHECK(next.store->Commit(9000, grant.lease) == Outcome::kOk);
    }
    next.store->CloseSession(9000, true);
  }

  std::mt19937_64 random_;
  const Shape shape_;
  StoreFixture f_;
  std::vector<uint32_t> spaces_;
  std::set<SessionId> open_;
  SessionId next_session_ = 3;
  std::map<LeaseId, Held> held_;
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> committed_;
  uint64_t version_ = 0;
};

void RunSeeds(const char* policy) {
  const uint64_t seed = RunSeed();
  for (uint64_t i = 0; i < 3; ++i) RestartModel(policy, SeedOf(seed, i)).Run();
}

}  // namespace

TEST(EveryCutOfAHistoryUnderLru) { RunSeeds("lru"); }
TEST(EveryCutOfAHistoryUnderS3Fifo) { RunSeeds("s3fifo"); }

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
