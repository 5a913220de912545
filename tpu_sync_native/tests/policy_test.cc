// The contract of EvictionPolicy, run on every policy, and what is particular to each.

#include <algorithm>
#include <random>
#include <set>

#include "check.h"
#include "policy/ghosts.h"
#include "policy/registry.h"

namespace tpu_sync_native::testing {
namespace {

struct PolicyFixture {
  explicit PolicyFixture(std::string_view name, uint32_t slots = 64)
      : cells(slots), policy(FindPolicy(name, cells.data(), slots).make()) {}

  void Insert(uint32_t slot) { Insert(slot, slot * 2654435761u); }
  void Insert(uint32_t slot, uint32_t fingerprint) {
    cells[slot] = {.prev = 0, .next = 0, .pins = 0, .state = SlotState::kCommitted, .policy = 0};
    policy->Insert(slot, fingerprint);
  }
  // A request's chunks, first to last, as the store hands them on.
  void InsertPrefix(uint32_t first, uint32_t count) {
    for (uint32_t i = count; i-- > 0;) Insert(first + i);
  }
  std::vector<uint32_t> Evict(uint32_t wanted, uint32_t looks = 100'000) {
    std::vector<uint32_t> victims(wanted);
    victims.resize(policy->TakeVictims(wanted, &looks, victims.data()));
    for (const uint32_t slot : victims) {
      policy->Evicted(slot, slot * 2654435761u);
      cells[slot].state = SlotState::kFree;
    }
    return victims;
  }
  std::set<uint32_t> Walk() const {
    std::set<uint32_t> seen;
    for (uint32_t slot = policy->Coldest(); slot != kNoSlot; slot = policy->Warmer(slot)) {
      CHECK(seen.insert(slot).second);
    }
    return seen;
  }

