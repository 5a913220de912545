// Floors: what one namespace keeps while others want the whole arena, and what it may ask of them.

#include <algorithm>
#include <random>

#include "base/futex.h"
#include "restart_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint32_t kSlab = 16;          // chunks in one
constexpr uint32_t kSlots = 8 * kSlab;  // of the arena
constexpr uint64_t kFloor = 2 * kSlab;  // chunks
constexpr uint64_t kFloorBytes = kFloor * 4096;

void MakeAllRoom(StoreFixture& f) {
  for (int steps = 0; f.store->RoomWanted() && steps < 1000; ++steps) f.store->MakeRoom();
}

struct FloorFixture : StoreFixture {
  explicit FloorFixture(const char* policy = "lru", uint64_t floor_bytes = kFloorBytes)
      : StoreFixture({.slabs = 8, .policy = policy}), b(store->OpenNamespace("namespace-other0", 4096)) {
    store->SetFloor(ns, floor_bytes);
  }
  // Another one stores ten arenas, in reserves of 24. All of them are granted.
  void Flood(uint32_t space) {
    for (uint64_t i = 0; i < 10 * kSlots; i += 24) {
      CHECK(Put(100'000 + flooded + i, 24, space) == 24);
      MakeAllRoom(*this);
    }
    flooded += 100'000;
    CheckNothingHeld();
  }
  uint64_t Chunks(uint32_t space) const { return store->Namespaces()[space].chunks; }

  uint32_t b;
  uint64_t flooded = 0;
};

template <typename Check>
void ForEveryPolicy(Check check) {
  for (const char* policy : {"lru", "s3fifo"}) check(policy);
}

}  // namespace

TEST(AFloodLeavesAWorkingSetOfTheFloorsSize) {
  ForEveryPolicy([](const char* policy) {
    FloorFixture f(policy);
    CHECK(f.Put(0, kFloor) == kFloor);
    f.Flood(f.b);
    CHECK(f.Hits(0, kFloor) == kFloor);
    CHECK(f.Chunks(f.b) > kSlots - kFloor - kSlab);  // and has the rest
  });
}

TEST(WithoutAFloorTheSameFloodTakesAll) {
  ForEveryPolicy([](const char* policy) {
    FloorFixture f(policy, 0);
    CHECK(f.Put(0, kFloor) == kFloor);
    f.Flood(f.b);
    CHECK(f.Hits(0, kFloor) == 0 && f.Chunks(f.ns) == 0);
  });
}

TEST(AFullArenaMakesRoomUpToTheFloor) {
  ForEveryPolicy([](const char* policy) {
    FloorFixture f(policy);
    f.Flood(f.b);
    for (uint64_t i = 0; i < kFloor; i += 4) {
      CHECK(f.Put(i, 4) == 4);
      f.Put(90'000'000 + i * 100, 24, f.b);
      MakeAllRoom(f);
    }
    CHECK(f.Hits(0, kFloor) == kFloor);
    f.Flood(f.b);
    CHECK(f.Hits(0, kFloor) == kFloor);
  });
}

TEST(WhatIsAboveTheFloorIsSharedByAge) {
  ForEveryPolicy([](const char* policy) {
    FloorFixture f(policy);
    f.Put(0, kSlots);
    CHECK(f.Chunks(f.ns) == kSlots);
    f.Flood(f.b);
    CHECK(f.Chunks(f.ns) >= kFloor && f.Chunks(f.ns) < kFloor + kSlab);
  });
}

TEST(ANamespaceEvictsItsOwn) {
  ForEveryPolicy([](const char* policy) {
    FloorFixture f(policy);
    f.Flood(f.ns);
    CHECK(f.Chunks(f.ns) > 7 * kSlab);
  });
}

TEST(AtItsFloorAndWithNothingElseToTakeItEvictsItsOwn) {
  FloorFixture f("lru");
  f.store->SetFloor(f.b, 6 * kSlab * 4096);
  CHECK(f.Put(0, 6 * kSlab, f.b) == 6 * kSlab);
  for (uint64_t i = 0; i < 20; ++i) CHECK(f.Put(1000 + i * 8, 8) == 8);
  CHECK(f.Hits(0, 6 * kSlab, f.b) == 6 * kSlab && f.Hits(1000 + 19 * 8, 8) == 8);
  f.CheckNothingHeld();
}

TEST(FloorsBeyondTheArenaAreRefused) {
  FloorFixture f("lru");
  CHECK_THROWS(f.store->SetFloor(f.b, 7 * kSlab * 4096), "all floors need 9 slabs");
  CHECK_THROWS(f.store->SetFloor(99, 1), "no namespace has index 99");
  CHECK(f.store->Namespaces()[f.b].floor_bytes == 0 &&
        f.store->Namespaces()[f.ns].floor_bytes == kFloorBytes);
  f.store->SetFloor(f.b, 6 * kSlab * 4096);
  f.store->SetFloor(f.b, 5 * kSlab * 4096 + 1);
  CHECK_THROWS(f.store->SetFloor(f.ns, 3 * kSlab * 4096), "all floors need 9 slabs");
}

TEST(WithoutItsFloorItIsAsTheOthersAndWithItAgainAsBefore) {
  FloorFixture f("lru");
  f.Put(0, kFloor);
  f.store->SetFloor(f.ns, 0);
  f.Flood(f.b);
  CHECK(f.Chunks(f.ns) == 0);
  f.store->SetFloor(f.ns, kFloorBytes);
  f.Put(0, kFloor);
  f.Flood(f.b);
  CHECK(f.Hits(0, kFloor) == kFloor);
}

TEST(AnAdminMayEvictAndClearBelowTheFloor) {
  FloorFixture f("lru");
  f.Put(0, kFloor);
  CHECK(f.store->Evict(f.ns, 4 * 4096) == 4 * 4096 && f.Chunks(f.ns) == kFloor - 4);
  CHECK(f.store->ClearNamespace(f.ns) == kFloor - 4);
  while (f.store->ReclaimStale(64) > 0) {
  }
  CHECK(f.Stat("stale_slots") == 0);
  f.CheckNothingHeld();
}

TEST(OtherChunkSizesLeaveTheFloorAsWell) {
  FloorFixture f("lru");
  f.Put(0, kFloor);
  const uint32_t large = f.store->OpenNamespace("namespace-large0", 3 * 4096);
  f.Flood(f.b);
  for (uint64_t i = 0; i < 400; ++i) CHECK(f.Put(i * 10, 1, large) == 1);
  CHECK(f.Hits(0, kFloor) == kFloor && f.Chunks(large) > 0);
  f.CheckNothingHeld();
}

TEST(AFloorOutlivesTheDaemon) {
  const Shape shape{.slabs = 8};
  FloorFixture f("lru");
  f.Put(0, kFloor);
  f.Put(1000, 5 * kSlab, f.b);
  NextLife next(f, shape);
  next.CheckSound();
  CHECK(next.Stat("restart_kept") == kFloor + 5 * kSlab && next.Stat("restart_damaged") == 0);
  CHECK(next.store->Namespaces()[f.ns].floor_bytes == kFloorBytes);
  next.store->OpenSession(9, 9, 100);
  for (uint64_t i = 0; i < 10 * kSlots; i += 8) {
    const WriteGrant grant = next.store->Reserve(9, f.b, Range(50'000 + i, 8).batch());
    CHECK(grant.slots.size() == 8 && next.store->Commit(9, grant.lease) == Outcome::kOk);
  }
  CHECK(next.store->LongestPrefix(f.ns, Range(0, kFloor).batch()) == kFloor);
  next.CheckSound();
}

// Chunks from before the floor lie among others': they are kept and readable, and belong to nobody's floor.
TEST(MixedSlabsOfAnEarlierDaemonAreSharedOnes) {
  const Shape shape{.slabs = 8};
  FloorFixture f("lru", 0);
  for (uint64_t i = 0; i < kSlab; ++i) {
    f.Put(i, 1);
    f.Put(1000 + i, 1, f.b);
  }
  f.store->SetFloor(f.ns, kFloorBytes);
  f.Put(500, 8);
  NextLife next(f, shape);
  next.CheckSound();
  CHECK(next.Stat("restart_kept") == 2 * kSlab + 8);
  CHECK(next.store->LongestPrefix(f.ns, Range(0, kSlab).batch()) == kSlab);
  CHECK(next.store->LongestPrefix(f.ns, Range(500, 8).batch()) == 8);
  next.store->OpenSession(9, 9, 100);
  CHECK(next.store->Evict(f.ns, UINT64_MAX) == (kSlab + 8) * 4096);
  next.CheckSound();
}

TEST(ADamagedFloorIsNone) {
  const Shape shape{.slabs = 8};
  FloorFixture f("lru");
  f.Put(0, 8);
  NextLife next(f, shape, [&](MetaView& view) {
    const_cast<NamespaceRecord&>(view.ns(f.ns)).floor_bytes.store(UINT64_MAX);
  });
  next.CheckSound();
  CHECK(next.store->Namespaces()[f.ns].floor_bytes == 0 && next.Stat("restart_kept") == 8);
}

// A slab with more chunks than one call evicts: the flood comes in between, and must not get what was
// emptied.
TEST(ALargeSlabIsEmptiedForWhoeverIsBelowItsFloor) {
  constexpr uint32_t kLarge = 5000;
  StoreFixture f({.slabs = 3, .slab_bytes = kLarge * 4096});
  const uint32_t other = f.store->OpenNamespace("namespace-other0", 4096);
  for (uint64_t i = 0; i < 3 * kLarge; i += 100) CHECK(f.Put(i, 100, other) == 100);
  f.store->SetFloor(f.ns, 100 * 4096);
  for (uint64_t i = 0; i < 3 * kLarge; i += 100) {
    if (i % kLarge == 0) f.Put(1'000'000, 100);
    CHECK(f.Put(500'000 + i, 100, other) == 100);
  }
  CHECK(f.Hits(1'000'000, 100) == 100);
  f.CheckNothingHeld();
}

TEST(WhoeverAsksNoMoreKeepsNoSlab) {
  constexpr uint32_t kLarge = 5000;
  StoreFixture f({.slabs = 3, .slab_bytes = kLarge * 4096});
  const uint32_t other = f.store->OpenNamespace("namespace-other0", 4096);
  uint64_t next = 0;
  const auto flood = [&] {
    for (uint32_t i = 0; i < 4 * kLarge; i += 100) f.Put(next += 100, 100, other);
  };
  flood();
  f.store->SetFloor(f.ns, 100 * 4096);
  f.Put(1'000'000'000, 100);  // a slab is on its way out, for this one
  flood();
  CHECK(f.Stat("free_slabs") == 1);
  f.store->ExpireLeases(0);
  flood();
  CHECK(f.Stat("free_slabs") == 1);
  f.store->ExpireLeases(SteadyNs() / kNsPerMs + 3'600'000);
  flood();
  CHECK(f.Stat("free_slabs") == 0);
  f.CheckNothingHeld();
}

TEST(WhatIsInQuarantineCountsForNoFloor) {
  FloorFixture f("lru");
  f.store->OpenSession(2, 2, 200);
  CHECK(f.store->Reserve(2, f.ns, Range(5000, kFloor).batch()).slots.size() == kFloor);
  CHECK(f.store->CloseSession(2, /*drained=*/false));
  CHECK(f.Stat("quarantined_slots") == kFloor);
  f.CheckSound();
  CHECK(f.Put(0, kFloor) == kFloor);
  for (uint64_t i = 0; i < 10 * kSlots; i += 8) CHECK(f.Put(100'000 + i, 8, f.b) == 8);
  CHECK(f.Hits(0, kFloor) == kFloor);
  f.CheckSound();
  f.store->CloseSession(2, /*drained=*/true);
  f.CheckNothingHeld();
  NextLife next(f, {.slabs = 8});
  next.CheckSound();
}

// A namespace below its floor, while nobody has a slab to give: in one batch that is found out once.
TEST(ABatchLooksOnceForASlabThatNobodyHas) {
  constexpr uint32_t kMany = 1024, kOwn = 256;
  StoreFixture f({.slabs = kMany, .slab_bytes = 4096, .slots_max = 2 * kMany});
  const uint32_t other = f.store->OpenNamespace("namespace-other0", 4096);
  f.store->SetFloor(f.ns, 2 * kOwn * 4096);
  CHECK(f.Put(0, kOwn) == kOwn);
  CHECK(f.Put(100'000, kMany - kOwn, other) == kMany - kOwn);
  const ReadGrant held = f.store->Lease(1, other, Range(100'000, kMany - kOwn).batch());
  CHECK(held.slots.size() == kMany - kOwn);
  const uint64_t searches = f.Stat("rebalance_searches");
  CHECK(f.Put(1000, kOwn) == kOwn);
  CHECK(f.Stat("rebalance_searches") == searches + 1);
  CHECK(f.store->Release(1, held.lease) == Outcome::kOk);
  CHECK(f.Put(2000, kOwn) == kOwn && f.Hits(1000, kOwn) == kOwn);  // and the next batch finds one
  f.CheckNothingHeld();
}

// Three namespaces, floors that change, reserves of random size: whoever has no more than its floor loses
// nothing to others, whoever has more keeps the floor.
TEST(RandomCallsNeverTakeAFloor) {
  ForEveryPolicy([](const char* policy) {
    const uint64_t seed = RunSeed();
    std::mt19937_64 random(seed);
    FloorFixture f(policy, 0);
    const uint32_t large = f.store->OpenNamespace("namespace-large0", 3 * 4096);
    const uint32_t spaces[] = {f.ns, f.b, large};
    uint64_t next_number = 0;
    // Chunks from before a floor was set do not count for it.
    const auto clear = [&](uint32_t space) {
      f.store->ClearNamespace(space);
      while (f.store->ReclaimStale(kSlots) > 0) {
      }
    };
    for (int step = 0; step < 2000; ++step) {
      const uint32_t space = spaces[random() % 3];
      if (random() % 50 == 0) {
        clear(space);
        f.store->SetFloor(space, random() % 2 * kSlab * 4096 + random() % 8 * 4096);
      }
      const auto before = f.store->Namespaces();
      const auto count = static_cast<uint32_t>(1 + random() % 20);
      CHECK(f.Put(next_number, count, space) > 0);
      next_number += count;
      if (random() % 2 == 0) f.store->MakeRoom();
      const auto after = f.store->Namespaces();
      for (const uint32_t other : spaces) {
        if (other == space) continue;
        const uint64_t bytes = before[other].chunk_bytes;
        const uint64_t floor = (before[other].floor_bytes + bytes - 1) / bytes;
        CHECK(after[other].chunks >= std::min(before[other].chunks, floor));
      }
      if (step % 50 == 0) f.CheckNothingHeld();
    }
  });
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
