// What a lease, a reserve and their ends promise.

#include "store_fixture.h"

namespace tpu_sync_native::testing {

TEST(OnlyCommitMakesAChunkReadable) {
  StoreFixture f;
  const Keys keys = Range(0, 3);
  const WriteGrant grant = f.store->Reserve(1, f.ns, keys.batch());
  CHECK(grant.lease != 0 && grant.slots.size() == 3 && f.Hits(0, 3) == 0);
  CHECK(f.store->Commit(1, grant.lease) == Outcome::kOk);
  CHECK(f.Hits(0, 3) == 3);
  CHECK(f.store->Commit(1, grant.lease) == Outcome::kUnknownLease);
  CHECK(f.store->Abort(1, grant.lease) == Outcome::kUnknownLease);
  CHECK(f.Stat("stores") == 3 && f.Stat("stored_bytes") == 3 * 4096 && f.Stat("chunk_bytes") == 3 * 4096);
  f.CheckNothingHeld();
}

TEST(ALeaseHoldsTheLeadingHitsOnly) {
  StoreFixture f;
  f.Put(0, 5);
  f.Put(6, 3);
  const ReadGrant grant = f.store->Lease(1, f.ns, Range(0, 9).batch());
  CHECK(grant.slots.size() == 5 && f.Stat("pinned_slots") == 5);
  CHECK(f.Stat("hits") == 5 && f.Stat("misses") == 4);
  for (const SlotRef& ref : grant.slots) CHECK(f.reader->Unchanged(ref.slot, ref.generation));
  f.CheckSound();
  CHECK(f.store->Release(1, grant.lease) == Outcome::kOk);
  CHECK(f.store->Release(1, grant.lease) == Outcome::kUnknownLease);
  f.CheckNothingHeld();
  const ReadGrant none = f.store->Lease(1, f.ns, Range(100, 2).batch());
  CHECK(none.outcome == Outcome::kOk && none.lease == 0 && none.slots.empty());
}

TEST(APinnedSlotIsNotEvicted) {
  StoreFixture f;  // 64 chunks
  CHECK(f.Put(0, 64) == 64);
  const ReadGrant lease = f.store->Lease(1, f.ns, Range(0, 64).batch());
  const WriteGrant refused = f.store->Reserve(1, f.ns, Range(100, 2).batch());
  CHECK(refused.lease == 0 && refused.grants[0] == Grant::kNoSpace && refused.grants[1] == Grant::kNoSpace);
  CHECK(f.Stat("refusals") == 2 && f.Hits(0, 64) == 64);
  f.store->Release(1, lease.lease);
  CHECK(f.Put(100, 2) == 2 && f.Hits(0, 64) == 62);
  f.CheckNothingHeld();
}

TEST(ABatchNeverEvictsItsOwnChunks) {
  StoreFixture f;
  f.Put(0, 10);
  // 10 present, 54 free, 6 too many: the last are refused rather than the first evicted.
  const WriteGrant grant = f.store->Reserve(1, f.ns, Range(0, 70).batch());
  for (uint32_t i = 0; i < 70; ++i) {
    CHECK(grant.grants[i] == (i < 10 ? Grant::kPresent : i < 64 ? Grant::kGranted : Grant::kNoSpace));
  }
  f.store->Commit(1, grant.lease);
  CHECK(f.Hits(0, 70) == 64);
  f.CheckNothingHeld();
}

TEST(TheSecondWriterOfAKeyIsTold) {
  StoreFixture f;
  f.store->OpenSession(2, 2, 200);
  Keys twice = Range(0, 1);
  twice.Add(KeyOf(0));
  const WriteGrant first = f.store->Reserve(1, f.ns, twice.batch());
  CHECK(first.slots.size() == 1 && first.grants[0] == Grant::kGranted && first.grants[1] == Grant::kPending);
  const WriteGrant second = f.store->Reserve(2, f.ns, Range(0, 1).batch());
  CHECK(second.lease == 0 && second.grants[0] == Grant::kPending);
  CHECK(f.store->Abort(1, first.lease) == Outcome::kOk);
  CHECK(f.Put(0, 1, f.ns, 2) == 1);
  CHECK(f.store->Reserve(1, f.ns, Range(0, 1).batch()).grants[0] == Grant::kPresent);
  f.CheckNothingHeld();
}

TEST(CommitKeepsWhatTheBitmapSays) {
  StoreFixture f;
  const WriteGrant grant = f.store->Reserve(1, f.ns, Range(0, 10).batch());
  const uint8_t keep[] = {0b10100101};  // bits 8 and 9 are beyond its end
  CHECK(f.store->Commit(1, grant.lease, keep) == Outcome::kOk);
  for (uint32_t i = 0; i < 10; ++i) CHECK(f.Has(i) == (i == 0 || i == 2 || i == 5 || i == 7));
  CHECK(f.Stat("aborts") == 6);
  f.CheckNothingHeld();
}

TEST(GenerationsRiseAtReserveAndAtEvict) {
  StoreFixture f({.slabs = 1, .slab_bytes = 4096});
  f.Put(0, 1);
  const ReadGrant lease = f.store->Lease(1, f.ns, Range(0, 1).batch());
  const SlotRef ref = lease.slots[0];
  f.store->Release(1, lease.lease);
  CHECK(f.reader->Unchanged(ref.slot, ref.generation));
  CHECK(f.store->Evict(f.ns, 1) == 4096);
  CHECK(!f.reader->Unchanged(ref.slot, ref.generation));
  const WriteGrant next = f.store->Reserve(1, f.ns, Range(1, 1).batch());
  CHECK(next.slots[0].slot == ref.slot && next.slots[0].generation == ref.generation + 2);
  CHECK(f.reader->Unchanged(ref.slot, ref.generation + 2));
  f.store->Abort(1, next.lease);
}

TEST(WrongCallsAreNamedAndChangeNothing) {
  StoreFixture f;
  f.Put(0, 1);
  const Keys good = Range(0, 1);
  Keys bad = Range(0, 1);
  bad.Add("short");
  Keys many;
  for (uint32_t i = 0; i <= kBatchKeysMax; ++i) many.Add("0123456789abcdef");
  CHECK(f.store->Lease(9, f.ns, good.batch()).outcome == Outcome::kUnknownSession);
  CHECK(f.store->Lease(1, 77, good.batch()).outcome == Outcome::kUnknownNamespace);
  CHECK(f.store->Lease(1, f.ns, bad.batch()).outcome == Outcome::kBadKey);
  CHECK(f.store->Lease(1, f.ns, many.batch()).outcome == Outcome::kBatchTooLarge);
  CHECK(f.store->Reserve(9, f.ns, good.batch()).outcome == Outcome::kUnknownSession);
  CHECK(f.store->Reserve(1, 77, good.batch()).outcome == Outcome::kUnknownNamespace);
  CHECK(f.store->Reserve(1, f.ns, bad.batch()).outcome == Outcome::kBadKey);
  CHECK(f.store->Reserve(1, f.ns, many.batch()).outcome == Outcome::kBatchTooLarge);
  CHECK(f.store->Touch(1, f.ns, bad.batch()) == Outcome::kBadKey);
  CHECK(f.store->Release(1, 12345) == Outcome::kUnknownLease);
  CHECK(f.store->Commit(9, 1) == Outcome::kUnknownSession);
  // A read lease is not a write lease, and a lease is its group's alone.
  f.store->OpenSession(2, 2, 200);
  f.store->OpenSession(3, 1, 300);
  const ReadGrant lease = f.store->Lease(1, f.ns, good.batch());
  CHECK(f.store->Commit(1, lease.lease) == Outcome::kUnknownLease);
  CHECK(f.store->Release(2, lease.lease) == Outcome::kUnknownLease);
  CHECK(f.store->Release(3, lease.lease) == Outcome::kOk);
  f.CheckNothingHeld();
}

TEST(ClearingMakesChunksUnreadableAtOnce) {
  StoreFixture f;
  f.Put(0, 10);
  const ReadGrant read = f.store->Lease(1, f.ns, Range(0, 2).batch());
  const WriteGrant write = f.store->Reserve(1, f.ns, Range(20, 2).batch());
  CHECK(f.store->ClearNamespace(f.ns) == 10);
  CHECK(f.Hits(0, 10) == 0 && f.Stat("stale_slots") == 10 && f.Stat("chunk_bytes") == 0);
  CHECK(f.store->Commit(1, write.lease) == Outcome::kCleared);
  CHECK(f.Hits(20, 2) == 0 && f.Stat("reserved_slots") == 0);
  // The same keys can be stored anew while the old ones still wait to be reclaimed.
  CHECK(f.Put(0, 10) == 10 && f.Hits(0, 10) == 10);
  f.CheckSound();
  CHECK(f.store->ReclaimStale(1000) == 8);  // two are pinned
  f.CheckSound();
  CHECK(f.store->Release(1, read.lease) == Outcome::kOk);
  CHECK(f.Stat("stale_slots") == 0 && f.Hits(0, 10) == 10);
  CHECK(f.store->ReclaimStale(1000) == 0);
  CHECK_THROWS(f.store->ClearNamespace(99), "99");
  f.CheckNothingHeld();
}

TEST(StaleChunksAreEvictedLikeOthers) {
  StoreFixture f;
  f.Put(0, 64);
  f.store->ClearNamespace(f.ns);
  CHECK(f.Put(100, 64) == 64 && f.Stat("stale_slots") == 0 && f.Stat("evictions") == 0);
  f.CheckNothingHeld();
}

TEST(DrainingGrantsNothingAndTakesBackAll) {
  StoreFixture f;
  f.Put(0, 1);
  const ReadGrant read = f.store->Lease(1, f.ns, Range(0, 1).batch());
  const WriteGrant write = f.store->Reserve(1, f.ns, Range(1, 1).batch());
  f.store->SetDraining(true);
  CHECK(f.store->Lease(1, f.ns, Range(0, 1).batch()).outcome == Outcome::kDraining);
  CHECK(f.store->Reserve(1, f.ns, Range(2, 1).batch()).outcome == Outcome::kDraining);
  CHECK(f.store->Release(1, read.lease) == Outcome::kOk && f.store->Commit(1, write.lease) == Outcome::kOk);
  f.store->SetDraining(false);
  CHECK(f.store->Lease(1, f.ns, Range(0, 1).batch()).outcome == Outcome::kOk);
}

TEST(TheEndOfAPrefixIsEvictedFirst) {
  for (const char* policy : {"lru", "s3fifo"}) {
    StoreFixture f({.policy = policy});
    f.Put(0, 64);
    const ReadGrant lease = f.store->Lease(1, f.ns, Range(0, 32).batch());
    f.store->Release(1, lease.lease);
    f.Put(1000, 40);
    CHECK(f.Hits(0, 64) == 24 && f.Hits(1000, 40) == 40);
    f.CheckNothingHeld();
  }
}

TEST(TouchCountsAsUse) {
  StoreFixture f;
  f.Put(0, 32);
  f.Put(100, 32);
  CHECK(f.store->Touch(1, f.ns, Range(0, 32).batch()) == Outcome::kOk);
  f.Put(200, 32);
  CHECK(f.Hits(0, 32) == 32 && f.Hits(100, 32) == 0);
}

TEST(ARenewedBeginningOutlivesTheEnd) {
  for (const char* policy : {"lru", "s3fifo"}) {
    StoreFixture f({.policy = policy});
    f.Put(0, 32);
    const WriteGrant end = f.store->Reserve(1, f.ns, Range(32, 32).batch());
    CHECK(f.store->Renew(1, f.ns, Range(0, 32).batch()) == Outcome::kOk);
    CHECK(f.store->Commit(1, end.lease) == Outcome::kOk);
    f.Put(100, 32);
    CHECK(f.Hits(0, 64) == 32);
  }
}

TEST(LongKeysWork) {
  StoreFixture f;
  for (const uint32_t bytes : {16u, 33u, 40u, 41u, 64u}) CHECK(f.Put(0, 5, f.ns, 1, bytes) == 5);
  for (const uint32_t bytes : {16u, 33u, 40u, 41u, 64u}) {
    CHECK(f.store->LongestPrefix(f.ns, Range(0, 6, bytes).batch()) == 5);
  }
  f.Put(1000, 64, f.ns, 1, 64);
  CHECK(f.store->LongestPrefix(f.ns, Range(1000, 64, 64).batch()) == 64);
  f.CheckNothingHeld();
}

TEST(ChunksAreListedInPages) {
  StoreFixture f;
  f.Put(0, 10);
  std::vector<Store::ChunkInfo> all;
  for (uint32_t after = kNoSlot;;) {
    const auto page = f.store->ListChunks(f.ns, after, 3);
    if (page.empty()) break;
    CHECK(page.size() <= 3);
    all.insert(all.end(), page.begin(), page.end());
    after = page.back().slot;
  }
  CHECK(all.size() == 10);
  for (uint32_t i = 0; i < 10; ++i) CHECK(all[i].key == KeyOf(i) && all[i].pins == 0);
  CHECK(f.store->ListChunks(99, kNoSlot, 10).empty());
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