  std::vector<SlotCell> cells;
  std::unique_ptr<EvictionPolicy> policy;
};

template <typename Check>
void ForEveryPolicy(Check check) {
  for (const std::string_view name : PolicyNames()) {
    std::fprintf(stderr, "        %s\n", std::string(name).c_str());
    check(name);
  }
}

}  // namespace

TEST(AnUnknownPolicyIsRefusedNamingTheKnown) {
  std::vector<SlotCell> cells(1);
  CHECK_THROWS(FindPolicy("mru", cells.data(), 1), "lru, s3fifo");
}

TEST(EverythingIsEvictedOnceAndOnlyOnce) {
  ForEveryPolicy([](std::string_view name) {
    PolicyFixture fixture(name);
    for (uint32_t slot = 0; slot < 64; ++slot) fixture.Insert(slot);
    CHECK(fixture.policy->size() == 64 && fixture.Walk().size() == 64);
    std::set<uint32_t> gone;
    for (int i = 0; i < 8; ++i) {
      for (const uint32_t slot : fixture.Evict(8)) CHECK(gone.insert(slot).second);
    }
    CHECK(gone.size() == 64 && fixture.policy->size() == 0);
    CHECK(fixture.Evict(1).empty() && fixture.policy->Coldest() == kNoSlot);
  });
}

TEST(TheEndOfAPrefixGoesFirst) {
  ForEveryPolicy([](std::string_view name) {
    PolicyFixture fixture(name);
    fixture.InsertPrefix(0, 10);
    for (uint32_t i = 10; i-- > 0;) CHECK(fixture.Evict(1) == std::vector<uint32_t>{i});
  });
}

TEST(ATouchedPrefixStillLosesItsEndFirst) {
  ForEveryPolicy([](std::string_view name) {
    PolicyFixture fixture(name);
    fixture.InsertPrefix(0, 10);
    for (uint32_t i = 10; i-- > 0;) fixture.policy->Touch(i);
    for (uint32_t i = 10; i-- > 0;) CHECK(fixture.Evict(1) == std::vector<uint32_t>{i});
  });
}

TEST(APrefixStoredInPartsLosesItsEndFirst) {
  ForEveryPolicy([](std::string_view name) {
    PolicyFixture fixture(name);
    fixture.InsertPrefix(0, 4);
    for (uint32_t part = 4; part < 10; part += 3) {
      fixture.InsertPrefix(part, 3);
      for (uint32_t i = part; i-- > 0;) fixture.policy->Renew(i);
    }
    for (uint32_t i = 10; i-- > 0;) CHECK(fixture.Evict(1) == std::vector<uint32_t>{i});
  });
}

TEST(RenewingIsNoUse) {
  PolicyFixture fixture("s3fifo");
  fixture.InsertPrefix(0, 10);
  for (int times = 0; times < 5; ++times) fixture.policy->Renew(0);
  fixture.InsertPrefix(10, 10);
  for (uint32_t i = 10; i-- > 0;) CHECK(fixture.Evict(1) == std::vector<uint32_t>{i});
}

TEST(WhatIsInUseIsPassedOverAndOfferedAgain) {
  ForEveryPolicy([](std::string_view name) {
    PolicyFixture fixture(name);
    for (uint32_t slot = 0; slot < 20; ++slot) fixture.Insert(slot);
    for (uint32_t slot = 0; slot < 20; slot += 2) fixture.cells[slot].pins = 1;
    fixture.cells[1].state = SlotState::kReserved;
    const std::vector<uint32_t> victims = fixture.Evict(20);
    CHECK(victims.size() == 9);
    for (const uint32_t slot : victims) CHECK(slot % 2 == 1 && slot != 1);
    CHECK(fixture.Evict(20).empty() && fixture.policy->size() == 11);
    for (auto& cell : fixture.cells) cell.pins = 0;
    CHECK(fixture.Evict(20).size() == 10);
  });
}

TEST(OneFreeChunkAmongUsedOnesIsFound) {
  ForEveryPolicy([](std::string_view name) {
    for (uint32_t free = 0; free < 20; ++free) {
      for (const uint32_t touches : {0u, 1u, 5u}) {
        PolicyFixture fixture(name);
        for (uint32_t slot = 0; slot < 20; ++slot) {
          fixture.Insert(slot);
          fixture.cells[slot].pins = slot != free;
        }
        for (uint32_t i = 0; i < touches; ++i) fixture.policy->Touch(free);
        CHECK(fixture.Evict(3) == std::vector<uint32_t>{free});
      }
    }
  });
}

TEST(LooksBoundTheWork) {
  ForEveryPolicy([](std::string_view name) {
    PolicyFixture fixture(name);
    for (uint32_t slot = 0; slot < 64; ++slot) {
      fixture.Insert(slot);
      fixture.cells[slot].pins = 1;
    }
    uint32_t victim = 0;
    uint32_t looks = 10;
    CHECK(fixture.policy->TakeVictims(1, &looks, &victim) == 0 && looks == 0);
    CHECK(fixture.Walk().size() == 64);
    looks = 0;
    fixture.cells[0].pins = 0;
    CHECK(fixture.policy->TakeVictims(1, &looks, &victim) == 0);
  });
}

TEST(VictimsComeWithinTheLooksOfAReserveEvenIfAllWasUsed) {
  ForEveryPolicy([](std::string_view name) {
    constexpr uint32_t kSlots = 20'000;
    PolicyFixture fixture(name, kSlots);
    for (uint32_t slot = 0; slot < kSlots; ++slot) fixture.Insert(slot);
    for (uint32_t i = 0; i < 3 * kSlots; ++i) fixture.policy->Touch(i % kSlots);
    for (int batch = 0; batch < 8; ++batch) CHECK(fixture.Evict(32, 8 * 32 + 128).size() == 32);
  });
}

TEST(RemovedSlotsAreForgotten) {
  ForEveryPolicy([](std::string_view name) {
    PolicyFixture fixture(name);
    for (uint32_t slot = 0; slot < 10; ++slot) fixture.Insert(slot);
    for (const uint32_t slot : {0u, 9u, 4u}) fixture.policy->Remove(slot);
    CHECK(fixture.policy->size() == 7 && fixture.Walk().size() == 7);
    CHECK(fixture.Evict(10).size() == 7);
  });
}

TEST(RandomCallsKeepTheSetRight) {
  ForEveryPolicy([](std::string_view name) {
    const uint64_t seed = RunSeed();
    std::mt19937_64 random(seed);
    PolicyFixture fixture(name);
    std::set<uint32_t> model;
    for (int step = 0; step < 20'000; ++step) {
      const auto slot = static_cast<uint32_t>(random() % 64);
      switch (random() % 5) {
        case 0:
        case 1:
          if (model.insert(slot).second) fixture.Insert(slot, static_cast<uint32_t>(random()));
          break;
        case 2:
          if (model.count(slot)) fixture.policy->Touch(slot);
          break;
        case 3:
          if (model.erase(slot)) fixture.policy->Remove(slot);
          break;
        default:
          for (const uint32_t victim : fixture.Evict(static_cast<uint32_t>(random() % 4))) {
            CHECK(model.erase(victim) == 1);
          }
      }
      CHECK(fixture.policy->size() == model.size());
    }
    CHECK(fixture.Walk() == model);
  });
}

TEST(LruEvictsTheLeastRecent) {
  PolicyFixture fixture("lru");
  for (uint32_t slot = 0; slot < 5; ++slot) fixture.Insert(slot);
  fixture.policy->Touch(0);
  fixture.policy->Touch(3);
  CHECK((fixture.Evict(5) == std::vector<uint32_t>{1, 2, 4, 0, 3}));
}

TEST(S3FifoKeepsWhatIsUsedThroughAScan) {
  constexpr uint32_t kSlots = 200;
  PolicyFixture fixture("s3fifo", kSlots);
  for (uint32_t slot = 0; slot < 100; ++slot) fixture.Insert(slot);
  for (uint32_t slot = 0; slot < 50; ++slot) fixture.policy->Touch(slot);
  std::vector<uint32_t> free =
      fixture.Evict(40);                 // nobody asked for them; the asked are in the main queue now
  for (uint32_t i = 0; i < 1000; ++i) {  // a scan: chunks that come once
    fixture.Insert(free.back(), 0x9e3779b9u * (i + 1));
    free.pop_back();
    if (free.empty()) free = fixture.Evict(10);
  }
  const std::set<uint32_t> left = fixture.Walk();
  for (uint32_t slot = 0; slot < 50; ++slot) CHECK(left.count(slot) == 1);
}

TEST(S3FifoTakesAChunkThatComesBackIntoTheMainQueue) {
  PolicyFixture fixture("s3fifo");
  for (uint32_t slot = 0; slot < 20; ++slot) fixture.Insert(slot);
  CHECK((fixture.Evict(1) == std::vector<uint32_t>{0}));
  fixture.Insert(0);  // not long after
  std::vector<uint32_t> order = fixture.Evict(18);
  CHECK(std::count(order.begin(), order.end(), 0u) == 0);
}

TEST(GhostsForgetWhatIsOldAndWhatWasAsked) {
  Ghosts ghosts(64);
  ghosts.Add(0x12345678);
  CHECK(!ghosts.TakeRecent(0x12345679 ^ 2, 100));
  CHECK(ghosts.TakeRecent(0x12345678, 100) && !ghosts.TakeRecent(0x12345678, 100));
  ghosts.Add(0x12345678);
  for (int i = 0; i < 50; ++i) ghosts.Add(0xf0000000);
  CHECK(!ghosts.TakeRecent(0x12345678, 20));
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
