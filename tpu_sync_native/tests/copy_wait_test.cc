// Loads whose chunks are still on their way from storage: they stream, they let others pass, and no wait is
// without an end.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/futex.h"
#include "check.h"
#include "copy_fakes.h"
#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native::testing {
namespace {

constexpr double kLongS = 60;
constexpr uint64_t kChunkBytes = 64 * 1024;
constexpr uint32_t kChunks = 16;
constexpr uint64_t kForever = 3'600'000;

// Slots are pending until the test says what becomes of them.
class ArrivingGuard final : public SlotGuard {
 public:
  bool Unchanged(uint32_t slot, uint32_t, CopyDirection direction) const override {
    const std::lock_guard lock(mutex_);
    return direction == CopyDirection::kStore || StateLocked(slot) == Readiness::kReady;
  }
  uint64_t ChunkBytes(uint32_t slot, uint32_t, uint64_t) const override {
    const std::lock_guard lock(mutex_);
    return StateLocked(slot) == Readiness::kLost ? 0 : kChunkBytes;
  }
  Readiness ReadinessOf(uint32_t slot, uint32_t) const override {
    const std::lock_guard lock(mutex_);
    ++asked_;
    return StateLocked(slot);
  }
  uint32_t Events() const override {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  void AwaitEvent(uint32_t seen, uint64_t deadline_ns) const override {
    std::unique_lock lock(mutex_);
    const auto left = std::chrono::nanoseconds(deadline_ns - std::min(deadline_ns, SteadyNs()));
    changed_.wait_for(lock, left, [&] { return events_ != seen || interrupted_; });
  }
  void Interrupt() const override {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  bool Abandoned() const override {
    const std::lock_guard lock(mutex_);
    return abandoned_;
  }

  void End(uint32_t slot, Readiness readiness) {
    const std::lock_guard lock(mutex_);
    states_[slot] = readiness;
    ++events_;
    changed_.notify_all();
  }
  void Abandon() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
  }
  uint64_t asked() const {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  Readiness StateLocked(uint32_t slot) const {
    const auto found = states_.find(slot);
    return found == states_.end() ? Readiness::kPending : found->second;
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<uint32_t, Readiness> states_;
  uint32_t events_ = 0;
  mutable uint64_t asked_ = 0;
  mutable bool interrupted_ = false;
  bool abandoned_ = false;
};

// A device of kChunks blocks, one a chunk; the arena's slots are filled by Arrive.
struct World {
  explicit World(int threads = 1, uint64_t ready_deadline_ms = kForever)
      : device(kChunks * kChunkBytes), arena(kChunks * kChunkBytes) {
    engine = std::make_unique<CopyEngine>(CopyEngineOptions{.threads = threads,
                                                            .arena = arena.data(),
                                                            .arena_bytes = arena.size(),
                                                            .guard = guard,
                                                            .backend = backend,
                                                            .ready_deadline_ms = ready_deadline_ms});
    layout = engine->AddLayout(
        {{{reinterpret_cast<uint64_t>(device.data()), kChunkBytes, kChunkBytes}}, kChunks, 1, 0});
  }

  void Submit(uint64_t job, CopyDirection direction, uint32_t first, uint32_t count) {
    const std::vector<int64_t> layouts = {layout};
    const std::vector<int64_t> sizes = {count};
    std::vector<int64_t> blocks(count), positions(count);
    std::iota(blocks.begin(), blocks.end(), first);
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<uint32_t> slots(count);
    std::iota(slots.begin(), slots.end(), first);
    const std::vector<uint32_t> generations(count, 1);
    std::vector<uint64_t> offsets(count);
    for (uint32_t i = 0; i < count; ++i) offsets[i] = (first + i) * kChunkBytes;
    engine->Submit({job, direction, layouts, sizes, blocks, positions, slots, generations, offsets});
  }
  void Load(uint64_t job, uint32_t first, uint32_t count) { Submit(job, CopyDirection::kLoad, first, count); }

  static uint8_t Byte(uint32_t chunk) { return static_cast<uint8_t>(0x40 + chunk); }
  void Arrive(uint32_t chunk) {
    std::fill_n(arena.begin() + chunk * kChunkBytes, kChunkBytes, Byte(chunk));
    guard->End(chunk, Readiness::kReady);
  }
  // Only for chunks that no job is copying.
  bool OnDevice(uint32_t chunk) const {
    const auto begin = device.begin() + chunk * kChunkBytes;
    return std::all_of(begin, begin + kChunkBytes, [&](uint8_t byte) { return byte == Byte(chunk); });
  }

  CopyCompletion Finish(uint64_t job) {
    CHECK(engine->Wait(std::vector<uint64_t>{job}, kLongS));
    for (const CopyCompletion& one : engine->Poll()) done[one.job] = one;
    CHECK(done.contains(job));
    return done[job];
  }

  std::vector<uint8_t> device;
  std::vector<uint8_t> arena;
  std::shared_ptr<ArrivingGuard> guard = std::make_shared<ArrivingGuard>();
  std::shared_ptr<GatedBackend> backend = std::make_shared<GatedBackend>();
  std::unique_ptr<CopyEngine> engine;
  int layout = 0;
  std::map<uint64_t, CopyCompletion> done;
};

}  // namespace

TEST(ALoadStreams) {
  World world;
  world.Load(1, 0, kChunks);
  for (uint32_t i = 0; i < kChunks; ++i) {
    world.Arrive(i);
    world.backend->AwaitBatches(i + 1);  // chunk i has been copied while all behind it are pending
    CHECK(world.OnDevice(i));
    if (i + 1 < kChunks) CHECK(!world.OnDevice(i + 1) && world.engine->Poll().empty());
  }
  const CopyCompletion done = world.Finish(1);
  CHECK(done.ok && done.chunks_valid == kChunks && done.bytes == kChunks * kChunkBytes);
  const uint64_t waits = world.engine->counters().load_waits;
  CHECK(waits >= 1 && waits <= kChunks);
}

TEST(PiecesAreTakenInOrder) {
  World world;
  world.Load(1, 0, 4);
  for (const uint32_t chunk : {3, 2, 1}) world.Arrive(chunk);
  world.Arrive(0);
  CHECK(world.Finish(1).ok && world.backend->batches().size() == 1);  // all four at once
  for (uint32_t i = 0; i < 4; ++i) CHECK(world.OnDevice(i));
}

TEST(OthersPassALoadThatWaits) {
  World world;  // one thread
  world.Load(1, 0, 4);
  world.Arrive(8);
  world.Arrive(9);
  world.Load(2, 8, 2);
  CHECK(world.Finish(2).ok);
  world.Submit(3, CopyDirection::kStore, 12, 2);
  CHECK(world.Finish(3).ok);
  CHECK(world.engine->pending() == 1 && world.engine->Poll().empty());
  for (uint32_t i = 0; i < 4; ++i) world.Arrive(i);
  CHECK(world.Finish(1).ok);
}

TEST(AChunkThatIsLostOnItsWayEndsTheLeadingOnes) {
  World world;
  world.Load(1, 0, 4);
  world.Arrive(0);
  world.Arrive(3);
  world.guard->End(2, Readiness::kLost);
  world.Arrive(1);
  const CopyCompletion done = world.Finish(1);
  CHECK(!done.ok && done.chunks_valid == 2 && done.bytes == 3 * kChunkBytes);
  CHECK(world.OnDevice(0) && world.OnDevice(1) && world.OnDevice(3));
  CHECK(world.device[2 * kChunkBytes] == 0);  // never touched
}

TEST(AChunkThatDoesNotArriveInTimeIsLost) {
  World world(/*threads=*/1, /*ready_deadline_ms=*/300);
  world.Load(1, 0, 4);
  world.Arrive(0);
  const auto start = std::chrono::steady_clock::now();
  const CopyCompletion done = world.Finish(1);
  CHECK(!done.ok && done.chunks_valid == 1 && world.OnDevice(0));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  CHECK(done.seconds >= 0.3);
  world.Arrive(1);  // too late
  CHECK(world.engine->Poll().empty() && world.device[kChunkBytes] == 0);
}

TEST(ALoadThatGoesOnIsNotLostHoweverLongItTakes) {
  World world(/*threads=*/1, /*ready_deadline_ms=*/1500);
  world.Load(1, 0, 6);
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < 6; ++i) {
    std::this_thread::sleep_until(start + std::chrono::milliseconds(400 * (i + 1)));
    world.Arrive(i);
  }
  const CopyCompletion done = world.Finish(1);
  CHECK(done.ok && done.chunks_valid == 6 && done.seconds > 1.5);
}

TEST(CloseEndsTheWait) {
  World world(/*threads=*/2);
  world.Load(1, 0, 4);
  world.Load(2, 4, 4);
  world.Arrive(0);
  world.backend->AwaitBatches(1);
  world.engine->Close();
  for (const CopyCompletion& one : world.engine->Poll()) {
    CHECK(!one.ok && one.chunks_valid == (one.job == 1 ? 1 : 0));
  }
  CHECK(world.engine->pending() == 0);
}

TEST(ADaemonThatIsGoneEndsTheWait) {
  World world;
  world.Load(1, 0, 4);
  world.Arrive(0);
  world.backend->AwaitBatches(1);
  world.guard->Abandon();
  const CopyCompletion done = world.Finish(1);
  CHECK(!done.ok && done.chunks_valid == 1);
  world.Load(2, 4, 2);  // and from now on none begins
  CHECK(!world.Finish(2).ok);
}

TEST(AnEngineGoesWithoutBeingClosed) {
  World world;
  world.Load(1, 0, 4);
  world.engine.reset();
}

TEST(OrdinaryLoadsAreAskedAboutOnce) {
  World world;
  for (uint32_t i = 0; i < kChunks; ++i) world.Arrive(i);
  world.Load(1, 0, kChunks);
  CHECK(world.Finish(1).ok);
  CHECK(world.guard->asked() == kChunks && world.engine->counters().load_waits == 0);
}

TEST(ManyLoadsWaitAtOnce) {
  for (int round = 0; round < 20; ++round) {
    World fresh(/*threads=*/3);
    for (uint32_t i = 0; i < kChunks; i += 2) fresh.Load(i, i, 2);
    std::thread odd([&] {
      for (uint32_t i = 1; i < kChunks; i += 2) fresh.Arrive(i);
    });
    for (uint32_t i = kChunks; i > 0; i -= 2) fresh.Arrive(i - 2);
    odd.join();
    for (uint32_t i = 0; i < kChunks; i += 2) CHECK(fresh.Finish(i).ok);
    for (uint32_t i = 0; i < kChunks; ++i) CHECK(fresh.OnDevice(i));
  }
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
