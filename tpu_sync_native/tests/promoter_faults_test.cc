// Promotes over a medium that is slow, broken or hung; a namespace cleared and a promoter stopped meanwhile.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "promote_fixture.h"
#include "storage/promoter.h"

namespace tpu_sync_native::testing {
namespace {

using World = PromoteWorld;

TEST(a_hung_read_is_lost_at_its_deadline_and_its_slot_kept_aside) {
  World world({.threads = 2, .deadline_ms = 100});
  world.Store(0, 4, 1);
  world.fake.plan->Add({.ops = kOpRead, .hang = true});
  const ReadGrant grant = world.Lease(0, 4);
  for (const SlotRef& ref : grant.slots) CHECK(world.End(ref) == Readiness::kLost);
  CHECK(world.context->counters.failed_deadline == 4);
  world.Release(grant);
  CHECK(world.host.Stat("quarantined_slots") == 4);  // the read may still write there
  CHECK(world.promoter->queued_chunks() == 4);
  world.fake.plan->Release();
  world.Await([&] { return world.host.Stat("quarantined_slots") == 0; });
  world.CheckNothingLeft();
  CHECK(world.context->counters.promoted_chunks == 0);
  CHECK(world.Lease(0, 4).slots.size() == 4);  // and it can be tried again
}

TEST(what_waits_behind_a_hung_read_is_lost_at_its_deadline_too) {
  World world({.threads = 1, .deadline_ms = 100});
  world.Store(0, 4, 1);
  world.Store(100, 4, 2);
  world.fake.plan->Add({.ops = kOpRead, .hang = true});
  const ReadGrant hung = world.Lease(0, 4);
  CHECK(world.fake.plan->WaitHanging(1));
  const ReadGrant waiting = world.Lease(100, 4);
  for (const SlotRef& ref : waiting.slots) CHECK(world.End(ref) == Readiness::kLost);
  world.Release(waiting);
  world.Release(hung);
  CHECK(world.host.Stat("quarantined_slots") == 4);  // those that never began to be read are free
  world.fake.plan->Release();
  world.Await([&] { return world.host.Stat("quarantined_slots") == 0; });
  world.CheckNothingLeft();
}

TEST(a_job_that_goes_on_is_not_overdue_however_long_it_takes) {
  World world({.threads = 1, .deadline_ms = 1500});
  for (uint64_t i = 0; i < 6; ++i) world.Store(100 + i, 1, 1 + i);  // a read each
  world.fake.plan->Add({.ops = kOpRead, .times = -1, .latency_ms = 400});
  const uint64_t start_ns = SteadyNs();
  const ReadGrant grant = world.Lease(100, 6);
  CHECK(grant.slots.size() == 6);
  for (const SlotRef& ref : grant.slots) CHECK(world.End(ref) == Readiness::kReady);
  CHECK(SteadyNs() - start_ns > 1500 * kNsPerMs);
  world.Release(grant);
  world.CheckNothingLeft();
}

TEST(a_hung_read_does_not_stop_the_others) {
  World world({.threads = 2, .deadline_ms = 20'000});
  for (uint64_t number = 1; number <= 9; ++number) world.Store(number * 100, 4, number);
  world.fake.plan->Add({.ops = kOpRead, .pattern = "*seg-0000000001.kvs", .hang = true});
  const ReadGrant hung = world.Lease(100, 4);
  CHECK(world.fake.plan->WaitHanging(1));
  for (uint64_t number = 2; number <= 9; ++number) {
    const ReadGrant grant = world.Lease(number * 100, 4);
    for (const SlotRef& ref : grant.slots) CHECK(world.End(ref) == Readiness::kReady);
    world.Release(grant);
  }
  CHECK(world.Now(hung.slots[0]) == Readiness::kPending);
  world.fake.plan->Release();
  CHECK(world.End(hung.slots[3]) == Readiness::kReady);
  world.Release(hung);
  world.CheckNothingLeft();
}

TEST(a_failing_medium_is_a_miss_and_opens_the_breaker) {
  World world({.threads = 1, .failures_to_open = 4});
  world.Store(0, 40, 1);
  world.fake.plan->Add({.ops = kOpRead, .times = -1, .error = EIO});
  for (int i = 0; i < 4; ++i) {
    const ReadGrant grant = world.Lease(0, 1);
    CHECK(grant.slots.size() == 1 && world.End(grant.slots[0]) == Readiness::kLost);
    world.Release(grant);
  }
  CHECK(world.context->counters.failed_io == 4);
  CHECK(world.context->loads->down());
  CHECK(world.Lease(0, 10).slots.empty());
  world.CheckNothingLeft();
  world.fake.plan->Clear();
  world.context->loads->Report({});
  const ReadGrant grant = world.Lease(0, 40);
  CHECK(grant.slots.size() == 40 && world.End(grant.slots[39]) == Readiness::kReady);
  world.Release(grant);
  world.CheckNothingLeft();
}

TEST(what_waits_when_the_breaker_opens_is_lost_at_once) {
  World world({.threads = 1, .stuck_ms = 100, .deadline_ms = 60'000});
  world.Store(0, 4, 1);
  world.Store(100, 4, 2);
  world.fake.plan->Add({.ops = kOpRead, .hang = true});
  const ReadGrant hung = world.Lease(0, 4);
  CHECK(world.fake.plan->WaitHanging(1));
  const ReadGrant waiting = world.Lease(100, 4);
  CHECK(waiting.slots.size() == 4);
  for (const SlotRef& ref : waiting.slots) CHECK(world.End(ref) == Readiness::kLost);
  CHECK(world.context->counters.failed_down == 4);
  world.fake.plan->Release();
  CHECK(world.End(hung.slots[0]) == Readiness::kReady);  // it came back in time
  world.Release(hung);
  world.Release(waiting);
  world.CheckNothingLeft();
}

TEST(a_cleared_namespace_gets_nothing_late) {
  World world({.threads = 1});
  world.Store(0, 8, 1);
  Gate gate;
  world.OnRead([&](const ReadCall&) {
    gate.Pass();
    return IoError{};
  });
  const ReadGrant grant = world.Lease(0, 8);
  gate.AwaitWaiting(1);
  world.host.store->ClearNamespace(world.space->ns);
  gate.Open();
  for (const SlotRef& ref : grant.slots) CHECK(world.End(ref) == Readiness::kLost);
  world.Release(grant);
  CHECK(world.Here(0, 8) == 0);
  world.host.store->ReclaimStale(1000);
  world.CheckNothingLeft();
}

TEST(stop_waits_for_no_hung_read) {
  World world({.threads = 2, .deadline_ms = 60'000});
  world.Store(0, 4, 1);
  world.Store(100, 400, 2);
  world.fake.plan->Add({.ops = kOpRead, .times = 2, .hang = true});
  const ReadGrant hung = world.Lease(0, 4);
  const ReadGrant waiting = world.Lease(100, 400);
  CHECK(world.fake.plan->WaitHanging(2));
  CHECK(!world.promoter->Stop(50));
  for (const SlotRef& ref : hung.slots) CHECK(world.Now(ref) == Readiness::kLost);
  for (const SlotRef& ref : waiting.slots) CHECK(world.Now(ref) == Readiness::kLost);
  world.Release(hung);
  world.Release(waiting);
  CHECK(world.Lease(0, 4).slots.empty());
  world.host.CheckSound();
  // The promoter and the store go; the reads come back to an arena that is still there, and to nobody.
  world.host.store->SetLowerTier(nullptr);
  world.below.reset();
  world.promoter = std::make_unique<Promoter>(world.context, *world.host.store, world.host.arena);
  const std::weak_ptr<Arena> arena = world.host.arena;
  world.fake.plan->Release();
  CHECK(world.context->loads->Stop(20'000));
  CHECK(!arena.expired());
}

TEST(stop_ends_what_runs_in_order_when_it_returns_in_time) {
  World world({.threads = 1});
  world.Store(0, 4, 1);
  Gate gate;
  world.OnRead([&](const ReadCall&) {
    gate.Pass();
    return IoError{};
  });
  const ReadGrant grant = world.Lease(0, 4);
  gate.AwaitWaiting(1);
  std::atomic<bool> stopped{false};
  std::thread stopper([&] { stopped = world.promoter->Stop(20'000); });
  for (const SlotRef& ref : grant.slots) CHECK(world.End(ref) == Readiness::kLost);
  gate.Open();
  stopper.join();
  CHECK(stopped);
  world.Release(grant);
  world.CheckNothingLeft();
}

// Engines lease, prefetch, release and clear; the medium fails, lies and dawdles; deadlines pass.
TEST(stress) {
  World world({.io_bytes = 64 << 10, .threads = 3, .deadline_ms = 1000},
              {.slabs = 6, .slab_bytes = 32 * kChunk});
  constexpr uint64_t kSegments = 12, kRecords = 40;
  for (uint64_t number = 1; number <= kSegments; ++number) {
    MadeSegment made = world.Store(number * 1000, kRecords, number);
    // Bad from the beginning: what is leased of these is lost.
    world.fake.memory->Flip(ReadFixture::PathOf(*world.segments.back()),
                            made.entries[30].offset + kStorageUnit, 0xff);
  }
  world.fake.plan->Add({.ops = kOpRead, .pattern = "*seg-0000000003.kvs", .times = 3, .latency_ms = 1500});
  world.fake.plan->Add(
      {.ops = kOpRead, .pattern = "*seg-0000000004.kvs", .skip = 3, .times = 40, .error = EIO});
  world.fake.plan->Add({.ops = kOpOpenRead, .pattern = "*seg-0000000005.kvs", .times = 5, .error = ENOENT});
  std::atomic<uint64_t> ready{0}, lost{0};
  const auto engine = [&](SessionId session, uint64_t seed) {
    Random random(seed);
    for (int round = 0; round < 150; ++round) {
      const uint64_t first = (1 + random() % kSegments) * 1000 + random() % 10;
      const auto count = static_cast<uint32_t>(1 + random() % 30);
      if (random() % 4 == 0) {
        world.host.store->Prefetch(world.space->ns, Range(first, count).batch());
        continue;
      }
      if (random() % 40 == 0) world.host.store->Evict(world.space->ns, 64 * kChunk);
      if (random() % 60 == 0) world.host.store->ClearNamespace(world.space->ns);
      const ReadGrant grant = world.host.store->Lease(session, world.space->ns, Range(first, count).batch());
      if (grant.lease == 0) continue;
      for (size_t i = 0; i < grant.slots.size(); ++i) {
        const SlotRef& ref = grant.slots[i];
        world.Await([&] { return world.Now(ref) != Readiness::kPending; });
        const std::string expected = PayloadOf(first + i, kChunk);
        // Pinned: if it is ready, its bytes stay.
        if (world.Now(ref) == Readiness::kReady) {
          CHECK(std::memcmp(world.host.arena->data() + ref.offset, expected.data(), kChunk) == 0);
          ++ready;
        } else {
          ++lost;
        }
      }
      CHECK(world.host.store->Release(session, grant.lease) == Outcome::kOk);
    }
  };
  std::vector<std::thread> engines;
  for (uint64_t i = 0; i < 3; ++i) {
    world.host.store->OpenSession(10 + i, 10 + i, 100);
    engines.emplace_back(engine, 10 + i, i);
  }
  for (std::thread& thread : engines) thread.join();
  std::fprintf(stderr, "%lu chunks ready, %lu lost\n", ready.load(), lost.load());
  CHECK(ready > 500 && lost > 10);
  world.Await([&] { return world.promoter->queued_chunks() == 0; });
  CHECK(world.promoter->Stop(20'000));
  world.host.store->ReclaimStale(100'000);
  world.CheckNothingLeft();
  const StorageCounters& counters = world.context->counters;
  const uint64_t ended = counters.promoted_chunks + counters.failed_missing + counters.failed_corrupt +
                         counters.failed_io + counters.failed_deadline + counters.failed_down;
  CHECK(world.host.Stat("promotes") + world.host.Stat("promote_losses") == ended);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
