// What a lease over two tiers promises, and how promotes end.

#include <chrono>
#include <thread>

#include "base/futex.h"
#include "fake_lower_tier.h"

namespace tpu_sync_native::testing {
namespace {

using End = Store::PromoteEnd;

struct Tiers : StoreFixture {
  explicit Tiers(const Shape& shape = {}) : StoreFixture(shape) { store->SetLowerTier(&below); }

  ReadGrant Lease(uint64_t first, uint32_t count, SessionId session = 1) {
    const ReadGrant grant = store->Lease(session, ns, Range(first, count).batch());
    CHECK(grant.outcome == Outcome::kOk && (grant.lease != 0) == !grant.slots.empty());
    CheckSound();
    return grant;
  }
  SlotState StateOf(const SlotRef& ref) const { return reader->StateOf(ref.slot, ref.generation); }
  // Of the slots, how many lead in this state.
  size_t Leading(const std::vector<SlotRef>& refs, SlotState state) const {
    size_t count = 0;
    while (count < refs.size() && StateOf(refs[count]) == state) ++count;
    return count;
  }
  void EndAll(const std::vector<FakeLowerTier::Offered>& offered, End end) {
    std::vector<SlotRef> refs;
    for (const auto& one : offered) refs.push_back(one.chunk.ref);
    store->EndPromotes(refs, end);
    CheckSound();
  }
  void EndOne(const SlotRef& ref, End end) {
    store->EndPromotes({&ref, 1}, end);
    CheckSound();
  }
  void Release(const ReadGrant& grant) {
    CHECK(store->Release(1, grant.lease) == Outcome::kOk);
    CheckSound();
  }

