// Sessions that end in every way, namespaces, and how size classes share the arena.

#include "store_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kFarFuture = UINT64_MAX;

WriteGrant ReserveTwo(StoreFixture& f, SessionId session) {
  return f.store->Reserve(session, f.ns, Range(50, 2).batch());
}

}  // namespace

TEST(AProvenEndGivesEverythingBack) {
  StoreFixture f;
  f.Put(0, 4);
  f.store->Lease(1, f.ns, Range(0, 4).batch());
  ReserveTwo(f, 1);
  f.CheckSound();
  f.store->CloseSession(1, /*drained=*/true);
  f.CheckNothingHeld();
  CHECK(f.Stat("sessions") == 0 && f.Stat("aborts") == 2 && f.Hits(0, 4) == 4);
  f.store->CloseSession(1, true);
  f.store->CloseSession(42, false);
}

TEST(AnUnprovenEndQuarantinesUntilItIsProven) {
  StoreFixture f;
  f.Put(0, 4);
  f.store->Lease(1, f.ns, Range(0, 4).batch());
  const WriteGrant write = ReserveTwo(f, 1);
  f.store->CloseSession(1, /*drained=*/false);
  f.CheckSound();
  CHECK(f.Stat("quarantined_slots") == 2 && f.Stat("pinned_slots") == 0 && f.Stat("sessions") == 0);
  CHECK(f.store->Commit(1, write.lease) == Outcome::kUnknownSession);
  // The key is free for another engine, the slot is not.
  f.store->OpenSession(2, 2, 200);
  const WriteGrant again = ReserveTwo(f, 2);
  CHECK(again.slots.size() == 2);
  for (const SlotRef& ref : again.slots)
    CHECK(ref.slot != write.slots[0].slot && ref.slot != write.slots[1].slot);
  f.store->Commit(2, again.lease);
  f.store->CloseSession(1, false);
  CHECK(f.Stat("quarantined_slots") == 2);
  f.store->CloseSession(1, true);
  f.CheckNothingHeld();
  CHECK(f.Hits(50, 2) == 2);
}

TEST(AnHeirStandsForTheSessionBeforeIt) {
  StoreFixture f;
  f.store->OpenSession(2, 1, 200);
  ReserveTwo(f, 2);
  CHECK(!f.store->Succeed(1, 2));  // it is open
  CHECK(f.store->CloseSession(1, /*drained=*/false));
  CHECK(f.store->CloseSession(2, false));
  CHECK(f.Stat("quarantined_slots") == 2);
  f.store->OpenSession(3, 1, 100);
  f.store->OpenSession(4, 9, 400);
  CHECK(!f.store->Succeed(1, 4) && !f.store->Succeed(1, 5));  // of another group; of none
  CHECK(f.store->Succeed(1, 3) && !f.store->Succeed(1, 3));
  f.CheckSound();
  f.store->CloseSession(2, true);
  CHECK(f.Stat("quarantined_slots") == 2);  // the heir's process may be writing
  CHECK(!f.store->CloseSession(3, true));
  f.store->CloseSession(4, true);
  f.CheckNothingHeld();
}

TEST(WhoCannotBeWritingNeedsNoProof) {
  StoreFixture f;
  CHECK(!f.store->CloseSession(1, /*drained=*/false));
  f.CheckNothingHeld();
}

TEST(TheOthersOfAGroupMayStillBeWriting) {
  StoreFixture f;
  f.store->OpenSession(2, 1, 200);
  f.store->OpenSession(3, 1, 300);
  f.store->OpenSession(4, 9, 400);  // another engine
  ReserveTwo(f, 1);
  f.store->CloseSession(1, true);
  CHECK(f.Stat("quarantined_slots") == 2);
  f.store->OpenSession(5, 1, 500);  // joined later: it cannot know the lease
  f.store->CloseSession(2, true);
  f.store->CloseSession(3, false);
  f.store->CloseSession(4, true);
  f.CheckSound();
  CHECK(f.Stat("quarantined_slots") == 2);
  f.store->CloseSession(3, true);
  f.CheckNothingHeld();
}

TEST(AnExpiredWriteLeaseIsQuarantinedAReadLeaseGivenBack) {
  StoreFixture f;
  f.Put(0, 4);
  const ReadGrant read = f.store->Lease(1, f.ns, Range(0, 4).batch());
  const WriteGrant write = ReserveTwo(f, 1);
  f.store->ExpireLeases(0);
  CHECK(f.Stat("read_leases") == 1 && f.Stat("write_leases") == 1);
  f.store->ExpireLeases(kFarFuture);
  f.CheckSound();
  CHECK(f.Stat("pinned_slots") == 0 && f.Stat("quarantined_slots") == 2 && f.Stat("expired_leases") == 2);
  CHECK(f.store->Release(1, read.lease) == Outcome::kUnknownLease);
  CHECK(f.store->Commit(1, write.lease) == Outcome::kUnknownLease);
  CHECK(f.Hits(50, 2) == 0);
  f.store->CloseSession(1, true);
  f.CheckNothingHeld();
}

