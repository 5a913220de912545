// An engine whose device does not answer ends all the same: what it gives up has failed, is named until it
// has landed, and is written into memory that is still there.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/futex.h"
#include "check.h"
#include "copy/fake_device.h"
#include "copy_engine_kit.h"
#include "copy_fakes.h"
#include "fake_kit.h"

namespace tpu_sync_native::testing {
namespace {

using Jobs = std::vector<uint64_t>;
constexpr uint64_t kSoonMs = 20;

// The device takes copies and does none.
struct HungWorld {
  explicit HungWorld(const FakeDeviceOptions& options = {}, int threads = 1,
                     uint64_t landing_deadline_ms = kSoonMs)
      : device(options), world(&device, threads, nullptr, 60'000, landing_deadline_ms) {
    device.device().Pause(FakeQueue::kCopies);
  }
  void AwaitCopies(uint64_t copies) { CHECK(device.device().AwaitQueued(FakeQueue::kCopies, copies)); }
  std::vector<CopyCompletion> Reported() {
    std::vector<CopyCompletion> reported = world.engine->Poll();
    std::ranges::sort(reported, {}, &CopyCompletion::job);
    return reported;
  }
  // Of a store of which nothing may have been written.
  bool Untouched(const std::vector<uint8_t>& before) const { return world.arena == before; }

