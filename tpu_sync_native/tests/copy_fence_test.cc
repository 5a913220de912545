// What fences, load windows and pacing are for: the same jobs with the rule and without it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/futex.h"
#include "check.h"
#include "copy/fake_device.h"
#include "copy_engine_kit.h"
#include "fake_kit.h"

namespace tpu_sync_native::testing {
namespace {

// A device's backend with one rule broken.
enum class Broken { kNothing, kFence, kWindow, kPacing };

class LyingHold final : public CopyHold {
 public:
  explicit LyingHold(std::shared_ptr<CopyHold> of) : of_(std::move(of)) {}
  uint64_t BufferBytes(uint64_t ordinal) const override { return of_->BufferBytes(ordinal); }
  const CopyHold* of() const { return of_.get(); }  // and says that it is ready, always

 private:
  const std::shared_ptr<CopyHold> of_;
};

class BrokenBackend final : public CopyBackend {
 public:
  BrokenBackend(std::shared_ptr<CopyBackend> of, Broken broken)
      : of_(std::move(of)), capabilities_(of_->capabilities()), lies_(broken == Broken::kFence) {
    if (broken == Broken::kWindow) capabilities_.replaces_buffers = false;
    if (broken == Broken::kPacing) capabilities_.piece_bytes_max = capabilities_.inflight_bytes_max = 0;
  }
  const CopyCapabilities& capabilities() const override { return capabilities_; }
  bool RegisterArena(uint8_t* arena, uint64_t bytes) override { return of_->RegisterArena(arena, bytes); }
  void UnregisterArena(uint8_t* arena, uint64_t bytes) override { of_->UnregisterArena(arena, bytes); }
  std::shared_ptr<CopyHold> Hold(std::span<const uint64_t> buffers) override {
    std::shared_ptr<CopyHold> hold = of_->Hold(buffers);
    if (!lies_ || hold == nullptr) return hold;
    return std::make_shared<LyingHold>(std::move(hold));
  }
  bool Copy(CopyDirection direction, std::span<const CopyExtent> extents, const CopyHold* hold) override {
    return of_->Copy(direction, extents, lies_ ? static_cast<const LyingHold*>(hold)->of() : hold);
  }

