// Promotes: from leases of a real store, over a medium that is slow, broken, hung or lies, into its arena.
#include "storage/promoter.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/futex.h"
#include "read_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kChunk = 4096;
constexpr uint64_t kPatienceNs = 20 * kNsPerS;
constexpr uint64_t kRecordBytes = kStorageUnit + kChunk;

// What the store sees below it: the catalog, and a promoter.
class Below : public LowerTier {
 public:
  Below(const ReadFixture& world, Promoter& promoter) : world_(world), promoter_(promoter) {}
  uint32_t Find(uint32_t, const KeyBatch& keys, uint32_t first, Location* where) const override {
    const SegmentIdentity identity = MakeIdentity(kChunk);
    for (uint32_t i = first; i < keys.count; ++i) {
      where[i - first] = world_.context->catalog->Find(MakeCatalogKey(identity.namespace_id, keys.at(i)));
      if (where[i - first] == 0) return i - first;
    }
    return keys.count - first;
  }
  bool Promote(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency) override {
    return promoter_.Offer(ns, chunks, urgency);
  }
  void Committed(uint32_t, uint32_t, std::span<const uint32_t>) override {}

 private:
  const ReadFixture& world_;
  Promoter& promoter_;
};

// Calls of a hook that wait until the test lets them go.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --waiting_;
  }
  void AwaitWaiting(int count) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return waiting_ >= count; }));
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

struct World : ReadFixture {
  explicit World(const ReadOptions& with = {}, const Shape& shape = {.slabs = 8, .slab_bytes = 64 * kChunk})
      : ReadFixture(with), host(shape) {
    const SegmentIdentity identity = MakeIdentity(kChunk);
    space->ns = host.store->OpenNamespace(
        {reinterpret_cast<const char*>(identity.namespace_id), sizeof(identity.namespace_id)}, kChunk);
    std::copy_n(identity.namespace_id, 16, space->id);
    space->chunk_bytes = kChunk;
    space->epoch = identity.epoch;
    space->state = StorageNamespace::State::kReady;
    context->namespaces[space->ns] = space;
    promoter = std::make_unique<Promoter>(context, *host.store, host.arena);
    below = std::make_unique<Below>(*this, *promoter);
    host.store->SetLowerTier(below.get());
    promoter->Start();
  }
  ~World() {
    fake.plan->Release();
    host.store->SetLowerTier(nullptr);
    promoter->Stop(10'000);
  }

  // Chunks first, first + 1, ... in one segment.
  MadeSegment Store(uint64_t first, uint32_t count, uint64_t number) {
    MadeSegment made = NewSegment(number);
    for (uint32_t i = 0; i < count; ++i) made.Add(KeyOf(first + i), PayloadOf(first + i, kChunk));
    segments.push_back(Publish(made));
    return made;
  }
  ReadGrant Lease(uint64_t first, uint32_t count) {
    return host.store->Lease(1, space->ns, Range(first, count).batch());
  }
  Readiness Now(const SlotRef& ref) const {
    const Readiness readiness = host.reader->ReadinessOf(ref.slot, ref.generation);
    // The reader has a mapping of its own. ThreadSanitizer knows the order of words by their address, so it
    // is shown the same order once more, by the store's mutex.
    host.store->Stats();
    return readiness;
  }
  // Leading chunks that are here, as an engine sees them.
  uint32_t Here(uint64_t first, uint32_t count) const {
    return host.reader->LongestPrefix(space->ns, Range(first, count).batch());
  }
  // Until it holds; every end of promotes wakes this.
  void Await(const std::function<bool()>& holds) const {
    const uint64_t deadline_ns = SteadyNs() + kPatienceNs;
    for (;;) {
      const uint32_t ended = host.reader->promotes_ended();
      if (holds()) return;
      CHECK(SteadyNs() < deadline_ns);
      host.reader->AwaitPromotes(ended, deadline_ns);
    }
  }
  Readiness End(const SlotRef& ref) const {
    Await([&] { return Now(ref) != Readiness::kPending; });
    return Now(ref);
  }
  void CheckBytes(const SlotRef& ref, uint64_t number) const {
    const std::string expected = PayloadOf(number, kChunk);
    CHECK(std::memcmp(host.arena->data() + ref.offset, expected.data(), kChunk) == 0);
    CHECK(Now(ref) == Readiness::kReady);
  }
  void Release(const ReadGrant& grant) { CHECK(host.store->Release(1, grant.lease) == Outcome::kOk); }
  void CheckNothingLeft() const {
    Await([&] { return promoter->queued_chunks() == 0; });
    host.CheckNothingHeld();
    CHECK(host.Stat("promoting_slots") == 0);
  }

  StoreFixture host;
  std::shared_ptr<StorageNamespace> space = std::make_shared<StorageNamespace>();
  std::vector<std::shared_ptr<Segment>> segments;
  std::unique_ptr<Promoter> promoter;
  std::unique_ptr<Below> below;
};

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
