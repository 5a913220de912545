// Checksums of payloads in memory: made after a commit, held against the bytes by the next daemon.

#include "base/crc32c.h"
#include "restart_fixture.h"
#include "store/arena_check.h"
#include "store/checker.h"

namespace tpu_sync_native::testing {
namespace {

Shape ShapeOf(ChecksumPolicy checksum, uint64_t slabs = 4, uint64_t slab_bytes = 16 * 4096) {
  return {.slabs = slabs, .slab_bytes = slab_bytes, .checksum = checksum};
}

SlotRef RefOf(const IndexReader& reader, uint32_t ns, uint64_t number) {
  SlotRef ref{};
  CHECK(reader.LeadingHits(ns, Range(number, 1).batch(), &ref) == 1);
  return ref;
}

// What the thread does, until there is nothing more. Returns how many payloads were read.
uint32_t Work(Store& store, Arena& arena) {
  uint32_t read = 0;
  std::vector<ChunkCheck> checks;
  while (store.TakeChecks(&checks)) {
    for (ChunkCheck& check : checks) {
      check.found = ChecksumWord(Crc32c(0, arena.data() + check.offset, check.bytes));
    }
    store.EndChecks(checks);
    read += static_cast<uint32_t>(checks.size());
  }
  return read;
}

void Fill(StoreFixture& f, uint64_t first, uint32_t count) {
  const WriteGrant grant = f.store->Reserve(1, f.ns, Range(first, count).batch());
  CHECK(grant.slots.size() == count);
  for (uint32_t i = 0; i < count; ++i)
    std::memset(f.arena->data() + grant.slots[i].offset, static_cast<int>(first + i + 1), 4096);
  CHECK(f.store->Commit(1, grant.lease) == Outcome::kOk);
}

void Flip(Arena& arena, const SlotRef& ref) { arena.data()[ref.offset + 4000] ^= std::byte{1}; }

}  // namespace

TEST(EachCommittedChunkGetsOne) {
  const Shape shape = ShapeOf(ChecksumPolicy::kAlways);
  StoreFixture f(shape);
  Fill(f, 0, 40);
  CHECK(f.Stat("checksums") == 0);
  CHECK(Work(*f.store, *f.arena) == 40 && f.Stat("checksums") == 40);
  CHECK(Work(*f.store, *f.arena) == 0);
  for (uint64_t i = 0; i < 40; ++i) {
    const SlotRef ref = RefOf(*f.reader, f.ns, i);
    CHECK(f.reader->view().checksum(ref.slot) == ChecksumWord(Crc32c(0, f.arena->data() + ref.offset, 4096)));
  }
  f.CheckSound();
}

TEST(ASlotThatIsReservedAnewHasNone) {
  StoreFixture f(ShapeOf(ChecksumPolicy::kAlways));
  Fill(f, 0, 64);
  std::vector<ChunkCheck> late;
  CHECK(f.store->TakeChecks(&late) && late.size() == 16);
  Work(*f.store, *f.arena);
  const WriteGrant grant = f.store->Reserve(1, f.ns, Range(100, 64).batch());  // in the place of all of them
  CHECK(grant.slots.size() == 64);
  for (const SlotRef& ref : grant.slots) CHECK(f.reader->view().checksum(ref.slot) == 0);
  for (ChunkCheck& check : late) check.found = 77;
  f.store->EndChecks(late);  // of chunks that are gone
  CHECK(f.store->Commit(1, grant.lease) == Outcome::kOk);
  f.store->EndChecks(late);
  for (const SlotRef& ref : grant.slots) CHECK(f.reader->view().checksum(ref.slot) == 0);
  CHECK(Work(*f.store, *f.arena) == 64);
}

TEST(WhatFindsNoPlaceInTheQueueIsSweptUp) {
  constexpr uint32_t kMany = 20'000;  // more than it has places
  const Shape shape = ShapeOf(ChecksumPolicy::kAlways, 2, kMany / 2 * 4096);
  StoreFixture f(shape);
  CHECK(f.Put(0, kMany) == kMany);
  Work(*f.store, *f.arena);
  CHECK(f.Stat("checksums") == kMany);
  CHECK(Work(*f.store, *f.arena) == 0);
}

TEST(SampledIsASixteenth) {
  StoreFixture f(ShapeOf(ChecksumPolicy::kSampled, 2, 4096 * 4096));
  CHECK(f.Put(0, 8192) == 8192);
  const uint32_t read = Work(*f.store, *f.arena);
  CHECK(read > 8192 / 16 / 2 && read < 8192 / 16 * 2 && f.Stat("checksums") == read);
}

TEST(TheNextDaemonServesWhatHoldsAndDropsWhatDoesNot) {
  const Shape shape = ShapeOf(ChecksumPolicy::kAlways);
  StoreFixture f(shape);
  Fill(f, 0, 20);
  Work(*f.store, *f.arena);
  Fill(f, 30, 4);  // the daemon is killed before these were read
  Flip(*f.arena, RefOf(*f.reader, f.ns, 3));
  Flip(*f.arena, RefOf(*f.reader, f.ns, 7));
  NextLife next(f, shape);
  next.CheckSound();
  CHECK(next.Stat("restart_kept") == 24 && next.Stat("unverified_slots") == 20);
  for (uint64_t i = 0; i < 20; ++i) CHECK(!next.Has(i, f.ns));  // before it is verified, nothing is served
  for (uint64_t i = 30; i < 34; ++i) CHECK(next.Has(i, f.ns));
  CHECK(Work(*next.store, *next.arena) == 24);
  next.CheckSound();
  for (uint64_t i = 0; i < 20; ++i) CHECK(next.Has(i, f.ns) == (i != 3 && i != 7));
  CHECK(next.Stat("checksum_passes") == 18 && next.Stat("checksum_failures") == 2);
  CHECK(next.Stat("checksums") == 4 && next.Stat("unverified_slots") == 0);
  const std::vector<DamagedChunk> damaged = next.store->TakeDamaged();
  CHECK(damaged.size() == 2 && damaged[0].key == KeyOf(3) && damaged[1].key == KeyOf(7));
  CHECK(damaged[0].ns_id == "namespace-000000" && next.store->TakeDamaged().empty());
}

TEST(TheBeginningOfAPrefixIsVerifiedFirst) {
  const Shape shape = ShapeOf(ChecksumPolicy::kAlways);
  StoreFixture f(shape);
  Fill(f, 0, 40);
  Work(*f.store, *f.arena);
  NextLife next(f, shape);
  std::vector<ChunkCheck> checks;
  CHECK(next.store->TakeChecks(&checks));
  for (ChunkCheck& check : checks) check.found = check.expected;
  next.store->EndChecks(checks);
  CHECK(next.store->LongestPrefix(f.ns, Range(0, 40).batch()) == checks.size() && checks.size() == 16);
  next.CheckSound();
}

TEST(AChunkThatIsStoredAnewMeanwhileStays) {
  const Shape shape = ShapeOf(ChecksumPolicy::kAlways);
  StoreFixture f(shape);
  Fill(f, 0, 10);
  Work(*f.store, *f.arena);
  NextLife next(f, shape);
  next.store->OpenSession(2, 2, 100);
  const WriteGrant grant = next.store->Reserve(2, f.ns, Range(4, 1).batch());
  CHECK(grant.slots.size() == 1 && next.store->Commit(2, grant.lease) == Outcome::kOk);
  Work(*next.store, *next.arena);
  next.CheckSound();
  CHECK(RefOf(*next.reader, f.ns, 4).slot == grant.slots[0].slot);
  CHECK(next.store->LongestPrefix(f.ns, Range(0, 10).batch()) == 10);
  CHECK(next.Stat("committed_slots") == 10);
}

TEST(WhatIsNotVerifiedYetCanBeEvictedAndCleared) {
  const Shape shape = ShapeOf(ChecksumPolicy::kAlways);
  StoreFixture f(shape);
  Fill(f, 0, 64);
  Work(*f.store, *f.arena);
  NextLife next(f, shape);
  next.store->OpenSession(2, 2, 100);
  CHECK(next.store->Reserve(2, f.ns, Range(100, 20).batch()).slots.size() == 20);
  CHECK(next.Stat("unverified_slots") == 44);
  next.CheckSound();
  next.store->ClearNamespace(f.ns);
  next.CheckSound();
  Work(*next.store, *next.arena);
  next.store->ReclaimStale(1000);
  next.CheckSound();
  CHECK(next.Stat("unverified_slots") == 0 && next.Stat("committed_slots") == 0);
  CHECK(next.Stat("checksum_failures") == 0);
}

TEST(ALifeWithoutThemForgetsThem) {
  StoreFixture f(ShapeOf(ChecksumPolicy::kAlways));
  Fill(f, 0, 10);
  Work(*f.store, *f.arena);
  NextLife off(f, ShapeOf(ChecksumPolicy::kOff));
  CHECK(off.Stat("unverified_slots") == 0 && off.store->LongestPrefix(f.ns, Range(0, 10).batch()) == 10);
  for (uint32_t slot = 0; slot < 64; ++slot) CHECK(off.reader->view().checksum(slot) == 0);
  std::vector<ChunkCheck> checks;
  CHECK(!off.store->TakeChecks(&checks));
  // And one with them makes those that are missing.
  NextLife on(off.data_file, off.meta_file, ShapeOf(ChecksumPolicy::kAlways));
  CHECK(on.store->LongestPrefix(f.ns, Range(0, 10).batch()) == 10);
  CHECK(Work(*on.store, *on.arena) == 10 && on.Stat("checksums") == 10);
}

TEST(AWholeArenaIsCheckedWithoutADaemon) {
  StoreFixture f(ShapeOf(ChecksumPolicy::kAlways));
  Fill(f, 0, 20);
  Work(*f.store, *f.arena);
  Fill(f, 30, 4);
  const SlotRef bad = RefOf(*f.reader, f.ns, 5);
  const ArenaReport sound = CheckArena(f.data_file.fd(), f.meta_file.fd());
  CHECK(sound.chunks == 24 && sound.checked == 20 && sound.unchecked == 4 && sound.damaged.empty());
  CHECK(sound.bytes == 20 * 4096 && sound.changed == 0);
  Flip(*f.arena, bad);
  const ArenaReport found = CheckArena(f.data_file.fd(), f.meta_file.fd());
  CHECK(found.checked == 20 && found.damaged.size() == 1);
  CHECK(found.damaged[0].key == KeyOf(5) && found.damaged[0].offset == bad.offset);
  ResizeFile(f.data_file.fd(), bad.offset, "data");  // the rest is gone: damaged, and no fault
  CHECK(!CheckArena(f.data_file.fd(), f.meta_file.fd()).damaged.empty());
  ResizeFile(f.meta_file.fd(), 4096, "meta");
  CHECK_THROWS(CheckArena(f.data_file.fd(), f.meta_file.fd()), "meta_bytes");
}

TEST(TheThreadWorksAsChunksComeAndEndsWhenAsked) {
  StoreFixture f(ShapeOf(ChecksumPolicy::kAlways));
  Checker checker(*f.store, f.arena);
  checker.Start();
  checker.Start();
  for (uint64_t round = 0; round < 8; ++round) {
    Fill(f, round * 8, 8);
    f.store->ExpireLeases(0);  // the tick
    while (f.Stat("checksums") < (round + 1) * 8) std::this_thread::yield();
  }
  checker.Stop();
  checker.Stop();
  f.CheckSound();
  StoreFixture off;
  Checker idle(*off.store, off.arena);
  idle.Start();
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
