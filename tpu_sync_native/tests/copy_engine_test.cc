#include "tpu_sync_native/copy_engine.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "copy_backend_kit.h"
#include "copy_fakes.h"

namespace tpu_sync_native::testing {
namespace {

constexpr double kLongS = 60;

// One region of pages, an arena of as many slots as chunks fit, and an engine between them.
struct World {
  explicit World(int threads = 1, uint64_t page = 1024, uint32_t per_chunk = 4, uint64_t num_blocks = 32)
      : page_bytes(page), blocks_per_chunk(per_chunk), device(page * num_blocks), arena(page * num_blocks) {
    std::mt19937_64 random(11);
    device = RandomBytes(device.size(), &random);
    arena = RandomBytes(arena.size(), &random);
    engine = std::make_unique<CopyEngine>(CopyEngineOptions{.threads = threads,
                                                            .arena = arena.data(),
                                                            .arena_bytes = arena.size(),
                                                            .guard = guard,
                                                            .backend = backend});
    layout = engine->AddLayout(
        {{{reinterpret_cast<uint64_t>(device.data()), page, page}}, num_blocks, per_chunk, 0});
  }

  // Blocks 0.. of the device <-> chunks 0.., each in the slot of its number.
  void Submit(uint64_t job, CopyDirection direction, uint32_t chunks) {
    std::vector<int64_t> layouts = {layout};
    std::vector<int64_t> sizes = {static_cast<int64_t>(chunks * blocks_per_chunk)};
    std::vector<int64_t> blocks(sizes[0]);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::vector<uint32_t> slots(chunks);
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<uint32_t> generations(chunks, 1);
    std::vector<uint64_t> offsets(chunks);
    for (uint32_t i = 0; i < chunks; ++i) offsets[i] = i * page_bytes * blocks_per_chunk;
    engine->Submit({job, direction, layouts, sizes, blocks, blocks, slots, generations, offsets});
  }

  CopyCompletion Finish(uint64_t job) {
    CHECK(engine->Wait(std::vector<uint64_t>{job}, kLongS));
    const std::vector<CopyCompletion> done = engine->Poll();
    CHECK(done.size() == 1);
    CHECK(done[0].job == job);
    return done[0];
  }

