// Promotes: from leases of a real store, over a medium that answers, or lies, into its arena.
#include "storage/promoter.h"

#include <cstdint>
#include <string>
#include <vector>

#include "promote_fixture.h"

namespace tpu_sync_native::testing {
namespace {

using World = PromoteWorld;

TEST(a_lease_of_what_lies_below_becomes_readable) {
  World world;
  world.Store(0, 50, 1);
  const ReadGrant grant = world.Lease(0, 60);
  CHECK(grant.slots.size() == 50);
  for (uint32_t i = 0; i < 50; ++i) {
    CHECK(world.End(grant.slots[i]) == Readiness::kReady);
    world.CheckBytes(grant.slots[i], i);
  }
  CHECK(world.context->counters.promoted_chunks == 50);
  CHECK(world.context->counters.promoted_bytes == 50 * kChunk);
  CHECK(world.context->catalog->LastUse(MakeCatalogKey(world.space->id, KeyOf(49))) > 0);
  world.Release(grant);
  CHECK(world.Here(0, 60) == 50);
  world.CheckNothingLeft();
}

TEST(a_long_run_is_read_in_growing_pieces) {
  World world({.io_bytes = 2 << 20, .threads = 1});
  world.Store(0, 512, 1);
  const ReadGrant grant = world.Lease(0, 512);
  CHECK(grant.slots.size() == 512);
  CHECK(world.End(grant.slots[511]) == Readiness::kReady);
  const std::vector<ReadCall> reads = world.TakeReads();
  CHECK(reads.size() == 4 && reads[0].bytes == 512 << 10 && reads[1].bytes == 1 << 20);
  CHECK(reads[2].bytes == 2 << 20 && reads[3].bytes == 512 << 10);
  world.Release(grant);
  world.CheckNothingLeft();
}

TEST(the_first_chunks_are_readable_while_later_ones_are_read) {
  World world({.threads = 2});
  const MadeSegment made = world.Store(0, 200, 1);
  Gate gate;
  world.OnRead([&](const ReadCall& read) {
    if (read.offset > kStorageUnit) gate.Pass();
    return IoError{};
  });
  const ReadGrant grant = world.Lease(0, 200);
  CHECK(world.End(grant.slots[0]) == Readiness::kReady);
  world.CheckBytes(grant.slots[0], 0);
  CHECK(world.Now(grant.slots[199]) == Readiness::kPending);
  gate.Open();
  CHECK(world.End(grant.slots[199]) == Readiness::kReady);
  world.Release(grant);
  world.CheckNothingLeft();
}

TEST(what_does_not_verify_never_becomes_readable) {
  World world;
  const MadeSegment made = world.Store(0, 64, 1);
  const std::string path = ReadFixture::PathOf(*world.segments[0]);
  for (const size_t bad : {3, 17, 40}) {
    CHECK(world.fake.memory->Flip(path, made.entries[bad].offset + kStorageUnit + 7 * bad, 4));
  }
  CHECK(world.fake.memory->Flip(path, made.entries[50].offset + 20, 1));
  CHECK(world.fake.memory->Truncate(path, made.entries[60].offset));
  const ReadGrant grant = world.Lease(0, 64);
  for (uint32_t i = 0; i < 64; ++i) {
    const bool bad = i == 3 || i == 17 || i == 40 || i == 50 || i >= 60;
    CHECK(world.End(grant.slots[i]) == (bad ? Readiness::kLost : Readiness::kReady));
    if (!bad) world.CheckBytes(grant.slots[i], i);
  }
  CHECK(world.context->counters.failed_corrupt == 4 && world.context->counters.failed_missing == 4);
  world.Release(grant);
  CHECK(world.Here(0, 64) == 3);
  CHECK(world.Lease(3, 1).slots.empty());  // nobody is promised it again
  world.CheckNothingLeft();
}

TEST(segments_that_are_gone_retired_or_of_another_epoch_are_misses) {
  World world;
  for (uint64_t number = 1; number <= 3; ++number) world.Store(number * 100, 10, number);
  CHECK(world.context->files->Remove(ReadFixture::PathOf(*world.segments[0])).ok());
  world.context->segments->Retire(world.segments[1]->id);
  for (const uint64_t first : {100, 200}) {
    const ReadGrant grant = world.Lease(first, 10);
    CHECK(grant.slots.size() == 10);
    for (const SlotRef& ref : grant.slots) CHECK(world.End(ref) == Readiness::kLost);
    world.Release(grant);
  }
  const auto lost = [&] {
    const ReadGrant grant = world.Lease(300, 10);
    for (const SlotRef& ref : grant.slots) CHECK(world.End(ref) == Readiness::kLost);
    world.Release(grant);
    return grant.slots.size();
  };
  ++world.space->epoch;
  CHECK(lost() == 10);
  --world.space->epoch;
  world.space->clearing = true;
  CHECK(lost() == 10);
  world.space->clearing = false;
  world.space->state = StorageNamespace::State::kRefused;
  CHECK(lost() == 10);
  CHECK(world.context->counters.failed_missing == 50);
  world.CheckNothingLeft();
}

// Which segments the reads went to, in order.
std::vector<int> Order(World& world) {
  std::vector<int> order;
  for (const ReadCall& read : world.TakeReads())
    order.push_back(std::stoi(read.path.substr(read.path.size() - 14, 10)));
  return order;
}

TEST(leases_go_before_prefetches_and_jobs_take_turns) {
  World world({.io_bytes = 2 * kRecordBytes, .threads = 1});
  for (uint64_t number = 1; number <= 5; ++number) world.Store(number * 100, 6, number);
  Gate gate;
  world.OnRead([&](const ReadCall& read) {
    if (read.path.ends_with("seg-0000000001.kvs")) gate.Pass();
    return IoError{};
  });
  const ReadGrant first = world.Lease(100, 1);
  gate.AwaitWaiting(1);
  const auto prefetch = [&](uint64_t number) {
    CHECK(world.host.store->Prefetch(world.space->ns, Range(number * 100, 6).batch()) == 6);
  };
  prefetch(2);
  prefetch(3);
  const ReadGrant fourth = world.Lease(400, 6);
  const ReadGrant fifth = world.Lease(500, 6);
  gate.Open();
  world.Await([&] { return world.promoter->queued_chunks() == 0; });
  const std::vector<int> expected{1, 4, 5, 4, 5, 4, 5, 2, 3, 2, 3, 2, 3};
  CHECK(Order(world) == expected);
  CHECK(world.Here(200, 6) == 6);
  for (const ReadGrant* grant : {&first, &fourth, &fifth}) world.Release(*grant);
  world.CheckNothingLeft();
}

TEST(a_lease_of_what_a_prefetch_has_queued_goes_before_prefetches) {
  World world({.io_bytes = 2 * kRecordBytes, .threads = 1});
  for (uint64_t number = 1; number <= 4; ++number) world.Store(number * 100, 6, number);
  Gate gate;
  world.OnRead([&](const ReadCall& read) {
    if (read.path.ends_with("seg-0000000001.kvs")) gate.Pass();
    return IoError{};
  });
  const ReadGrant first = world.Lease(100, 1);
  gate.AwaitWaiting(1);
  for (uint64_t number = 2; number <= 4; ++number) {
    CHECK(world.host.store->Prefetch(world.space->ns, Range(number * 100, 6).batch()) == 6);
  }
  const ReadGrant third = world.Lease(302, 2);  // not its first chunks
  const ReadGrant again = world.Lease(300, 6);  // nothing more to hurry
  CHECK(third.slots.size() == 2 && again.slots.size() == 6);
  gate.Open();
  world.Await([&] { return world.promoter->queued_chunks() == 0; });
  const std::vector<int> expected{1, 3, 3, 3, 2, 4, 2, 4, 2, 4};
  CHECK(Order(world) == expected);
  for (const ReadGrant* grant : {&first, &third, &again}) world.Release(*grant);
  world.CheckNothingLeft();
  // What has been read, or ended, is in no way of the next one.
  world.host.store->Evict(world.space->ns, UINT64_MAX);
  CHECK(world.host.store->Prefetch(world.space->ns, Range(300, 6).batch()) == 6);
  world.Await([&] { return world.promoter->queued_chunks() == 0; });
  CHECK(world.Here(300, 6) == 6);
}

TEST(a_full_queue_takes_nothing) {
  World world({.threads = 1, .queue_bytes = 10 * kChunk});
  world.Store(0, 20, 1);
  Gate gate;
  world.OnRead([&](const ReadCall&) {
    gate.Pass();
    return IoError{};
  });
  const ReadGrant grant = world.Lease(0, 8);
  CHECK(grant.slots.size() == 8);
  CHECK(world.Lease(8, 8).slots.empty());
  const ReadGrant small = world.Lease(8, 2);
  CHECK(small.slots.size() == 2);
  gate.Open();
  CHECK(world.End(small.slots[1]) == Readiness::kReady);
  world.Release(grant);
  world.Release(small);
  world.CheckNothingLeft();
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
