// Room made ahead of a reserve: how much, from whom, and in what steps.

#include "store_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint32_t kSlots = 1024;

uint32_t MakeAllRoom(StoreFixture& f) {
  uint32_t steps = 0;
  while (f.store->RoomWanted() && steps < 1000) {
    const uint64_t evictions = f.Stat("evictions");
    f.store->MakeRoom();
    CHECK(f.Stat("evictions") - evictions <= 64);  // one step is short
    ++steps;
  }
  return steps;
}

TEST(AReserveFindsTheSlotsThatTheLastOneHadToEvict) {
  for (const char* policy : {"lru", "s3fifo"}) {
    StoreFixture f({.slabs = 4, .slab_bytes = kSlots / 4 * 4096, .policy = policy});
    for (uint64_t i = 0; i < kSlots; i += 32) f.Put(i, 32);
    CHECK(f.Stat("free_slabs") == 0);
    f.Put(10'000, 48);
    CHECK(f.store->RoomWanted());
    CHECK(MakeAllRoom(f) > 1 && !f.store->RoomWanted());
    f.CheckSound();
    for (uint64_t round = 1; round < 50; ++round) {
      const uint64_t evictions = f.Stat("evictions");
      CHECK(f.Put(10'000 + round * 100, 48) == 48);
      CHECK(f.Stat("evictions") == evictions);
      MakeAllRoom(f);
      CHECK(f.Stat("evictions") == evictions + 48);
    }
    f.CheckNothingHeld();
  }
}

TEST(NoMoreThanAShareOfTheClassIsKeptFree) {
  StoreFixture f({.slabs = 4, .slab_bytes = kSlots / 4 * 4096});
  f.Put(0, kSlots);
  MakeAllRoom(f);
  CHECK(f.Stat("committed_slots") == kSlots - kSlots / 16);
  StoreFixture small({.slabs = 1, .slab_bytes = 8 * 4096});
  small.Put(0, 8);
  CHECK(!small.store->RoomWanted() && !small.store->MakeRoom() && small.Hits(0, 8) == 8);
}

TEST(SmallReservesKeepLittleFree) {
  StoreFixture f({.slabs = 4, .slab_bytes = kSlots / 4 * 4096});
  f.Put(0, kSlots);
  for (uint64_t i = 0; i < 100; ++i) {
    CHECK(f.Put(10'000 + i, 1) == 1);
    MakeAllRoom(f);
  }
  // What the first, large reserve asked for is forgotten.
  CHECK(f.Stat("committed_slots") >= kSlots - 8);
  f.CheckNothingHeld();
}

TEST(NothingIsEvictedWhileASlabIsFree) {
  StoreFixture f({.slabs = 4, .slab_bytes = kSlots / 4 * 4096});
  f.Put(0, kSlots / 2);
  MakeAllRoom(f);
  CHECK(f.Stat("evictions") == 0 && f.Stat("free_slabs") == 2);
  const uint64_t index_bytes = f.Stat("index_bytes");
  f.Put(5000, 1);  // its slab's records had memory already
  CHECK(f.Stat("index_bytes") == index_bytes && f.Stat("free_slabs") == 1);
  f.CheckNothingHeld();
}

TEST(WhatIsInUseStays) {
  StoreFixture f({.slabs = 4, .slab_bytes = kSlots / 4 * 4096});
  f.Put(0, kSlots);
  const ReadGrant lease = f.store->Lease(1, f.ns, Range(0, kSlots).batch());
  CHECK(lease.slots.size() == kSlots);
  CHECK(MakeAllRoom(f) <= 2 && f.Hits(0, kSlots) == kSlots);
  f.store->Release(1, lease.lease);
  f.CheckNothingHeld();
}

// Slots that are always free in time must not keep the classes from sharing the arena by age.
TEST(AClassThatNeverRunsDryStillGetsColderSlabs) {
  StoreFixture f({.slabs = 16, .slab_bytes = 64 * 4096});
  f.Put(0, kSlots);
  const uint32_t large = f.store->OpenNamespace("namespace-large0", 2 * 4096);  // 32 in a slab
  for (uint64_t i = 0; i < 2000; ++i) {
    CHECK(f.Put(10'000 + i, 1, large) == 1);
    MakeAllRoom(f);
  }
  CHECK(f.store->Namespaces()[f.ns].chunks == 0 && f.store->Namespaces()[large].chunks > 500);
  f.CheckNothingHeld();
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