  uint64_t page_bytes;
  uint32_t blocks_per_chunk;
  std::vector<uint8_t> device;
  std::vector<uint8_t> arena;
  std::shared_ptr<SwitchedGuard> guard = std::make_shared<SwitchedGuard>();
  std::shared_ptr<GatedBackend> backend = std::make_shared<GatedBackend>();
  std::unique_ptr<CopyEngine> engine;
  int layout = 0;
};

TEST(StoreThenLoadGivesTheBytesBack) {
  World world;
  const std::vector<uint8_t> original = world.device;
  world.Submit(1, CopyDirection::kStore, 8);
  const CopyCompletion stored = world.Finish(1);
  CHECK(stored.ok && stored.chunks_valid == 8 && stored.bytes == original.size());
  CHECK(world.arena == original);
  std::ranges::fill(world.device, 0);
  world.Submit(2, CopyDirection::kLoad, 8);
  CHECK(world.Finish(2).ok);
  CHECK(world.device == original);
}

TEST(AContiguousJobIsOneExtentAPiece) {
  World world;
  world.Submit(1, CopyDirection::kStore, 8);
  world.Finish(1);
  CHECK(world.engine->counters().extents == 1);
}

TEST(ALargeJobIsSharedByThreads) {
  World world(/*threads=*/2, /*page=*/64 * 1024, /*per_chunk=*/8, /*num_blocks=*/256);
  world.backend->Shut();
  world.Submit(1, CopyDirection::kStore, 32);
  world.backend->AwaitBatches(2);  // two threads stand at the gate at the same time
  world.backend->Open();
  CHECK(world.Finish(1).ok);
  CHECK(world.arena == world.device);
  CHECK(world.backend->batches().size() > 2);
}

TEST(ALoadGoesBeforeTheRestOfAStore) {
  World world(/*threads=*/1, /*page=*/64 * 1024, /*per_chunk=*/8, /*num_blocks=*/256);
  world.backend->Shut();
  world.Submit(1, CopyDirection::kStore, 32);
  world.Submit(2, CopyDirection::kStore, 1);
  world.backend->AwaitBatches(1);
  world.Submit(3, CopyDirection::kLoad, 1);
  world.backend->Open();
  CHECK(world.engine->Wait(std::vector<uint64_t>{1, 2, 3}, kLongS));
  const auto batches = world.backend->batches();
  CHECK(batches[0] == CopyDirection::kStore);
  CHECK(batches[1] == CopyDirection::kLoad);
  CHECK(std::count(batches.begin() + 2, batches.end(), CopyDirection::kLoad) <= 1);  // its second piece
  const auto done = world.engine->Poll();
  CHECK(done.size() == 3);
  CHECK(done[0].job == 3 && done[1].job == 1 && done[2].job == 2);
}

TEST(ASlotLostBeforeTheCopyIsNotTouched) {
  World world;
  world.guard->Take(3);
  const std::vector<uint8_t> before = world.arena;
  world.Submit(1, CopyDirection::kStore, 8);
  const CopyCompletion done = world.Finish(1);
  const uint64_t chunk = world.page_bytes * world.blocks_per_chunk;
  CHECK(!done.ok && done.chunks_valid == 3 && done.bytes == 7 * chunk);
  CHECK(std::equal(before.begin() + 3 * chunk, before.begin() + 4 * chunk, world.arena.begin() + 3 * chunk));
  CHECK(std::equal(world.device.begin() + 4 * chunk, world.device.end(), world.arena.begin() + 4 * chunk));
  CHECK(world.engine->counters().failed_jobs == 1);
}

TEST(ASlotLostDuringTheCopyFailsTheLoad) {
  World world;
  world.backend->Shut();
  world.Submit(1, CopyDirection::kLoad, 8);
  world.backend->AwaitBatches(1);
  world.guard->Take(5);
  world.backend->Open();
  const CopyCompletion done = world.Finish(1);
  CHECK(!done.ok && done.chunks_valid == 5);
}

TEST(AFailingDeviceFailsTheJob) {
  World world;
  world.backend->FailFromNowOn();
  world.Submit(1, CopyDirection::kLoad, 8);
  const CopyCompletion done = world.Finish(1);
  CHECK(!done.ok && done.chunks_valid == 0 && done.bytes == 0);
}

TEST(AnEmptyJobIsFinishedAtOnce) {
  World world;
  world.Submit(1, CopyDirection::kLoad, 0);
  const CopyCompletion done = world.Finish(1);
  CHECK(done.ok && done.bytes == 0 && done.chunks_valid == 0);
}

TEST(WaitKeepsItsDeadline) {
  World world;
  world.backend->Shut();
  world.Submit(1, CopyDirection::kStore, 1);
  CHECK(!world.engine->Wait(std::vector<uint64_t>{1}, 0.01));
  CHECK(world.engine->Wait(std::vector<uint64_t>{77}, 0));  // not in flight
  CHECK(world.engine->Poll().empty());
  CHECK(world.engine->pending() == 1);
  world.backend->Open();
  world.Finish(1);
  CHECK(world.engine->pending() == 0);
}

TEST(CloseFinishesWhatWasSubmitted) {
  World world(/*threads=*/2);
  world.backend->Shut();
  for (uint64_t job = 1; job <= 20; ++job) world.Submit(job, CopyDirection::kStore, 8);
  std::thread closer([&] { world.engine->Close(); });
  world.backend->AwaitBatches(1);
  world.backend->Open();
  closer.join();
  CHECK(world.engine->Poll().size() == 20);
  CHECK_THROWS(world.Submit(21, CopyDirection::kStore, 1), "closed");
  CHECK_THROWS(world.engine->Copy({}), "closed");
  CHECK(world.engine->counters().store_jobs == 20);
  world.engine->Close();
}

TEST(AForkedChildIsRefused) {
  World world(/*threads=*/2);
  world.Submit(1, CopyDirection::kStore, 8);
  world.Finish(1);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(!world.engine->usable_here());
    CHECK_THROWS(world.Submit(2, CopyDirection::kStore, 1), "forked");
    CHECK_THROWS(world.engine->Poll(), "forked");
    CHECK_THROWS(world.engine->Close(), "forked");
    world.engine.reset();  // no join of threads that are not here
    _exit(42);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

TEST(ManyThreadsSubmitPollAndWait) {
  World world(/*threads=*/3, /*page=*/512, /*per_chunk=*/4, /*num_blocks=*/64);
  constexpr uint64_t kJobs = 300;
  constexpr uint64_t kSubmitters = 3;
  std::atomic<uint64_t> polled{0};
  std::atomic<bool> ended{false};
  std::thread poller([&] {
    while (!ended.load()) {
      polled += world.engine->Poll().size();
      world.engine->counters();
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> submitters;
  for (uint64_t t = 0; t < kSubmitters; ++t) {
    submitters.emplace_back([&, t] {
      for (uint64_t i = 0; i < kJobs; ++i) {
        const uint64_t job = t * kJobs + i;
        world.Submit(job, CopyDirection::kStore, static_cast<uint32_t>(i % 3));
        if (i % 7 == 0) CHECK(world.engine->Wait(std::vector<uint64_t>{job}, kLongS));
      }
    });
  }
  for (std::thread& submitter : submitters) submitter.join();
  world.engine->Close();
  ended = true;
  poller.join();
  polled += world.engine->Poll().size();
  CHECK(polled == kJobs * kSubmitters);
}

TEST(CopyMovesRows) {
  World world(/*threads=*/2, /*page=*/64 * 1024, /*per_chunk=*/8, /*num_blocks=*/64);
  const auto source = reinterpret_cast<uint64_t>(world.device.data());
  const auto target = reinterpret_cast<uint64_t>(world.arena.data());
  const uint64_t half = world.device.size() / 2;
  world.engine->Copy(
      std::vector<uint64_t>{source, target + half, half, source, target, 0, source + half, target, half});
  CHECK(std::equal(world.device.begin(), world.device.begin() + half, world.arena.begin() + half));
  CHECK(std::equal(world.device.begin() + half, world.device.end(), world.arena.begin()));
  CHECK(world.engine->Poll().empty());
  CHECK_THROWS(world.engine->Copy(std::vector<uint64_t>{1, 2}), "rows of 3");
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
