// The copy engine over the CUDA backend: jobs that name the stream they have to wait for.
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <vector>

#include "check.h"
#include "cuda/cuda_backend.h"
#include "cuda_library.h"
#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kPage = 1024;
constexpr uint64_t kBlocks = 8;
constexpr double kLongS = 60;

// Blocks of one page, each its own chunk; a step writes all of them when a test lets it.
struct World {
  explicit World(uint64_t deadline_ms = 60'000) {
    library->fake()->Reset();
    engine = std::make_unique<CopyEngine>(CopyEngineOptions{.threads = 2,
                                                            .arena = arena.data(),
                                                            .arena_bytes = arena.size(),
                                                            .backend = backend,
                                                            .ready_deadline_ms = deadline_ms});
    layout = engine->AddLayout({{{device, kPage, kPage}}, kBlocks, 1, 0});
  }
  ~World() {
    engine.reset();
    library->AwaitStream(stream);
    library->DestroyStream(stream);
    library->Free(device);
  }

  void LaunchStep(uint8_t value) {
    library->fake()->Launch(stream, [this, value] {
      may_end.get_future().wait();
      std::memset(library->fake()->Memory(device), value, kPage * kBlocks);
    });
  }
  void FinishStep() { may_end.set_value(); }
  void Submit(uint64_t job, CopyDirection direction, std::optional<uint64_t> on) {
    const std::vector<int64_t> layouts = {layout};
    const std::vector<int64_t> sizes = {kBlocks};
    std::vector<int64_t> blocks(kBlocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    const std::vector<uint32_t> slots(kBlocks, 0);
    std::vector<uint64_t> offsets(kBlocks);
    for (uint64_t i = 0; i < kBlocks; ++i) offsets[i] = i * kPage;
    engine->Submit({.job = job,
                    .direction = direction,
                    .layouts = layouts,
                    .group_sizes = sizes,
                    .block_ids = blocks,
                    .block_positions = blocks,
                    .slots = slots,
                    .generations = slots,
                    .offsets = offsets,
                    .stream = on});
  }
  uint64_t Stream() const { return reinterpret_cast<uint64_t>(stream); }
  bool Finish(uint64_t job) {
    CHECK(engine->Wait(std::vector<uint64_t>{job}, kLongS));
    const auto done = engine->Poll();
    CHECK(done.size() == 1 && done[0].job == job);
    return done[0].ok;
  }

  std::shared_ptr<CudaLibrary> library = std::make_shared<CudaLibrary>(FAKE_CUDA);
  cuda::DevicePtr device = library->Allocate(kPage * kBlocks);
  cuda::Stream stream = library->MakeStream();
  std::promise<void> may_end;
  std::vector<uint8_t> arena = std::vector<uint8_t>(kPage * kBlocks, 1);
  std::shared_ptr<CopyBackend> backend = MakeCudaBackend({.library = FAKE_CUDA});
  std::unique_ptr<CopyEngine> engine;
  int layout = 0;
};

TEST(AStoreReadsWhatTheStepWroteAndOthersPassIt) {
  World world;
  world.LaunchStep(9);
  world.Submit(1, CopyDirection::kStore, world.Stream());
  world.Submit(2, CopyDirection::kStore, std::nullopt);
  CHECK(world.Finish(2));
  CHECK(world.arena[0] == 0);  // it did not wait: too early
  CHECK(world.engine->counters().fence_waits == 1);
  world.FinishStep();
  CHECK(world.Finish(1));
  CHECK(world.arena == std::vector<uint8_t>(kPage * kBlocks, 9));
}

// Its blocks may have belonged to a request whose last step still runs.
TEST(ALoadIsNotOverwrittenByTheStepBeforeIt) {
  World world;
  world.LaunchStep(9);
  world.Submit(1, CopyDirection::kLoad, world.Stream());
  world.FinishStep();
  CHECK(world.Finish(1));
  CHECK(world.library->Read(world.device, kPage) == std::vector<uint8_t>(kPage, 1));
}

TEST(AStreamThatCannotBeAskedFailsTheJob) {
  World world;
  int no_stream = 0;
  world.Submit(1, CopyDirection::kStore, reinterpret_cast<uint64_t>(&no_stream));
  CHECK(!world.Finish(1));
  CHECK(world.engine->counters().refused_holds == 1);
  CHECK(world.arena == std::vector<uint8_t>(kPage * kBlocks, 1));
}

TEST(AStepThatNeverEndsFailsTheJobInTime) {
  World world(/*deadline_ms=*/50);
  world.LaunchStep(9);
  world.Submit(1, CopyDirection::kStore, world.Stream());
  CHECK(!world.Finish(1));
  CHECK(world.arena == std::vector<uint8_t>(kPage * kBlocks, 1));
  world.FinishStep();
}

TEST(ACloseDoesNotWaitForTheStep) {
  World world;
  world.LaunchStep(9);
  world.Submit(1, CopyDirection::kStore, world.Stream());
  world.engine->Close();
  const auto done = world.engine->Poll();
  CHECK(done.size() == 1 && !done[0].ok);
  world.engine.reset();
  world.FinishStep();  // the driver's call comes back to nobody
}

TEST(PlainMemoryHasNoStreams) {
  World world;
  CopyEngine host(CopyEngineOptions{.threads = 1});
  CopyRequest request;
  request.stream = 0;
  CHECK_THROWS(host.Submit(request), "a stream is given, but backend host has none");
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