 private:
  const std::shared_ptr<CopyBackend> of_;
  CopyCapabilities capabilities_;
  const bool lies_;
};

std::shared_ptr<CopyBackend> Break(KitDevice* device, Broken broken) {
  return std::make_shared<BrokenBackend>(device->backend(), broken);
}

// A store that is submitted while the step runs: whether it has the step's bytes.
bool StoreHasTheStepsBytes(Broken broken) {
  FakeKit device({.in_order_queue = false});
  EngineWorld world(&device, /*threads=*/1, Break(&device, broken));
  CHECK(device.HoldSteps());
  const std::vector<uint8_t> written = world.Step(EngineWorld::kPage);
  world.Store(1, 0, 0, 1);
  // With nothing to wait for it is over before the step is; else it is not begun.
  if (broken == Broken::kFence) CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
  CHECK(world.Done(1) == (broken == Broken::kFence));
  device.ReleaseSteps();
  CHECK(world.Finish(1).ok);
  return std::equal(written.begin(), written.end(), world.arena.begin());
}

TEST(AStoreReadsWhatTheStepWrote) { CHECK(StoreHasTheStepsBytes(Broken::kNothing)); }
TEST(WithoutTheFenceAStoreReadsWrongBytes) { CHECK(!StoreHasTheStepsBytes(Broken::kFence)); }

// In one queue the fence keeps what waits for a step out of everybody else's way.
TEST(AStoreThatWaitsIsNotInTheQueue) {
  FakeKit device({});
  EngineWorld world(&device, /*threads=*/1);
  CHECK(device.HoldSteps());
  const std::vector<uint8_t> written = world.Step(EngineWorld::kPage);
  world.Store(1, 0, 0, 1);
  CHECK(world.engine->counters().fence_waits == 1);
  world.Step(EngineWorld::kPage);  // the engine's next one, which may not wait for the store
  device.ReleaseSteps();
  CHECK(world.Finish(1).ok);
  CHECK(std::equal(written.begin(), written.end(), world.arena.begin()));
  for (const FakeOp& op : device.device().log()) {
    if (op.kind == FakeOpKind::kStep) CHECK(op.copies_ahead_ns == 0);
  }
}

TEST(OthersPassAStoreThatWaits) {
  FakeKit device({.in_order_queue = false});
  EngineWorld world(&device, /*threads=*/1);
  CHECK(device.HoldSteps());
  world.Step(EngineWorld::kPage);
  world.Store(1, 0, 0, 2);
  // Another buffer, which is new and holds zeros.
  const uint64_t written =
      std::exchange(world.buffers[0], device.MakeBuffer(EngineWorld::kPage * EngineWorld::kBlocks));
  world.Store(2, 0, 2, 2);
  CHECK(world.engine->Wait(std::vector<uint64_t>{2}, EngineWorld::kLongS));
  const auto slot = world.arena.begin() + 2 * EngineWorld::kChunkBytes;
  CHECK(std::all_of(slot, slot + EngineWorld::kPage, [](uint8_t byte) { return byte == 0; }));
  CHECK(!world.Done(1));
  world.buffers[0] = written;
  device.ReleaseSteps();
  CHECK(world.Finish(1).ok && world.Holds(0, 0, 2));
}

// A load that is copied while a step runs, which ends after it: whether its bytes are there.
bool LoadIsThereAfterTheStep(Broken broken) {
  FakeKit device({.in_order_queue = false});
  EngineWorld world(&device, /*threads=*/1, Break(&device, broken));
  device.device().Pause(FakeQueue::kCopies);
  world.Load(1, 4, 1, 1);  // blocks that the step does not write
  if (broken == Broken::kWindow) CHECK(device.device().AwaitQueued(FakeQueue::kCopies, 1));
  world.Step(EngineWorld::kPage);
  CHECK(device.device().AwaitIdle(FakeQueue::kSteps));
  device.device().Resume(FakeQueue::kCopies);
  CHECK(world.Finish(1).ok);
  return world.Holds(1, 4, 1);
}

TEST(ALoadWaitsForItsWindow) { CHECK(LoadIsThereAfterTheStep(Broken::kNothing)); }
TEST(WithoutAWindowALoadIsLost) { CHECK(!LoadIsThereAfterTheStep(Broken::kWindow)); }

// What a step that is launched while stores are copied waits for, in the device's time.
uint64_t DelayOfAStep(Broken broken, uint64_t piece_bytes) {
  FakeKit device({.piece_bytes_max = piece_bytes, .inflight_bytes_max = piece_bytes});
  EngineWorld world(&device, /*threads=*/3, Break(&device, broken));
  const uint64_t other = device.MakeBuffer(64);
  device.device().Pause(FakeQueue::kCopies);
  for (uint64_t job = 1; job <= 3; ++job) world.Store(job, 0, 0, EngineWorld::kChunks);
  // All that the engine gives to the device while nothing moves: a piece, or one of each thread.
  const uint64_t extents = broken == Broken::kPacing ? 2 : 1;
  CHECK(device.device().AwaitQueued(FakeQueue::kCopies, extents));
  device.Step(other, {});
  device.device().Resume(FakeQueue::kCopies);
  for (uint64_t job = 1; job <= 3; ++job) CHECK(world.Finish(job).ok);
  for (const FakeOp& op : device.device().log()) {
    if (op.kind == FakeOpKind::kStep) return op.copies_ahead_ns;
  }
  Fail(__FILE__, __LINE__, "no step", "");
}

TEST(PacingBoundsWhatAStepWaitsFor) {
  constexpr uint64_t kPiece = 32 << 10;
  const FakeDeviceOptions defaults;
  // A piece of pages that are neighbours is one or two extents: two where it goes from one region to the
  // next.
  const uint64_t piece_ns = 2 * defaults.copy_ns + kPiece * 1'000 / defaults.bytes_per_us;
  const uint64_t paced = DelayOfAStep(Broken::kNothing, kPiece);
  CHECK(paced > 0 && paced <= piece_ns);
  CHECK(DelayOfAStep(Broken::kPacing, kPiece) > 2 * piece_ns);
}

}  // namespace

// ---- waits that end ----

TEST(AStoreWhoseFenceNeverComesFails) {
  FakeKit device({});
  EngineWorld world(&device, /*threads=*/1, nullptr, /*ready_deadline_ms=*/100);
  CHECK(device.HoldSteps());
  world.Step(EngineWorld::kPage);
  const std::vector<uint8_t> before = world.arena;
  world.Store(1, 0, 0, 1);
  const CopyCompletion done = world.Finish(1);
  CHECK(!done.ok && done.chunks_valid == 0 && done.seconds >= 0.1);
  CHECK(device.device().held() == 0);
  device.ReleaseSteps();
  CHECK(device.device().AwaitIdle(FakeQueue::kSteps));
  CHECK(world.arena == before);
}

TEST(ALoadThatNoWindowComesForIsLost) {
  FakeKit device({});
  EngineWorld world(&device, /*threads=*/2, nullptr, /*ready_deadline_ms=*/100);
  world.Load(1, 0, 0, 2);
  CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
  const auto done = world.engine->Poll();
  CHECK(done.size() == 1 && !done[0].ok && done[0].chunks_valid == 0);
  CHECK(world.backend->loads() == 0 && world.LoadWindow());
}

TEST(WhatAnEarlierWindowCopiedIsKept) {
  FakeKit device({.piece_bytes_max = EngineWorld::kChunkBytes});
  EngineWorld world(&device, /*threads=*/1, nullptr, /*ready_deadline_ms=*/2'000);
  world.Load(1, 0, 0, 4);
  device.device().Pause(FakeQueue::kCopies);
  std::thread window([&] { world.LoadWindow(0); });  // one piece
  CHECK(device.device().AwaitQueued(FakeQueue::kCopies, 1));
  device.device().Resume(FakeQueue::kCopies);
  window.join();
  CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
  const auto done = world.engine->Poll();
  CHECK(done.size() == 1 && !done[0].ok && done[0].chunks_valid == 1);
  CHECK(world.Holds(0, 0, 1));
}

// The device hangs in a window: the caller comes back, the load has failed, and is reported when nothing of
// it can land any more.
TEST(AWindowDoesNotWaitForADeviceThatHangs) {
  FakeKit device({});
  EngineWorld world(&device, /*threads=*/1, nullptr, 60'000, /*landing_deadline_ms=*/50);
  device.device().Pause(FakeQueue::kCopies);
  world.Load(1, 0, 0, 4);
  CHECK(world.LoadWindow(0.01));  // nothing is left that could go on
  CHECK(world.engine->counters().late_windows == 1);
  CHECK(!world.Done(1) && world.engine->Poll().empty());
  world.Load(2, 0, 0, 4);
  CHECK(!world.LoadWindow(EngineWorld::kLongS));  // at once: the device still hangs
  CHECK(world.engine->counters().load_windows == 1);
  device.device().Resume(FakeQueue::kCopies);
  CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
  const auto done = world.engine->Poll();
  CHECK(done.size() == 1 && !done[0].ok && done[0].chunks_valid == 0 && done[0].bytes == 0);
  CHECK(world.Finish(2).ok && world.Holds(0, 0, 4));
}

// A store has the only thread, and does not end: its loads get no window, and their time passes.
TEST(AWindowWithoutAThreadIsTriedOnce) {
  FakeKit device({});
  EngineWorld world(&device, /*threads=*/1, nullptr, /*ready_deadline_ms=*/300, /*landing_deadline_ms=*/50);
  device.device().Pause(FakeQueue::kCopies);
  world.Store(1, 0, 0, 1);
  CHECK(device.device().AwaitQueued(FakeQueue::kCopies, 1));
  world.Load(2, 8, 4, 2);
  CHECK(!world.LoadWindow(0.01) && !world.LoadWindow(EngineWorld::kLongS));
  CHECK(world.engine->counters().load_windows == 1);
  while (!world.Done(2)) world.LoadWindow(EngineWorld::kLongS);
  CHECK(!world.Done(1) && world.engine->counters().load_windows == 1);
  device.device().Resume(FakeQueue::kCopies);
  CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
  const auto done = world.engine->Poll();
  CHECK(done.size() == 2 && !done[0].ok && done[1].ok && world.Holds(0, 0, 1));
}

// The first chunk of a load is there, the others never come.
class FirstOnlyGuard final : public SlotGuard {
 public:
  bool Unchanged(uint32_t, uint32_t, CopyDirection) const override { return true; }
  uint64_t ChunkBytes(uint32_t, uint32_t, uint64_t) const override { return EngineWorld::kChunkBytes; }
  Readiness ReadinessOf(uint32_t slot, uint32_t) const override {
    return slot == 0 ? Readiness::kReady : Readiness::kPending;
  }
  uint32_t Events() const override {
    ++looks_;
    return 0;
  }
  void AwaitEvent(uint32_t, uint64_t deadline_ns) const override {
    std::unique_lock lock(mutex_);
    const auto left = std::chrono::nanoseconds(deadline_ns - std::min(deadline_ns, SteadyNs()));
    changed_.wait_for(lock, left, [&] { return interrupted_; });
  }
  void Interrupt() const override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  bool Abandoned() const override { return false; }
  uint64_t looks() const { return looks_; }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool interrupted_ = false;
  mutable std::atomic<uint64_t> looks_{0};
};

TEST(ALoadThatWaitsForStorageIsLostWithItsWindow) {
  FakeKit device({});
  const auto guard = std::make_shared<FirstOnlyGuard>();
  EngineWorld world(&device, /*threads=*/2, nullptr, /*ready_deadline_ms=*/200, /*landing_deadline_ms=*/50,
                    guard);
  device.device().Pause(FakeQueue::kCopies);
  world.Load(1, 0, 0, 4);
  world.LoadWindow(0.01);  // the first chunk is on its way, and hangs; the rest is parked
  CHECK(world.engine->counters().late_windows == 1 && world.engine->counters().load_waits == 1);
  device.device().Resume(FakeQueue::kCopies);
  CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
  const auto done = world.engine->Poll();
  CHECK(done.size() == 1 && !done[0].ok && done[0].chunks_valid == 0);
  // Nobody waits any more: who did would look without a pause once the deadline is over.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const uint64_t before = guard->looks();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(guard->looks() - before <= 1);
}

TEST(AnEventThatIsLateIsWaitedFor) {
  FakeKit device({});
  EngineWorld world(&device, /*threads=*/1);
  device.device().HoldEvents();
  world.Store(1, 0, 0, 1);
  CHECK(!world.Done(1) && world.engine->counters().fence_waits == 1);
  device.device().ReleaseEvents();
  CHECK(world.Finish(1).ok && world.Holds(0, 0, 1));
}

TEST(AStepThatFailedIsNotStored) {
  FakeKit device({});
  EngineWorld world(&device, /*threads=*/1);
  world.buffers = device.device().Step(world.buffers, {}, 1'000, /*fails=*/true);
  world.Store(1, 0, 0, 2);
  const CopyCompletion done = world.Finish(1);
  CHECK(!done.ok && done.chunks_valid == 0);
}

TEST(ADeviceThatIsGoneFailsItsJobs) {
  auto device = std::make_unique<FakeKit>(FakeDeviceOptions{});
  EngineWorld world(device.get(), /*threads=*/2);
  device->device().Pause(FakeQueue::kCopies);
  world.Store(1, 0, 0, 4);
  CHECK(device->device().AwaitQueued(FakeQueue::kCopies, 1));
  device.reset();
  CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
  CHECK(!world.engine->Poll()[0].ok);
  world.Store(2, 0, 0, 1);
  CHECK(world.engine->Wait(std::vector<uint64_t>{2}, EngineWorld::kLongS));
  CHECK(!world.engine->Poll()[0].ok);
}

TEST(HoldsAreGoneWhenTheirJobIsReported) {
  FakeKit device({});
  EngineWorld world(&device, /*threads=*/3);
  for (uint64_t job = 1; job <= 50; ++job) {
    world.Store(job, 0, 0, EngineWorld::kChunks);
    CHECK(world.Finish(job).ok);
    CHECK(device.device().held() == 0);
    world.Load(job, 0, 0, EngineWorld::kChunks);
    CHECK(world.LoadWindow() && device.device().held() == 0);
    CHECK(world.Finish(job).ok);
  }
}

// Steps, stores, loads and faults from a seed, from many threads: what is reported as valid is right.
TEST(WhatIsReportedAsValidIsRight) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    FakeKit device({.in_order_queue = seed % 2 == 0,
                    .piece_bytes_max = 40 << 10,
                    .inflight_bytes_max = 90 << 10,
                    .seed = seed,
                    .copies_failing = 30,
                    .holds_refused = 50});
    EngineWorld world(&device, /*threads=*/3);
    std::mt19937_64 random(seed);
    for (uint64_t round = 0; round < 40; ++round) {
      const uint64_t chunks = 1 + random() % EngineWorld::kChunks;
      const bool load = random() % 2 == 0;
      world.Step(EngineWorld::kPage);
      world.Submit(round, load ? CopyDirection::kLoad : CopyDirection::kStore, 0, 0, chunks);
      while (!world.Done(round)) {
        if (load) {
          world.LoadWindow(0);
        } else {
          world.engine->Wait(std::vector<uint64_t>{round}, EngineWorld::kLongS);
        }
      }
      const auto done = world.engine->Poll();
      CHECK(done.size() == 1 && done[0].ok == (done[0].chunks_valid == chunks));
      if (!world.Holds(0, 0, done[0].chunks_valid)) Fail(__FILE__, __LINE__, "seed", std::to_string(seed));
    }
  }
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
