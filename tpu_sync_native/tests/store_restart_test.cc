// A store that takes over what another one left: what is kept, what is set aside, for how long.

#include <fcntl.h>
#include <sys/mman.h>

#include <chrono>

#include "fake_lower_tier.h"
#include "restart_fixture.h"

namespace tpu_sync_native::testing {
namespace {

SlotRecord& RecordOf(MetaView& view, uint32_t slot) { return const_cast<SlotRecord&>(view.slot(slot)); }

uint32_t SlotOf(const StoreFixture& f, uint64_t number) {
  SlotRef ref{};
  CHECK(f.reader->LeadingHits(f.ns, Range(number, 1).batch(), &ref) == 1);
  return ref.slot;
}

uint64_t NowMs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

void Tear(MetaView& view, uint32_t slot) { RecordOf(view, slot).seq.fetch_or(1); }

}  // namespace

TEST(CommittedChunksAreServedAgain) {
  StoreFixture f;
  CHECK(f.Put(0, 20) == 20);
  const uint32_t large = f.store->OpenNamespace("namespace-large0", 3 * 4096);
  CHECK(f.Put(100, 5, large) == 5);
  CHECK(f.Put(200, 3, f.ns, 1, 64) == 3);
  const uint32_t before = f.reader->view().slot(SlotOf(f, 7)).generation.load();

  NextLife next(f);
  next.CheckSound();
  CHECK(next.store->LongestPrefix(f.ns, Range(0, 20).batch()) == 20);
  CHECK(next.store->LongestPrefix(large, Range(100, 5).batch()) == 5);
  CHECK(next.store->LongestPrefix(f.ns, Range(200, 3, 64).batch()) == 3);
  CHECK(next.Stat("restart_kept") == 28 && next.Stat("committed_slots") == 28 && next.Stat("restarts") == 1);
  CHECK(next.Stat("restart_unfinished") + next.Stat("restart_cleared") + next.Stat("restart_damaged") == 0);
  CHECK(next.store->OpenNamespace("namespace-000000", 4096) == f.ns);
  CHECK(next.store->OpenNamespace("namespace-large0", 3 * 4096) == large);
  CHECK_THROWS(next.store->OpenNamespace("namespace-large0", 4096), "chunk_bytes");
  const SlotRecord& kept = next.reader->view().slot(SlotOf(f, 7));
  CHECK(kept.generation.load() == before);  // who reads it still may go on
  CHECK(next.reader->view().header().boot_id == 8 && next.store->last_session() == 1);
}

// Pages that were committed and never written look like holes, on a tmpfs as in a copy of it.
TEST(LongKeysAreKeptAmongShortOnes) {
  const Shape shape{.slabs = 2, .slab_bytes = 1024 * 4096};
  StoreFixture f(shape);
  CHECK(f.Put(0, 10, f.ns, 1, 64) == 10);
  CHECK(f.Put(0, 900) == 900);  // their tails would fill pages
  CHECK(f.Put(2000, 10, f.ns, 1, 48) == 10);
  CHECK(f.Put(3000, 500) == 500);
  CHECK(f.Put(5000, 10, f.ns, 1, 64) == 10);  // far behind the beginning of the second slab
  NextLife next(f, shape);
  next.CheckSound();
  CHECK(next.Stat("restart_kept") == 1430 && next.Stat("restart_damaged") == 0);
  CHECK(next.store->LongestPrefix(f.ns, Range(0, 10, 64).batch()) == 10);
  CHECK(next.store->LongestPrefix(f.ns, Range(2000, 10, 48).batch()) == 10);
  CHECK(next.store->LongestPrefix(f.ns, Range(5000, 10, 64).batch()) == 10);
  next.store->OpenSession(2, 2, 100);
  CHECK(next.store->Reserve(2, f.ns, Range(9000, 600, 64).batch()).slots.size() == 600);
  NextLife third(f, shape, [&](MetaView& view) {  // a tail that is lost is no key
    CHECK(madvise(const_cast<KeyTail*>(&view.key_tail(0)), 4096, MADV_REMOVE) == 0);
  });
  CHECK(third.Stat("restart_kept") == 1420 && third.Stat("restart_damaged") == 10);
}

TEST(SlotsThatAReadWasToFillAreSetAsideForAWhile) {
  StoreFixture f;
  FakeLowerTier lower;
  f.store->SetLowerTier(&lower);
  lower.Put(f.ns, 10, 6);
  f.Put(0, 4);
  CHECK(f.store->Lease(1, f.ns, Range(10, 6).batch()).slots.size() == 6);
  std::vector<SlotRef> refs;
  for (const FakeLowerTier::Offered& offered : lower.TakeOffered()) refs.push_back(offered.chunk.ref);
  CHECK(refs.size() == 6);
  f.store->EndPromotes(std::span(refs).first(1), Store::PromoteEnd::kReadable);
  f.store->EndPromotes(std::span(refs).subspan(1, 1), Store::PromoteEnd::kLostBusy);  // overdue
  NextLife next(f);
  next.CheckSound();
  CHECK(next.Stat("restart_late") == 5 && next.Stat("late_slots") == 5);
  CHECK(next.Stat("restart_unfinished") == 0 && next.Stat("restart_kept") == 5);
  CHECK(next.Has(10, f.ns) && !next.Has(11, f.ns) && !next.Has(12, f.ns));
  for (const SlotRef& ref : std::span(refs).subspan(1)) {
    CHECK(next.reader->view().slot(ref.slot).generation.load() > ref.generation);
  }
  next.store->OpenSession(50, 9, 900);
  const WriteGrant fresh = next.store->Reserve(50, f.ns, Range(1000, 64).batch());
  CHECK(fresh.slots.size() == 64 - 5);  // the chunks that are kept went, these did not
  for (const SlotRef& mine : fresh.slots) {
    for (const SlotRef& theirs : std::span(refs).subspan(1)) CHECK(mine.offset != theirs.offset);
  }
  next.store->ExpireLeases(NowMs() + StoreOptions{}.late_read_ms - 60'000);
  CHECK(next.Stat("late_slots") == 5);
  next.store->ExpireLeases(NowMs() + StoreOptions{}.late_read_ms + 1);
  CHECK(next.Stat("late_slots") == 0 && next.Stat("restart_late") == 5);
  next.CheckSound();
}

TEST(TheWaitForLateReadsBeginsAnewWithEachLife) {
  StoreFixture f;
  FakeLowerTier lower;
  f.store->SetLowerTier(&lower);
  lower.Put(f.ns, 10, 1);
  CHECK(f.store->Prefetch(f.ns, Range(10, 1).batch()) == 1);
  NextLife next(f);
  NextLife third(next.data_file, next.meta_file);
  CHECK(third.Stat("restart_late") == 1 && third.Stat("quarantined_slots") == 1);
  third.CheckSound();
}

TEST(NumbersGoOnWhereTheyStopped) {
  StoreFixture f;
  const LeaseId last = f.store->Reserve(1, f.ns, Range(0, 1).batch()).lease;
  f.store->OpenSession(41, 1, 100);
  NextLife next(f);
  CHECK(next.store->last_session() == 41);
  next.store->OpenSession(42, 9, 100);
  CHECK(next.store->Reserve(42, f.ns, Range(5, 1).batch()).lease > last);
}

// A clear is three stores to the metadata, and its daemon may be killed between any two of them.
TEST(AClearThatWasCutShortIsFinished) {
  StoreFixture f;
  f.Put(0, 10);
  f.store->SetEpochBelow(f.ns, 6);
  for (const bool storage_is_told : {false, true}) {
    NextLife next(f, {}, [&](MetaView& view) {
      auto& record = const_cast<NamespaceRecord&>(view.ns(f.ns));
      record.clearing_to = 2;
      if (storage_is_told) record.epoch_below = kUnconfirmedClear | 6;
    });
    next.CheckSound();
    CHECK(!next.Has(0, f.ns) && next.Stat("restart_cleared") == 10);
    CHECK(next.store->EpochBelow(f.ns) == (kUnconfirmedClear | 6));
    CHECK(next.reader->view().ns(f.ns).epoch == 2);
  }
  f.store->ClearNamespace(f.ns);
  CHECK(f.reader->view().ns(f.ns).clearing_to == 2);  // and nothing is left to be done
  f.Put(0, 3);
  f.store->SetEpochBelow(f.ns, 7);
  NextLife next(f);
  CHECK(next.Has(0, f.ns) && next.store->EpochBelow(f.ns) == 7);
}

TEST(ClearedChunksStayCleared) {
  StoreFixture f;
  f.Put(0, 10);
  f.store->ClearNamespace(f.ns);
  f.Put(5, 2);
  NextLife next(f);
  next.CheckSound();
  for (uint64_t i = 0; i < 10; ++i) CHECK(next.Has(i, f.ns) == (i == 5 || i == 6));
  CHECK(next.Stat("restart_cleared") == 10 && next.Stat("restart_kept") == 2);
}

TEST(WhatALivingProcessMayWriteIsSetAsideUntilItIsGone) {
  StoreFixture f;
  f.store->OpenSession(2, 1, 200, {20, 5, true});  // a worker of the same engine
  f.store->OpenSession(3, 3, 300);                 // another engine, which holds nothing
  f.Put(0, 4);
  const WriteGrant grant = f.store->Reserve(1, f.ns, Range(10, 6).batch());
  NextLife next(f);
  next.CheckSound();
  CHECK(next.Stat("quarantined_slots") == 6 && next.Stat("restart_quarantined") == 6);
  CHECK(!next.Has(10, f.ns) && next.Has(3, f.ns));
  for (const SlotRef& ref : grant.slots) CHECK(!next.reader->Writable(ref.slot, ref.generation));

  std::map<SessionId, RestoredSession> restored;
  for (const RestoredSession& session : next.store->RestoredSessions()) restored[session.session] = session;
  CHECK(restored.size() == 2 && restored.count(1) == 1 && restored.count(2) == 1);
  CHECK(restored[2].pid == 200 && restored[2].mark.start == 20 && restored[2].mark.space == 5);
  CHECK(restored[2].boot_id == 7 && restored[2].group == 1);

  next.store->OpenSession(50, 9, 900);
  const WriteGrant fresh = next.store->Reserve(50, f.ns, Range(1000, 64).batch());
  for (const SlotRef& mine : fresh.slots) {
    for (const SlotRef& theirs : grant.slots) CHECK(mine.offset != theirs.offset);
  }
  next.store->CloseSession(50, true);
  next.store->CloseSession(1, true);
  CHECK(next.Stat("quarantined_slots") == 6);
  next.store->CloseSession(2, true);
  CHECK(next.Stat("quarantined_slots") == 0 && next.store->RestoredSessions().empty());
  next.CheckSound();
}

TEST(AProcessThatSaysWhatItHoldsEndsTheRest) {
  StoreFixture f;
  const LeaseId known = f.store->Reserve(1, f.ns, Range(0, 3).batch()).lease;
  f.store->Reserve(1, f.ns, Range(10, 4).batch());  // its answer reached nobody
  NextLife next(f);
  CHECK(next.Stat("quarantined_slots") == 7);
  const std::vector<LeaseId> held{known};
  next.store->CloseSession(1, /*drained=*/false, &held);
  CHECK(next.Stat("quarantined_slots") == 3);
  next.CheckSound();
  // The late word, by the session that the same engine has now.
  next.store->OpenSession(2, 1, 100);
  CHECK(next.store->Commit(2, known) == Outcome::kUnknownLease);
  CHECK(next.Stat("quarantined_slots") == 0);
  CHECK(!next.Has(0, f.ns));
  next.CheckSound();
}

TEST(AnotherEnginesLateWordCountsForNothing) {
  StoreFixture f;
  const LeaseId lease = f.store->Reserve(1, f.ns, Range(0, 3).batch()).lease;
  NextLife next(f);
  next.store->OpenSession(2, 99, 100);
  CHECK(next.store->Abort(2, lease) == Outcome::kUnknownLease);
  CHECK(next.Stat("quarantined_slots") == 3);
}

TEST(SessionsWithoutTheArenaHoldNothingBack) {
  StoreFixture f;
  f.store->OpenSession(2, 2, 0, {0, 0, /*maps=*/false});
  CHECK(f.store->Reserve(2, f.ns, Range(0, 3).batch()).slots.size() == 3);
  NextLife next(f);
  next.CheckSound();
  CHECK(next.Stat("quarantined_slots") == 0 && next.Stat("restart_unfinished") == 3);
}

TEST(QuarantinesLastOverASecondRestart) {
  StoreFixture f;
  f.store->OpenSession(2, 1, 200);
  const WriteGrant grant = f.store->Reserve(1, f.ns, Range(0, 3).batch());
  f.store->CloseSession(1, true);  // its worker may still write
  CHECK(f.Stat("quarantined_slots") == 3);
  NextLife next(f);
  CHECK(next.Stat("quarantined_slots") == 3);
  CHECK(next.store->RestoredSessions().size() == 1 && next.store->RestoredSessions()[0].session == 2);
  next.store->CloseSession(2, true);
  CHECK(next.Stat("quarantined_slots") == 0);
  CHECK(grant.slots.size() == 3);
  next.CheckSound();
}

TEST(TornRecordsAreRepairedAndNotServed) {
  StoreFixture f;
  f.Put(0, 10);
  const WriteGrant grant = f.store->Reserve(1, f.ns, Range(20, 1).batch());
  const uint32_t committed = SlotOf(f, 4);
  const uint32_t free = 40;  // of the same slab, or never used: either may be torn
  NextLife next(f, {}, [&](MetaView& view) {
    Tear(view, committed);
    Tear(view, grant.slots[0].slot);
    if (view.slot(free).generation.load() != 0) Tear(view, free);
  });
  next.CheckSound();
  for (uint64_t i = 0; i < 10; ++i) CHECK(next.Has(i, f.ns) == (i != 4));
  CHECK((next.reader->view().slot(committed).seq.load() & 1) == 0);
  CHECK(next.reader->view().slot(committed).generation.load() ==
        f.reader->view().slot(committed).generation.load() + 1);
  CHECK(next.Stat("quarantined_slots") == 1);  // torn, but its lease may have been told
}

TEST(DamagedRecordsAreNotServed) {
  StoreFixture f;
  f.Put(0, 12);
  uint32_t slot[12];
  for (uint64_t i = 0; i < 12; ++i) slot[i] = SlotOf(f, i);
  NextLife next(f, {}, [&](MetaView& view) {
    const auto place = [&](uint32_t i) { return view.slot(slot[i]).place.load(); };
    RecordOf(view, slot[0]).place.store(place(0) + 1);                        // another slot's bytes
    RecordOf(view, slot[1]).owner.store(OwnerWord(77, 1));                    // no such namespace
    RecordOf(view, slot[2]).place.store(place(2) & ~(uint64_t{0xff} << 40));  // no key
    RecordOf(view, slot[3]).place.store(place(3) | uint64_t{0xff} << 32);     // no such state
    RecordOf(view, slot[4]).place.store(place(4) | uint64_t{63} << 40);       // a tail that has no memory
    for (int k = 0; k < 5; ++k) {                                             // one key twice
      RecordOf(view, slot[6]).key[k].store(view.slot(slot[5]).key[k].load());
    }
  });
  next.CheckSound();
  for (uint64_t i = 0; i < 12; ++i) CHECK(next.Has(i, f.ns) == (i > 6));
  CHECK(next.Stat("restart_damaged") == 7 && next.Stat("restart_kept") == 5);
}

TEST(AChunkWhoseMemoryIsGoneIsNotServed) {
  StoreFixture f;
  f.Put(0, 4);
  SlotRef ref{};
  CHECK(f.reader->LeadingHits(f.ns, Range(2, 1).batch(), &ref) == 1);
  CHECK(fallocate(f.data_file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(ref.offset), 4096) == 0);
  NextLife next(f);
  for (uint64_t i = 0; i < 4; ++i) CHECK(next.Has(i, f.ns) == (i != 2));
  next.CheckSound();
}

TEST(OtherGeometryIsNamed) {
  StoreFixture f;
  f.Put(0, 4);
  const Shape shape;
  const uint64_t bytes = f.arena->bytes();
  const StoreOptions options = OptionsOf(shape, 8, true);
  const auto why = [&](uint64_t data_bytes, uint64_t slab_bytes, const StoreOptions& asked) {
    return Store::WhyNotKept(f.data_file.fd(), data_bytes, slab_bytes, f.meta_file.fd(), asked);
  };
  const auto names = [](const std::string& reason, const char* part) {
    if (reason.find(part) == std::string::npos) std::fprintf(stderr, "said: %s\n", reason.c_str());
    return reason.find(part) != std::string::npos;
  };
  CHECK(why(bytes, shape.slab_bytes, options) == "");
  CHECK(names(why(bytes * 2, shape.slab_bytes, options), "the arena's size is 262144, wanted 524288"));
  CHECK(names(why(bytes, shape.slab_bytes * 2, options), "slab_bytes is 65536, wanted 131072"));
  StoreOptions other = options;
  other.slots_max = 128;
  CHECK(names(why(bytes, shape.slab_bytes, other), "slots_max is 64, wanted 128"));
  other = options;
  other.host.bytes[3] = 1;
  CHECK(names(why(bytes, shape.slab_bytes, other), "host_boot"));
  auto& header = const_cast<MetaHeader&>(f.reader->view().header());
  const Mapping writable(f.meta_file.fd(), f.meta.bytes(), Mapping::Access::kReadWrite, "meta");
  auto* change = reinterpret_cast<MetaHeader*>(writable.data());
  CHECK(header.version == kMetaVersion);
  change->version = 2;
  CHECK(names(why(bytes, shape.slab_bytes, options), "version is 2, wanted 4"));
  change->version = kMetaVersion;
  change->magic ^= 1;
  CHECK(names(why(bytes, shape.slab_bytes, options), "magic"));
  change->magic ^= 1;
  change->buckets_offset += 4096;
  CHECK(names(why(bytes, shape.slab_bytes, options), "buckets_offset"));
  CHECK_THROWS(Store(f.arena, f.meta_file.fd(), options), "buckets_offset");
  change->buckets_offset -= 4096;
  auto* ns = reinterpret_cast<NamespaceRecord*>(writable.data() + change->namespaces_offset);
  ns->chunk_bytes = shape.slab_bytes + 1;
  CHECK(names(why(bytes, shape.slab_bytes, options), "namespace 0: chunk_bytes is 65537"));
  ns->chunk_bytes = 4096;
  ns->clearing_to = UINT32_MAX;  // finished, that clear would leave no epoch for the next one
  CHECK(names(why(bytes, shape.slab_bytes, options), "namespace 0: clearing_to is 4294967295, beyond"));
  ns->clearing_to = 0;
  ResizeFile(f.meta_file.fd(), 5000, "meta");
  CHECK(names(why(bytes, shape.slab_bytes, options), "the metadata's size is 5000"));
  ResizeFile(f.meta_file.fd(), 100, "meta");
  CHECK(names(why(bytes, shape.slab_bytes, options), "the metadata's size is 100"));
  ResizeFile(f.data_file.fd(), 4096, "data");
  CHECK(names(why(bytes, shape.slab_bytes, options), "the arena's size is 4096"));
}

TEST(AFullTableOfLeasesRefusesAndRecovers) {
  StoreFixture f({.slabs = 3, .slab_bytes = 3000 * 4096});  // more slots than rows
  std::vector<LeaseId> leases;
  for (uint64_t i = 0; i < kLeaseRowsMax; ++i)
    leases.push_back(f.store->Reserve(1, f.ns, Range(i, 1).batch()).lease);
  CHECK(leases.back() != 0);
  const WriteGrant none = f.store->Reserve(1, f.ns, Range(20'000, 1).batch());
  CHECK(none.lease == 0 && none.grants[0] == Grant::kNoSpace);
  for (const LeaseId lease : leases) CHECK(f.store->Abort(1, lease) == Outcome::kOk);
  CHECK(f.Put(0, 10) == 10);
  f.CheckSound();
}

TEST(TheEndOfAPrefixStillGoesFirst) {
  StoreFixture f;
  f.Put(0, 64);
  NextLife next(f);
  next.store->OpenSession(2, 2, 100);
  CHECK(next.store->Reserve(2, f.ns, Range(1000, 16).batch()).slots.size() == 16);
  CHECK(next.store->LongestPrefix(f.ns, Range(0, 64).batch()) == 48);
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