  FakeKit device;
  EngineWorld world;
};

template <typename Done>
void Await(Done done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    std::this_thread::yield();
  }
}

TEST(AHungDeviceIsGivenUp) {
  HungWorld hung({.replaces_buffers = false});
  hung.world.Store(1, 0, 0, 2);
  hung.AwaitCopies(1);
  hung.world.Store(2, 8, 2, 2);  // behind it: never begun
  hung.world.Load(3, 16, 4, 2);
  const uint64_t begin_ns = SteadyNs();
  CHECK(!hung.world.engine->Close(0.02));
  CHECK(SteadyNs() - begin_ns < 60 * kNsPerS);

  const std::vector<CopyCompletion> reported = hung.Reported();
  CHECK(reported.size() == 3 && hung.world.engine->pending() == 0);
  for (const CopyCompletion& one : reported) CHECK(!one.ok && one.chunks_valid == 0 && one.bytes == 0);
  CHECK(hung.world.engine->Unlanded() == Jobs{1});
  CHECK(CopyEngine::UnlandedStores() == 1);
  CHECK_THROWS(hung.world.Store(4, 0, 0, 1), "closed");
  CHECK(!hung.world.engine->Close(0));  // again, and as fast

  // It comes back: what it still had is written late, and nothing but that.
  const std::vector<uint8_t> before = hung.world.arena;
  hung.device.device().Resume(FakeQueue::kCopies);
  CHECK(hung.world.engine->Close());
  CHECK(hung.world.engine->Unlanded().empty() && CopyEngine::UnlandedStores() == 0);
  CHECK(hung.world.engine->Poll().empty());  // it was reported once
  CHECK(hung.world.Holds(0, 0, 2) && !hung.Untouched(before));
  const auto behind = static_cast<int64_t>(2 * EngineWorld::kChunkBytes);
  CHECK(std::equal(before.begin() + behind, before.end(), hung.world.arena.begin() + behind));
}

TEST(TheEngineMayGoBeforeItsThreads) {
  HungWorld hung({.replaces_buffers = false}, /*threads=*/2);
  hung.world.Store(1, 0, 0, 2);
  hung.AwaitCopies(2);
  CHECK(!hung.world.engine->Close(0));
  hung.world.engine.reset();
  CHECK(CopyEngine::UnlandedStores() == 1 && hung.device.device().held() != 0);
  const std::weak_ptr<CopyBackend> backend = hung.world.backend;
  hung.device.device().Resume(FakeQueue::kCopies);
  Await([] { return CopyEngine::UnlandedStores() == 0; });
  Await([&] { return hung.device.device().held() == 0; });  // and so have the buffers been let go of
  Await([&] { return backend.use_count() == 1; });          // the world's own: the arena is nobody's any more
  CHECK(hung.world.Holds(0, 0, 2));
}

TEST(ASlowDeviceIsWaitedFor) {
  HungWorld hung({.replaces_buffers = false}, /*threads=*/1, /*landing_deadline_ms=*/60'000);
  hung.world.Store(1, 0, 0, 2);
  hung.AwaitCopies(2);
  hung.world.Store(2, 8, 2, 2);
  std::thread closer([&] { CHECK(hung.world.engine->Close(0)); });
  // What was not begun is lost while the other one is still under way.
  CHECK(hung.world.engine->Wait(Jobs{2}, EngineWorld::kLongS));
  CHECK(!hung.world.Done(1));
  hung.device.device().Resume(FakeQueue::kCopies);
  closer.join();
  const std::vector<CopyCompletion> reported = hung.Reported();
  CHECK(reported.size() == 2 && reported[0].ok && !reported[1].ok && reported[1].bytes == 0);
  CHECK(hung.world.Holds(0, 0, 2) && CopyEngine::UnlandedStores() == 0);
}

TEST(WhatIsSubmittedIsFinishedInItsTime) {
  FakeKit device({.replaces_buffers = false});
  EngineWorld world(&device);
  for (uint64_t job = 0; job < 8; ++job) world.Store(job, 4 * job, job, 1);
  CHECK(world.engine->Close(EngineWorld::kLongS));
  for (const CopyCompletion& one : world.engine->Poll()) CHECK(one.ok);
  CHECK(world.Holds(0, 0, 8));
}

// Loads that a window gave to the device, or that wait for one, and a store that waits for a step.
TEST(WaitsOfEveryKindEnd) {
  HungWorld hung({.in_order_queue = false});
  hung.world.Load(1, 0, 0, 1);
  Await([&] {
    hung.world.LoadWindow(0.02);
    return hung.world.engine->counters().late_windows == 1;
  });
  hung.world.Load(2, 4, 1, 1);
  CHECK(hung.device.HoldSteps());
  hung.world.Step(EngineWorld::kPage);
  hung.world.Store(3, 0, 2, 1);
  CHECK(!hung.world.engine->Close(0));
  const std::vector<CopyCompletion> reported = hung.Reported();
  CHECK(reported.size() == 3);
  for (const CopyCompletion& one : reported) CHECK(!one.ok);
  CHECK(hung.world.engine->Unlanded() == Jobs{1} && CopyEngine::UnlandedStores() == 0);
  hung.device.ReleaseSteps();
  hung.device.device().Resume(FakeQueue::kCopies);
  CHECK(hung.world.engine->Close() && hung.world.engine->Unlanded().empty());
}

// A piece of many batches: what has not been handed over when it is given up never is.
TEST(NothingIsHandedOverAfterwards) {
  std::vector<uint8_t> device(4096 * 32), arena(device.size());
  const auto backend = std::make_shared<GatedBackend>();
  CopyEngine engine({.threads = 1,
                     .arena = arena.data(),
                     .arena_bytes = arena.size(),
                     .backend = backend,
                     .landing_deadline_ms = kSoonMs});
  std::vector<uint64_t> rows;
  for (size_t i = 0; i < 4096; ++i) {  // more extents than go in one batch
    const auto row = {reinterpret_cast<uint64_t>(&device[i * 32]), reinterpret_cast<uint64_t>(&arena[i * 32]),
                      uint64_t{16}};
    rows.insert(rows.end(), row);
  }
  backend->Shut();
  std::thread copier([&] { CHECK_THROWS(engine.Copy(rows), "closed"); });
  backend->AwaitBatches(1);
  CHECK(!engine.Close(0));
  copier.join();
  backend->Open();
  CHECK(engine.Close());
  CHECK(backend->batches().size() == 1);
}

// The last one: this device never answers, its thread never ends, and the process ends all the same.
TEST(AProcessEndsWithAHungDevice) {
  static auto* const hung = new HungWorld({.replaces_buffers = false});
  hung->world.Store(1, 0, 0, 1);
  hung->AwaitCopies(1);
  CHECK(!hung->world.engine->Close(0));
  hung->world.engine.reset();
  CHECK(CopyEngine::UnlandedStores() == 1);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