// The scheduler's session was lost, its process and a worker live on: once the group says that the lease is
// over, its slots are free, though neither of them has ended.
TEST(ALateWordOfTheGroupEndsAQuarantine) {
  for (const bool commits : {false, true}) {
    StoreFixture f;
    f.store->OpenSession(2, 1, 200);
    f.store->OpenSession(9, 9, 900);  // another engine
    const WriteGrant write = ReserveTwo(f, 1);
    f.store->CloseSession(1, /*drained=*/false);
    f.store->OpenSession(3, 1, 100);  // attached anew
    const auto late = [&](SessionId session, LeaseId lease) {
      return commits ? f.store->Commit(session, lease) : f.store->Abort(session, lease);
    };
    CHECK(late(9, write.lease) == Outcome::kUnknownLease && late(1, write.lease) == Outcome::kUnknownSession);
    CHECK(late(3, write.lease + 1) == Outcome::kUnknownLease);
    CHECK(f.Stat("quarantined_slots") == 2);
    CHECK(late(3, write.lease) == Outcome::kUnknownLease);
    f.CheckNothingHeld();
    CHECK(f.Hits(50, 2) == 0);
    CHECK(late(3, write.lease) == Outcome::kUnknownLease);
    f.CheckNothingHeld();
  }
}

TEST(ALateWordFreesAnExpiredLease) {
  StoreFixture f;
  const WriteGrant write = ReserveTwo(f, 1);
  f.store->ExpireLeases(kFarFuture);
  CHECK(f.Stat("quarantined_slots") == 2);
  CHECK(f.store->Abort(1, write.lease) == Outcome::kUnknownLease);
  f.CheckNothingHeld();
}

TEST(ALeaseThatNobodyLearnedOfIsAborted) {
  StoreFixture f;
  f.store->OpenSession(2, 1, 200);  // may be writing under what session 1 told it of
  const WriteGrant told = ReserveTwo(f, 1);
  f.store->Reserve(1, f.ns, Range(60, 3).batch());
  const std::vector<LeaseId> held = {told.lease};
  f.store->CloseSession(1, /*drained=*/false, &held);
  f.CheckSound();
  CHECK(f.Stat("quarantined_slots") == 2 && f.Stat("reserved_slots") == 0 && f.Stat("aborts") == 3);
  f.store->CloseSession(1, true);
  CHECK(f.Stat("quarantined_slots") == 2);
  f.store->CloseSession(2, true);
  f.CheckNothingHeld();
}

TEST(ASessionIsOpenedOnce) {
  StoreFixture f;
  CHECK_THROWS(f.store->OpenSession(1, 1, 100), "session 1");
  const ReadGrant none = f.store->Lease(1, f.ns, Range(0, 1).batch());
  CHECK(none.outcome == Outcome::kOk);
  const auto sessions = f.store->Sessions();
  CHECK(sessions.size() == 1 && sessions[0].pid == 100 && sessions[0].group == 1);
}

TEST(NamespacesAreCheckedAndKnownAgain) {
  StoreFixture f;
  CHECK(f.store->OpenNamespace("namespace-000000", 4096) == f.ns);
  CHECK_THROWS(f.store->OpenNamespace("namespace-000000", 8192), "4096, not 8192");
  CHECK_THROWS(f.store->OpenNamespace("short", 4096), "16 bytes");
  CHECK_THROWS(f.store->OpenNamespace("namespace-000001", 0), "chunk_bytes");
  CHECK_THROWS(f.store->OpenNamespace("namespace-000001", 16 * 4096 + 1), "chunk_bytes");
  const uint32_t other = f.store->OpenNamespace("namespace-000001", 5000);
  CHECK(other != f.ns);
  f.Put(0, 3);
  CHECK(f.Hits(0, 3) == 3 && f.Hits(0, 3, other) == 0);
  CHECK(f.Put(0, 2, other) == 2);
  f.store->ClearNamespace(f.ns);
  CHECK(f.Hits(0, 3) == 0 && f.Hits(0, 3, other) == 2);
  const auto stats = f.store->Namespaces();
  CHECK(stats.size() == 2 && stats[other].chunks == 2 && stats[other].bytes == 10000 &&
        stats[f.ns].epoch == 2);
  f.CheckNothingHeld();
}