  FakeLowerTier below;
};

}  // namespace

TEST(ALeaseGoesOnBelow) {
  Tiers f;
  f.Put(0, 4);
  f.below.Put(f.ns, 0, 10);
  const ReadGrant grant = f.Lease(0, 12);
  CHECK(grant.slots.size() == 10);
  CHECK(f.Leading(grant.slots, SlotState::kCommitted) == 4);
  CHECK(f.Stat("promoting_slots") == 6 && f.Stat("pinned_slots") == 10);
  CHECK(f.Stat("hits") == 10 && f.Stat("storage_hits") == 6 && f.Stat("misses") == 2);
  const auto offered = f.below.TakeOffered();
  CHECK(offered.size() == 6 && f.below.finds() == 1);
  for (uint32_t i = 0; i < 6; ++i) {
    const PromoteChunk& chunk = offered[i].chunk;
    CHECK(offered[i].key() == KeyOf(4 + i) && chunk.from == 1004 + i &&
          offered[i].urgency == Urgency::kLease);
    CHECK(chunk.ref.slot == grant.slots[4 + i].slot && chunk.ref.offset == grant.slots[4 + i].offset);
    CHECK(f.StateOf(chunk.ref) == SlotState::kPromoting);
    CHECK(f.reader->ReadinessOf(chunk.ref.slot, chunk.ref.generation) == Readiness::kPending);
    CHECK(f.reader->Unchanged(chunk.ref.slot, chunk.ref.generation));
    CHECK(!f.reader->Writable(chunk.ref.slot, chunk.ref.generation));
    CHECK(f.reader->ChunkBytes(chunk.ref.slot, chunk.ref.generation, chunk.ref.offset) == 4096);
  }
  for (uint32_t i = 0; i < 6; ++i) {  // they become readable one by one
    CHECK(f.reader->LongestPrefix(f.ns, Range(0, 12).batch()) == 4 + i);
    f.EndOne(offered[i].chunk.ref, End::kReadable);
  }
  CHECK(f.Leading(grant.slots, SlotState::kCommitted) == 10);
  CHECK(f.Stat("promotes") == 6 && f.Stat("stores") == 4 && f.Stat("chunk_bytes") == 10 * 4096);
  f.Release(grant);
  f.CheckNothingHeld();
  CHECK(f.Lease(0, 10).slots.size() == 10 && f.Stat("storage_hits") == 6);
}

TEST(WhatIsHereAmongWhatIsBelowIsPinned) {
  Tiers f;
  f.Put(3, 1);
  f.Put(6, 2);
  f.below.Put(f.ns, 0, 3);
  f.below.Put(f.ns, 4, 6);
  f.below.Drop(f.ns, 6);  // storage has dropped one that is here
  const ReadGrant grant = f.Lease(0, 12);
  CHECK(grant.slots.size() == 10 && f.below.TakeOffered().size() == 7);
  CHECK(f.StateOf(grant.slots[3]) == SlotState::kCommitted &&
        f.StateOf(grant.slots[6]) == SlotState::kCommitted);
  CHECK(f.store->LongestPrefix(f.ns, Range(0, 12).batch()) == 10);
}

TEST(ASecondLeaseJoinsThePromote) {
  Tiers f;
  f.store->OpenSession(2, 2, 200);
  f.below.Put(f.ns, 0, 4);
  const ReadGrant first = f.Lease(0, 4);
  const ReadGrant second = f.Lease(0, 4, 2);
  CHECK(f.below.TakeOffered().size() == 4 && second.slots.size() == 4);
  for (int i = 0; i < 4; ++i) CHECK(first.slots[i].slot == second.slots[i].slot);
  CHECK(f.Stat("storage_hits") == 8 && f.Stat("pinned_slots") == 4);
  // Also when there is no tier below any more.
  f.store->SetLowerTier(nullptr);
  CHECK(f.Lease(0, 5).slots.size() == 4 && f.Lease(10, 2).slots.empty());
}

TEST(AKeyTwiceInABatchIsPromotedOnce) {
  Tiers f;
  f.below.Put(f.ns, 0, 2);
  Keys keys = Range(0, 2);
  keys.Add(KeyOf(0));
  const ReadGrant grant = f.store->Lease(1, f.ns, keys.batch());
  CHECK(grant.slots.size() == 3 && grant.slots[2].slot == grant.slots[0].slot);
  CHECK(f.below.TakeOffered().size() == 2);
  f.CheckSound();
  f.below.Refuse(true);
  f.below.Put(f.ns, 10, 1);
  Keys twice = Range(10, 1);
  twice.Add(KeyOf(10));
  CHECK(f.store->Lease(1, f.ns, twice.batch()).slots.empty());
  f.CheckSound();
}

TEST(ALeaseWaitsForNobodysStore) {
  Tiers f;
  f.below.Put(f.ns, 0, 8);
  CHECK(f.store->Reserve(1, f.ns, Range(3, 1).batch()).lease != 0);
  CHECK(f.Lease(0, 8).slots.size() == 3);
  CHECK(f.store->LongestPrefix(f.ns, Range(0, 8).batch()) == 3);
  const WriteGrant write = f.store->Reserve(1, f.ns, Range(0, 3).batch());
  CHECK(write.lease == 0);
  for (const Grant grant : write.grants) CHECK(grant == Grant::kPending);  // promoting
}

TEST(WhatTheTierRefusesIsNotLeased) {
  Tiers f;
  f.Put(0, 2);
  f.Put(4, 1);
  f.below.Put(f.ns, 2, 5);
  f.below.Refuse(true);
  const ReadGrant grant = f.Lease(0, 7);
  CHECK(grant.slots.size() == 2 && f.Stat("promoting_slots") == 0 && f.Stat("promote_refusals") == 4);
  CHECK(f.Stat("pinned_slots") == 2);
  f.Release(grant);
  f.CheckNothingHeld();
  CHECK(f.Lease(2, 5).slots.empty());
}

TEST(PromotesEvictWhatNobodyNeedsAndNothingOfTheirOwnLease) {
  Tiers f;  // 64 chunks
  f.Put(0, 64);
  f.below.Put(f.ns, 100, 70);
  f.Put(110, 2);  // evicts two; pinned below by the lease itself
  const ReadGrant grant = f.Lease(100, 70);
  CHECK(grant.slots.size() == 64);
  CHECK(f.StateOf(grant.slots[10]) == SlotState::kCommitted && f.Stat("promoting_slots") == 62);
  CHECK(f.Stat("promote_refusals") == 6 && f.Hits(0, 1) == 0);
  f.EndAll(f.below.TakeOffered(), End::kReadable);
  CHECK(f.reader->LongestPrefix(f.ns, Range(100, 70).batch()) == 64);
  f.Release(grant);
  f.CheckNothingHeld();
}

TEST(APromotedPrefixLosesItsEndFirst) {
  for (const char* policy : {"lru", "s3fifo"}) {
    Tiers f({.policy = policy});
    f.below.Put(f.ns, 0, 64);
    const ReadGrant grant = f.Lease(0, 64);
    f.EndAll(f.below.TakeOffered(), End::kReadable);
    f.Release(grant);
    CHECK(f.Put(100, 4) == 4);
    CHECK(f.reader->LongestPrefix(f.ns, Range(0, 64).batch()) == 60);
    CHECK(f.Lease(0, 64).slots.size() == 60 + 4);  // the end comes up again
  }
}

TEST(ALostPromoteNobodyLeasesIsAFreeSlot) {
  Tiers f;
  f.below.Put(f.ns, 0, 3);
  const ReadGrant grant = f.Lease(0, 3);
  f.Release(grant);
  const auto offered = f.below.TakeOffered();
  CHECK(f.Stat("promoting_slots") == 3 && f.Stat("pinned_slots") == 0);
  f.EndOne(offered[1].chunk.ref, End::kLost);
  CHECK(f.Stat("promoting_slots") == 2 && f.Stat("promote_losses") == 1 && f.Stat("quarantined_slots") == 0);
  CHECK(f.StateOf(offered[1].chunk.ref) == SlotState::kFree);
  f.EndOne(offered[1].chunk.ref, End::kReadable);  // ends once
  f.EndOne(offered[1].chunk.ref, End::kGone);
  CHECK(f.Stat("promotes") == 0);
  CHECK(f.Put(1, 1) == 1);  // its key is free again
}

TEST(ALostPromoteStaysAsideWhileLeasedOrBusy) {
  Tiers f;
  f.below.Put(f.ns, 0, 4);
  const ReadGrant grant = f.Lease(0, 4);
  const auto offered = f.below.TakeOffered();
  const auto ref = [&](int i) { return offered[i].chunk.ref; };
  f.EndOne(ref(0), End::kLost);
  f.EndOne(ref(1), End::kLostBusy);
  f.EndOne(ref(2), End::kLostBusy);
  for (int i = 0; i < 3; ++i) {  // readers see it at once
    CHECK(f.reader->ReadinessOf(ref(i).slot, ref(i).generation) == Readiness::kLost);
    CHECK(f.reader->ChunkBytes(ref(i).slot, ref(i).generation, ref(i).offset) == 0);
  }
  CHECK(f.Stat("quarantined_slots") == 3 && f.Put(0, 1) == 1);
  f.EndOne(ref(1), End::kGone);
  CHECK(f.Stat("quarantined_slots") == 3);  // still leased
  f.EndOne({ref(2).slot, ref(2).generation + 1, ref(2).offset}, End::kGone);
  f.Release(grant);
  CHECK(f.Stat("quarantined_slots") == 1 && f.Stat("pinned_slots") == 0);  // 2 is busy
  f.EndOne(ref(2), End::kGone);
  f.EndOne(ref(3), End::kReadable);
  f.CheckNothingHeld();
}

TEST(APromoteOutlivesItsLease) {
  Tiers f({.lease_ms = 1000});
  f.store->OpenSession(2, 2, 200);
  f.below.Put(f.ns, 0, 9);
  f.Release(f.Lease(0, 3));
  f.Lease(3, 3);
  f.store->ExpireLeases(UINT64_MAX);
  f.Lease(6, 3, 2);
  f.store->CloseSession(2, false);
  f.CheckSound();
  CHECK(f.Stat("pinned_slots") == 0 && f.Stat("promoting_slots") == 9 && f.Stat("read_leases") == 0);
  f.EndAll(f.below.TakeOffered(), End::kReadable);
  CHECK(f.Hits(0, 9) == 9);
  CHECK(f.Put(100, 64) == 64);  // ordinary chunks: evicted as any
}

TEST(APromoteOfAClearedNamespaceIsLost) {
  Tiers f;
  f.below.Put(f.ns, 0, 4);
  const ReadGrant grant = f.Lease(0, 2);
  f.Lease(2, 2);
  const auto offered = f.below.TakeOffered();
  f.store->ClearNamespace(f.ns);
  CHECK(f.below.TakeCleared() == std::vector{f.ns});
  f.CheckSound();
  // The same keys, anew.
  CHECK(f.Lease(0, 4).slots.size() == 4);
  const auto again = f.below.TakeOffered();
  CHECK(again.size() == 4);
  f.Release(grant);
  f.EndAll(offered, End::kReadable);
  CHECK(f.Stat("promotes") == 0 && f.Stat("promote_losses") == 4 && f.Stat("quarantined_slots") == 2);
  CHECK(f.reader->LongestPrefix(f.ns, Range(0, 4).batch()) == 0);
  f.EndAll(again, End::kReadable);
  CHECK(f.Hits(0, 4) == 4);
  f.store->CloseSession(1, true);
  f.CheckNothingHeld();
}

TEST(DrainingBeginsNoPromote) {
  Tiers f;
  f.below.Put(f.ns, 0, 4);
  f.Lease(0, 2);
  f.store->SetDraining(true);
  CHECK(f.store->Lease(1, f.ns, Range(2, 2).batch()).outcome == Outcome::kDraining);
  CHECK(f.store->Prefetch(f.ns, Range(2, 2).batch()) == 0);
  f.EndAll(f.below.TakeOffered(), End::kReadable);
  CHECK(f.reader->LongestPrefix(f.ns, Range(0, 2).batch()) == 2);
}

TEST(APrefetchPinsNothing) {
  Tiers f;
  f.Put(0, 2);
  f.below.Put(f.ns, 0, 6);
  CHECK(f.store->Prefetch(f.ns, Range(0, 8).batch()) == 4);
  CHECK(f.store->Prefetch(f.ns, Range(0, 8).batch()) == 0);  // on their way
  f.CheckSound();
  CHECK(f.Stat("pinned_slots") == 0 && f.Stat("promoting_slots") == 4 && f.Stat("read_leases") == 0);
  CHECK(f.Stat("hits") == 0 && f.Stat("storage_hits") == 0);
  const auto offered = f.below.TakeOffered();
  CHECK(offered.size() == 4 && offered[0].urgency == Urgency::kPrefetch && offered[0].key() == KeyOf(2));
  f.EndAll(offered, End::kReadable);
  CHECK(f.Hits(0, 6) == 6);
  CHECK(f.store->Prefetch(99, Range(0, 2).batch()) == 0);
  CHECK(f.store->Prefetch(f.ns, Range(0, 2, 8).batch()) == 0);
  // Into no slot that is in use.
  const WriteGrant all = f.store->Reserve(1, f.ns, Range(100, 64).batch());
  f.below.Put(f.ns, 200, 2);
  CHECK(all.slots.size() == 64 && f.store->Prefetch(f.ns, Range(200, 2).batch()) == 0);
  f.CheckSound();
}

TEST(ASlabWithAPromoteStaysInItsClass) {
  Tiers f;  // 4 slabs of 16 chunks
  const uint32_t large = f.store->OpenNamespace("namespace-large0", 16 * 4096);
  f.below.Put(f.ns, 0, 64);
  f.Lease(0, 64);
  CHECK(f.Put(0, 1, large) == 0);
  f.store->CloseSession(1, true);
  f.store->OpenSession(1, 1, 100);
  CHECK(f.Put(0, 1, large) == 0);  // unpinned, and still promoting
  auto offered = f.below.TakeOffered();
  const auto last = offered.back();
  offered.pop_back();
  f.EndAll(offered, End::kReadable);
  CHECK(f.Put(0, 3, large) == 3 && f.Put(10, 1, large) == 1);  // three slabs may go
  CHECK(f.StateOf(last.chunk.ref) == SlotState::kPromoting);
  f.EndOne(last.chunk.ref, End::kReadable);
  CHECK(f.Has(63));
}

TEST(LongKeysReachTheTierWhole) {
  Tiers f;
  f.below.Put(f.ns, 0, 2, 64);
  const ReadGrant grant = f.store->Lease(1, f.ns, Range(0, 2, 64).batch());
  CHECK(grant.slots.size() == 2);
  const auto offered = f.below.TakeOffered();
  CHECK(offered[0].key() == KeyOf(0, 64) && offered[1].key() == KeyOf(1, 64));
  f.EndAll(offered, End::kReadable);
}

TEST(WaitersAreWokenByTheEndOfAPromote) {
  Tiers f;
  f.below.Put(f.ns, 0, 1);
  const ReadGrant grant = f.Lease(0, 1);
  const uint32_t seen = f.reader->promotes_ended();
  std::atomic<bool> woken{false};
  std::thread waiter([&] {
    while (f.reader->ReadinessOf(grant.slots[0].slot, grant.slots[0].generation) == Readiness::kPending) {
      f.reader->AwaitPromotes(seen, SteadyNs() + 60 * kNsPerS);
    }
    woken = true;
  });
  f.EndAll(f.below.TakeOffered(), End::kLost);
  waiter.join();  // at once, or the test runs into its time limit
  CHECK(woken && f.reader->promotes_ended() == seen + 1);
}

TEST(CommitTellsTheTierWhatBecameReadable) {
  Tiers f;
  const WriteGrant grant = f.store->Reserve(1, f.ns, Range(0, 4).batch());
  const uint8_t keep[] = {0b1011};
  f.store->Commit(1, grant.lease, keep);
  const auto told = f.below.TakeCommitted();
  CHECK(told.size() == 1 && told[0].ns == f.ns && told[0].epoch == 1);
  CHECK((told[0].slots == std::vector{grant.slots[0].slot, grant.slots[1].slot, grant.slots[3].slot}));
  const WriteGrant none = f.store->Reserve(1, f.ns, Range(10, 1).batch());
  const uint8_t nothing[] = {0};
  f.store->Commit(1, none.lease, nothing);
  const WriteGrant late = f.store->Reserve(1, f.ns, Range(20, 1).batch());
  f.store->ClearNamespace(f.ns);
  f.store->Commit(1, late.lease);
  CHECK(f.below.TakeCommitted().empty());
}

TEST(ADemotePinsCommittedChunksOfItsEpoch) {
  Tiers f;
  f.Put(0, 64);
  const std::vector<uint32_t> slots = f.below.TakeCommitted()[0].slots;
  const std::vector<uint32_t> wanted = {slots[0], slots[1], UINT32_MAX, slots[2]};
  CHECK(f.store->PinForDemote(f.ns, 2, wanted).empty() && f.store->PinForDemote(9, 1, wanted).empty());
  const auto chunks = f.store->PinForDemote(f.ns, 1, wanted);
  CHECK(chunks.size() == 3 && f.Stat("pinned_slots") == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(std::string(reinterpret_cast<const char*>(chunks[i].key), chunks[i].key_bytes) == KeyOf(i));
    CHECK(f.StateOf(chunks[i].ref) == SlotState::kCommitted);
  }
  f.CheckSound();
  CHECK(f.Put(100, 64) == 61);  // what is pinned stays
  CHECK(f.Hits(0, 3) == 3);
  f.store->EndDemote(chunks);
  f.store->EndDemote(chunks);  // others than those it holds are ignored
  f.CheckNothingHeld();
}

TEST(ADemoteIsInNobodysWay) {
  Tiers f;
  f.Put(0, 4);
  const auto slots = f.below.TakeCommitted()[0].slots;
  const auto chunks = f.store->PinForDemote(f.ns, 1, slots);
  const auto twice = f.store->PinForDemote(f.ns, 1, slots);
  const ReadGrant grant = f.Lease(0, 4);
  CHECK(f.store->ClearNamespace(f.ns) == 4 && f.reader->LongestPrefix(f.ns, Range(0, 4).batch()) == 0);
  CHECK(f.Put(0, 4) == 4);
  f.Release(grant);
  f.store->ReclaimStale(100);
  CHECK(f.Stat("stale_slots") == 4);  // the bytes are being read
  for (const DemoteChunk& chunk : chunks) CHECK(f.StateOf(chunk.ref) == SlotState::kCommitted);
  f.store->EndDemote(chunks);
  CHECK(f.Stat("stale_slots") == 4);
  f.store->EndDemote(twice);
  CHECK(f.Stat("stale_slots") == 0);
  f.CheckNothingHeld();
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
