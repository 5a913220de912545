// Chunks that are kept out of sight until the tier below has said of which epoch the namespace is.
#include "fake_lower_tier.h"
#include "restart_fixture.h"

namespace tpu_sync_native::testing {
namespace {

struct Withholding : StoreFixture {
  explicit Withholding(uint64_t word) {
    CHECK(Put(0, 20) == 20);
    store->SetEpochBelow(ns, word);
    store->WithholdNamespace(ns);
    store->SetLowerTier(&below);
  }
  ~Withholding() {
    CheckNothingHeld();
    store->SetLowerTier(nullptr);
  }
  void Say(uint64_t word) {
    below.SayEpoch(word);
    store->NoteEpochsBelow();
  }
  FakeLowerTier below;
};

}  // namespace

TEST(NothingWithheldIsServedNorReclaimed) {
  Withholding f(6);
  f.Say(0);
  CHECK(f.Hits(0, 20) == 0 && !f.store->AwaitSettled(f.ns, 0));
  CHECK(f.store->Lease(1, f.ns, Range(0, 20).batch()).slots.empty());
  CHECK(f.store->EpochBelow(f.ns) == 0);
  for (int i = 0; i < 50; ++i) CHECK(f.store->ReclaimStale(1000) == 0);
  CHECK(f.Stat("withheld_slots") == 20 && f.Stat("stale_slots") == 0 && f.Stat("committed_slots") == 0);
  CHECK(f.Put(0, 5) == 5 && f.Hits(0, 20) == 5);  // what is stored meanwhile is served
  f.CheckSound();
}

TEST(OfTheSameEpochTheyAreBack) {
  Withholding f(6);
  f.Put(0, 2);
  const WriteGrant open = f.store->Reserve(1, f.ns, Range(50, 3).batch());
  const ReadGrant read = f.store->Lease(1, f.ns, Range(0, 2).batch());
  f.Say(6);
  CHECK(f.store->AwaitSettled(f.ns, 0) && f.Hits(0, 20) == 20 && f.store->EpochBelow(f.ns) == 6);
  CHECK(f.Stat("withheld_slots") == 0 && f.Stat("committed_slots") == 20 && f.Stat("stale_slots") == 2);
  CHECK(f.Stat("chunk_bytes") == 20 * 4096);
  CHECK(f.store->Commit(1, open.lease) == Outcome::kCleared);
  CHECK(f.store->Release(1, read.lease) == Outcome::kOk);
  CHECK(f.Stat("stale_slots") == 0 && f.Hits(0, 20) == 20);
}

TEST(OfAnotherEpochTheyAreGoneAndWhatWasStoredMeanwhileStays) {
  Withholding f(6);
  f.Put(0, 2);
  f.Say(7);
  CHECK(f.Hits(0, 20) == 2 && f.store->EpochBelow(f.ns) == 7);
  CHECK(f.Stat("withheld_slots") == 0 && f.Stat("stale_slots") == 20);
  CHECK(f.store->ReclaimStale(1000) == 20);
}

TEST(WhatNoTierWasEverAskedAboutIsOfTheFirstEpoch) {
  {
    Withholding f(0);
    f.Say(1);
    CHECK(f.Hits(0, 20) == 20);
  }
  Withholding f(0);
  f.Say(2);
  CHECK(f.Hits(0, 20) == 0);
}

// An epoch that was gone back from is not made again while slots may carry it.
TEST(NothingComesBackWithALaterClear) {
  Withholding f(6);
  CHECK(f.Put(30, 5) == 5);
  f.Say(6);
  CHECK(f.Hits(30, 5) == 0 && f.Hits(0, 20) == 20);
  CHECK(f.store->ClearNamespace(f.ns) == 20);
  CHECK(f.Hits(30, 5) == 0 && f.Hits(0, 20) == 0);
  CHECK(f.Put(30, 1) == 1 && f.Hits(30, 5) == 1);
}

TEST(AClearEndsIt) {
  Withholding f(6);
  CHECK(f.store->ClearNamespace(f.ns) == 0);
  CHECK(f.store->AwaitSettled(f.ns, 0) && f.store->EpochBelow(f.ns) == kUnconfirmedClear);
  f.Say(6);
  CHECK(f.Hits(0, 20) == 0);
}

TEST(TheLargerPartIsServedOfTwo) {
  Withholding f(6);
  CHECK(f.Put(100, 21) == 21);
  f.Say(6);
  CHECK(f.Hits(100, 21) == 21 && f.Hits(0, 20) == 0);
}

TEST(WhatIsWithheldMakesRoomWhenItsTurnComes) {
  Withholding f(6);
  CHECK(f.Put(100, 64) == 64);
  CHECK(f.Stat("withheld_slots") == 0 && f.Hits(100, 64) == 64);
  f.Say(6);
  CHECK(f.Hits(100, 64) == 64);
}

// A daemon that ends meanwhile has given them up: an engine that outlives it may have stored others since.
TEST(TheNextLifeKeepsWhatWasServed) {
  Withholding f(6);
  f.Put(30, 5);
  NextLife next(f);
  CHECK(next.store->LongestPrefix(f.ns, Range(30, 5).batch()) == 5 && !next.Has(0, f.ns));
  CHECK(next.store->EpochBelow(f.ns) == 0 && next.Stat("restart_cleared") == 20);
  f.Say(6);
  NextLife later(f);
  CHECK(later.Has(0, f.ns) && !later.Has(30, f.ns) && later.Stat("restart_cleared") == 5);
  later.CheckSound();
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