TEST(OptionsAreCheckedAndNamed) {
  MemFile data("data");
  MemFile meta("meta");
  const auto arena = std::make_shared<Arena>(data.fd(), 8 * 4096, 4096);
  CHECK_THROWS(Store(arena, meta.fd(), {.slots_max = 7}), "slots_max");
  CHECK_THROWS(Store(arena, meta.fd(), {.policy = "clock"}), "policy");
  CHECK_THROWS(Store(arena, meta.fd(), {.namespaces_max = 0}), "namespaces_max");
  CHECK_THROWS(Store(arena, meta.fd(), {.lease_ms = 0}), "lease_ms");
  CHECK_THROWS(Store(nullptr, meta.fd(), {}), "arena");
}

TEST(NothingIsGrantedBeyondWhatIsPopulated) {
  MemFile data("data");
  MemFile meta("meta");
  const auto arena = std::make_shared<Arena>(data.fd(), 8 * 4096, 4096);
  Store store(arena, meta.fd(), {});
  store.OpenSession(1, 1, 1);
  const uint32_t ns = store.OpenNamespace("namespace-000000", 4096);
  CHECK(store.Reserve(1, ns, Range(0, 1).batch()).grants[0] == Grant::kNoSpace);
  arena->Populate();
  CHECK(store.Reserve(1, ns, Range(0, 8).batch()).slots.size() == 8);
}

TEST(AnotherSizeClassGetsAnIdleSlab) {
  StoreFixture f;  // 4 slabs of 16 chunks
  f.Put(0, 64);
  const uint32_t large = f.store->OpenNamespace("namespace-large0", 8 * 4096);  // 2 in a slab
  CHECK(f.Put(0, 2, large) == 2);
  CHECK(f.Stat("rebalances") == 1 && f.Hits(0, 2, large) == 2 && f.Stat("evictions") == 16);
  f.CheckNothingHeld();
}

TEST(ASlabWithPinsDoesNotMove) {
  StoreFixture f;
  f.Put(0, 64);
  Keys one_of_each;
  for (const uint64_t number : {0, 16, 32, 48}) one_of_each.Add(KeyOf(number));
  const ReadGrant lease = f.store->Lease(1, f.ns, one_of_each.batch());
  CHECK(lease.slots.size() == 4);
  const uint32_t large = f.store->OpenNamespace("namespace-large0", 16 * 4096);
  CHECK(f.Put(0, 1, large) == 0 && f.Stat("rebalances") == 0 && f.Hits(0, 64) == 64);
  f.store->Release(1, lease.lease);
  CHECK(f.Put(0, 1, large) == 1);
  f.CheckNothingHeld();
}

TEST(ClassesShareTheArenaByAge) {
  StoreFixture f({.slabs = 16});
  f.Put(0, 256);                                                                // all of it
  const uint32_t large = f.store->OpenNamespace("namespace-large0", 4 * 4096);  // 4 in a slab
  // The small chunks are never asked for again: the other class takes over, slab by slab.
  for (uint64_t i = 0; i < 400; ++i) CHECK(f.Put(1000 + i, 1, large) == 1);
  CHECK(f.store->Namespaces()[f.ns].chunks == 0 && f.store->Namespaces()[large].chunks == 64);
  f.CheckNothingHeld();
  // And back, but what is in use meanwhile stays.
  for (uint64_t i = 0; i < 800; ++i) {
    CHECK(f.Put(5000 + i, 1) == 1);
    f.store->Touch(1, large, Range(1000 + 396, 4).batch());
  }
  CHECK(f.Hits(1396, 4, large) == 4 && f.store->Namespaces()[f.ns].chunks == 15 * 16);
  f.CheckNothingHeld();
}

TEST(IndexMemoryStaysInItsBudget) {
  constexpr uint32_t kSlots = 1 << 16;
  for (const char* policy : {"lru", "s3fifo"}) {
    StoreFixture f({.slabs = 64, .slab_bytes = uint64_t{kSlots / 64} * 4096, .policy = policy});
    for (uint64_t i = 0; i < kSlots; i += 4096) CHECK(f.Put(i, 4096) == 4096);
    const uint64_t fixed = sizeof(MetaHeader) + 1024 * sizeof(NamespaceRecord) +
                           kSessionRowsMax * sizeof(SessionRow) + kLeaseRowsMax * sizeof(WriteLeaseRow);
    CHECK(static_cast<double>(f.Stat("index_bytes") - fixed) / kSlots <= 96);
  }
}

TEST(EvictTakesTheColdestOfOneNamespace) {
  StoreFixture f;
  const uint32_t other = f.store->OpenNamespace("namespace-000001", 4096);
  f.Put(0, 8, other);
  f.Put(0, 16);
  CHECK(f.store->Evict(f.ns, 3 * 4096) == 3 * 4096);
  CHECK(f.Hits(0, 16) == 13 && f.Hits(0, 8, other) == 8);
  CHECK(f.store->Evict(f.ns, UINT64_MAX) == 13 * 4096 && f.store->Evict(99, 1) == 0);
  f.CheckNothingHeld();
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
