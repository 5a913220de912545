// What a copy engine must do on every device of the kit: bytes there and back within the device's limits,
// fences, load windows, and failures that are reported as such.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/futex.h"
#include "check.h"
#include "copy_backend_kit.h"
#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native::testing {

// Passes everything on, and keeps count of what is given to the device.
class MeasuredBackend final : public CopyBackend {
 public:
  explicit MeasuredBackend(std::shared_ptr<CopyBackend> of) : of_(std::move(of)) {}
  const CopyCapabilities& capabilities() const override { return of_->capabilities(); }
  bool RegisterArena(uint8_t* arena, uint64_t bytes) override { return of_->RegisterArena(arena, bytes); }
  void UnregisterArena(uint8_t* arena, uint64_t bytes) override { of_->UnregisterArena(arena, bytes); }
  std::shared_ptr<CopyHold> Hold(std::span<const uint64_t> buffers) override { return of_->Hold(buffers); }
  std::shared_ptr<CopyHold> Fence(uint64_t stream) override { return of_->Fence(stream); }
  bool Copy(CopyDirection direction, std::span<const CopyExtent> extents, const CopyHold* hold) override {
    uint64_t bytes = 0;
    for (const CopyExtent& extent : extents) bytes += extent.bytes;
    {
      const std::lock_guard lock(mutex_);
      (direction == CopyDirection::kLoad ? loads_ : stores_) += 1;
      inflight_ += bytes;
      piece_max_ = std::max(piece_max_, bytes);
      inflight_max_ = std::max(inflight_max_, inflight_);
    }
    const bool moved = of_->Copy(direction, extents, hold);
    const std::lock_guard lock(mutex_);
    inflight_ -= bytes;
    return moved;
  }
  uint64_t loads() const { return Get(loads_); }
  uint64_t stores() const { return Get(stores_); }
  uint64_t piece_max() const { return Get(piece_max_); }
  uint64_t inflight_max() const { return Get(inflight_max_); }

 private:
  uint64_t Get(const uint64_t& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }
  const std::shared_ptr<CopyBackend> of_;
  mutable std::mutex mutex_;
  uint64_t loads_ = 0, stores_ = 0, inflight_ = 0, piece_max_ = 0, inflight_max_ = 0;
};

// Blocks of two regions, each in a buffer of its own, and an arena that holds all of them.
struct EngineWorld {
  static constexpr double kLongS = 60;
  static constexpr uint64_t kPage = 16 * 1024;
  static constexpr uint64_t kBlocks = 32;
  static constexpr uint32_t kPerChunk = 4;
  static constexpr uint64_t kChunks = kBlocks / kPerChunk;
  static constexpr uint64_t kChunkBytes = 2 * kPage * kPerChunk;

  explicit EngineWorld(KitDevice* of, int threads = 2, std::shared_ptr<CopyBackend> with = nullptr,
                       uint64_t ready_deadline_ms = 60'000, uint64_t landing_deadline_ms = 60'000,
                       std::shared_ptr<const SlotGuard> guard = nullptr)
      : device(of),
        backend(std::make_shared<MeasuredBackend>(with != nullptr ? with : of->backend())),
        arena(RandomBytes(kChunks * kChunkBytes, &random)) {
    engine = std::make_unique<CopyEngine>(CopyEngineOptions{.threads = threads,
                                                            .arena = arena.data(),
                                                            .arena_bytes = arena.size(),
                                                            .guard = std::move(guard),
                                                            .backend = backend,
                                                            .ready_deadline_ms = ready_deadline_ms,
                                                            .landing_deadline_ms = landing_deadline_ms});
    std::vector<CopyRegion> regions;
    for (uint64_t i = 0; i < 2; ++i) {
      buffers.push_back(device->MakeBuffer(kPage * kBlocks));
      device->Write(buffers[i], RandomBytes(kPage * kBlocks, &random));
      regions.push_back({can().buffers ? i << kDeviceBufferShift : buffers[i], kPage, kPage});
    }
    layout = engine->AddLayout({regions, kBlocks, kPerChunk, 0});
  }

  const CopyCapabilities& can() const { return backend->capabilities(); }

  // The blocks of `chunks` chunks from block `first` on <-> the slots from `first_chunk` on.
  void Submit(uint64_t job, CopyDirection direction, uint64_t first, uint64_t first_chunk, uint64_t chunks) {
    const std::vector<int64_t> layouts = {layout};
    const std::vector<int64_t> sizes = {static_cast<int64_t>(chunks * kPerChunk)};
    std::vector<int64_t> blocks(chunks * kPerChunk), positions(chunks * kPerChunk);
    std::iota(blocks.begin(), blocks.end(), first);
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<uint32_t> slots(chunks);
    std::iota(slots.begin(), slots.end(), first_chunk);
    const std::vector<uint32_t> generations(chunks, 1);
    std::vector<uint64_t> offsets(chunks);
    for (uint64_t i = 0; i < chunks; ++i) offsets[i] = (first_chunk + i) * kChunkBytes;
    CopyRequest request{job, direction, layouts, sizes, blocks, positions, slots, generations, offsets, {}};
    if (can().buffers) request.buffers = buffers;
    engine->Submit(request);
  }
  void Store(uint64_t job, uint64_t first, uint64_t first_chunk, uint64_t chunks) {
    Submit(job, CopyDirection::kStore, first, first_chunk, chunks);
  }
  void Load(uint64_t job, uint64_t first, uint64_t first_chunk, uint64_t chunks) {
    Submit(job, CopyDirection::kLoad, first, first_chunk, chunks);
  }
  bool LoadWindow(double seconds = kLongS) { return engine->LoadWindow(buffers, seconds); }
  bool Done(uint64_t job) { return engine->Wait(std::vector<uint64_t>{job}, 0); }

  // With a load window where the device needs one.
  CopyCompletion Finish(uint64_t job) {
    CHECK(LoadWindow());
    CHECK(engine->Wait(std::vector<uint64_t>{job}, kLongS));
    for (const CopyCompletion& one : engine->Poll()) reported.insert_or_assign(one.job, one);
    const auto found = reported.extract(job);
    CHECK(!found.empty());
    return found.mapped();
  }

  // What the slots from `first_chunk` on must hold when the blocks from `first` on were stored there.
  bool Holds(uint64_t first_chunk, uint64_t first, uint64_t chunks) {
    for (uint64_t i = 0; i < 2; ++i) {
      const std::vector<uint8_t> bytes = device->Read(buffers[i]);
      for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
        const auto slot =
            arena.begin() + static_cast<int64_t>((first_chunk + chunk) * kChunkBytes + i * kPage * kPerChunk);
        const auto blocks = bytes.begin() + static_cast<int64_t>((first + chunk * kPerChunk) * kPage);
        if (!std::equal(slot, slot + kPage * kPerChunk, blocks)) return false;
      }
    }
    return true;
  }
  std::vector<uint8_t> Bytes(uint64_t count) { return RandomBytes(count, &random); }
  // A step that writes block 0.. of the first region.
  std::vector<uint8_t> Step(uint64_t bytes) {
    std::vector<uint8_t> written = Bytes(bytes);
    buffers[0] = device->Step(buffers[0], written);
    return written;
  }

  std::mt19937_64 random{17};
  KitDevice* const device;
  const std::shared_ptr<MeasuredBackend> backend;
  std::vector<uint8_t> arena;
  std::vector<uint64_t> buffers;
  std::unique_ptr<CopyEngine> engine;
  std::map<uint64_t, CopyCompletion> reported;  // and not asked for yet
  int layout = 0;
};

inline void CheckThereAndBack(KitDevice* device) {
  EngineWorld world(device, /*threads=*/3);
  world.Store(1, 0, 0, EngineWorld::kChunks);
  const CopyCompletion stored = world.Finish(1);
  CHECK(stored.ok && stored.chunks_valid == EngineWorld::kChunks && stored.bytes == world.arena.size());
  CHECK(world.Holds(0, 0, EngineWorld::kChunks));
  // Into other blocks: the two halves change places.
  constexpr uint64_t kHalf = EngineWorld::kChunks / 2;
  world.Load(2, 0, kHalf, kHalf);
  world.Load(3, kHalf * EngineWorld::kPerChunk, 0, kHalf);
  CHECK(world.Finish(2).ok);
  CHECK(world.engine->Wait(std::vector<uint64_t>{3}, EngineWorld::kLongS));
  CHECK(world.Holds(kHalf, 0, kHalf) && world.Holds(0, kHalf * EngineWorld::kPerChunk, kHalf));
  const CopyCapabilities& can = world.can();
  CHECK(world.backend->stores() > 0 && world.backend->loads() > 0);
  if (can.piece_bytes_max != 0) CHECK(world.backend->piece_max() <= can.piece_bytes_max);
  if (can.inflight_bytes_max != 0) CHECK(world.backend->inflight_max() <= can.inflight_bytes_max);
}

inline void CheckRefusesWhatDoesNotFit(KitDevice* device) {
  EngineWorld world(device);
  const uint64_t page = EngineWorld::kPage;
  if (const uint64_t alignment = world.can().alignment_bytes; alignment > 1) {
    CHECK_THROWS(world.engine->AddLayout({{{alignment / 2, page, page}}, 1, 1, 0}), "is not aligned");
    CHECK_THROWS(world.engine->AddLayout({{{0, page, page - alignment / 2}}, 1, 1, 0}), "is not aligned");
  }
  if (!world.can().buffers) return;
  const uint64_t far = uint64_t{1} << kDeviceBufferShift;
  CHECK_THROWS(world.engine->AddLayout({{{far - page, page, page}}, 2, 1, 0}), "larger than a buffer");
  const std::vector<uint64_t> two = world.buffers;
  world.buffers = {two[0]};
  CHECK_THROWS(world.Store(1, 0, 0, 1), "of buffer 1, which has 0 bytes");
  world.buffers = {two[0], device->MakeBuffer(page * (EngineWorld::kBlocks - 1))};
  CHECK_THROWS(world.Store(1, 0, 0, 1), "of buffer 1");
  CHECK(world.engine->pending() == 0 && world.engine->Poll().empty());
  if (world.can().replaces_buffers) {
    world.Load(1, 0, 0, 1);
    CHECK_THROWS(world.LoadWindow(), "of buffer 1");
    world.buffers = two;
  }
}

inline void CheckGoneBuffersFailTheJob(KitDevice* device) {
  EngineWorld world(device);
  if (!world.can().buffers) return;
  const std::vector<uint8_t> before = world.arena;
  const uint64_t good = std::exchange(world.buffers[1], 0);
  world.Store(1, 0, 0, 2);
  CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
  const auto done = world.engine->Poll();
  CHECK(done.size() == 1 && !done[0].ok && done[0].chunks_valid == 0 && done[0].bytes == 0);
  CHECK(world.arena == before && world.engine->counters().refused_holds == 1);
  world.buffers[1] = good;
  world.Store(2, 0, 0, 2);
  CHECK(world.Finish(2).ok);
}

inline void CheckAFailureIsReported(KitDevice* device) {
  EngineWorld world(device, /*threads=*/1);
  if (!device->FailACopy()) return;
  world.Load(1, 0, 0, EngineWorld::kChunks);
  const CopyCompletion done = world.Finish(1);
  CHECK(!done.ok && done.chunks_valid == 0);  // the first piece, which is of the first chunk
  world.Load(2, 0, 0, EngineWorld::kChunks);
  CHECK(world.Finish(2).ok && world.Holds(0, 0, EngineWorld::kChunks));
}

inline void CheckLoadsNeedAWindow(KitDevice* device) {
  EngineWorld world(device);
  world.Load(1, 0, 0, 2);
  world.Store(2, 8, 2, 2);  // passes it
  CHECK(world.engine->Wait(std::vector<uint64_t>{2}, EngineWorld::kLongS));
  if (!world.can().replaces_buffers) {
    CHECK(world.LoadWindow() && world.engine->counters().load_windows == 0);
    CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
    return;
  }
  CHECK(!world.Done(1) && world.backend->loads() == 0);
  CHECK(world.LoadWindow());
  CHECK(world.engine->Wait(std::vector<uint64_t>{1}, EngineWorld::kLongS));
  CHECK(world.Holds(0, 0, 2) && world.engine->counters().load_windows == 1);
  CHECK(world.LoadWindow() && world.engine->counters().load_windows == 1);  // nothing to do: none is opened
}

// Steps between windows keep what is loaded, and loads keep what steps write.
inline void CheckWindowsLoseNothing(KitDevice* device) {
  EngineWorld world(device);
  if (!world.can().replaces_buffers) return;
  constexpr uint64_t kFirst = EngineWorld::kPerChunk;  // the step's block is beside those that are loaded
  world.Load(1, kFirst, 1, EngineWorld::kChunks - 1);
  std::vector<uint8_t> written;
  const uint64_t deadline_ns = SteadyNs() + 60 * kNsPerS;
  while (!world.Done(1)) {
    CHECK(SteadyNs() < deadline_ns);
    written = world.Step(EngineWorld::kPage);
    world.LoadWindow(/*seconds=*/0);
  }
  CHECK(world.Finish(1).ok);
  CHECK(world.Holds(1, kFirst, EngineWorld::kChunks - 1));
  const std::vector<uint8_t> bytes = device->Read(world.buffers[0]);
  CHECK(std::equal(written.begin(), written.end(), bytes.begin()));
}

// A store reads what the step before it wrote; nobody waits for that, and others pass.
inline void CheckStoresWaitForTheStep(KitDevice* device) {
  EngineWorld world(device, /*threads=*/1);
  if (!world.can().buffers || !device->HoldSteps()) return;
  const std::vector<uint8_t> written = world.Step(EngineWorld::kPage);
  world.Store(1, 0, 0, 1);
  CHECK(!world.Done(1) && world.engine->counters().fence_waits == 1 && world.backend->stores() == 0);
  if (world.can().replaces_buffers) {
    world.Load(2, 4, 1, 1);
    CHECK(!world.LoadWindow(/*seconds=*/0));  // nor is a window opened on what is being written
    CHECK(world.backend->loads() == 0 && world.engine->counters().load_windows == 0);
  }
  device->ReleaseSteps();
  CHECK(world.Finish(1).ok);
  CHECK(std::equal(written.begin(), written.end(), world.arena.begin()));
  CHECK(world.Holds(0, 0, 1));
}

inline void CheckHoldsEndWithTheirJobs(KitDevice* device) {
  EngineWorld world(device);
  if (!world.can().buffers || !device->HoldSteps()) return;
  world.Step(EngineWorld::kPage);
  world.Store(1, 0, 0, 2);
  world.engine->Close();  // does not wait for the step
  const auto done = world.engine->Poll();
  CHECK(done.size() == 1 && !done[0].ok && done[0].chunks_valid == 0);
  world.engine.reset();
  device->ReleaseSteps();  // the fence is told to nobody
  device->Read(world.buffers[0]);
}

// All of it, and all of copy_backend_kit.h.
using KitCheck = void (*)(KitDevice*);
struct NamedKitCheck {
  const char* name;
  KitCheck run;
};
inline constexpr NamedKitCheck kKitChecks[] = {
    {"says what it can", CheckSaysWhatItCan},
    {"moves exactly", CheckMovesExactly},
    {"has nothing to do", CheckNothingToDo},
    {"serves many threads", CheckManyThreads},
    {"holds know their buffers", CheckHolds},
    {"a hold outlives a replacement", CheckAHoldOutlivesAReplacement},
    {"a fence comes once", CheckFence},
    {"goes on after a failure", CheckGoesOnAfterAFailure},
    {"bytes go there and back within the limits", CheckThereAndBack},
    {"what does not fit is refused", CheckRefusesWhatDoesNotFit},
    {"gone buffers fail the job", CheckGoneBuffersFailTheJob},
    {"a failure is reported", CheckAFailureIsReported},
    {"loads need a window where buffers are replaced", CheckLoadsNeedAWindow},
    {"windows and steps lose nothing", CheckWindowsLoseNothing},
    {"stores wait for the step", CheckStoresWaitForTheStep},
    {"holds end with their jobs", CheckHoldsEndWithTheirJobs},
};

// Each check on a device of its own.
inline void RunKit(const std::function<std::unique_ptr<KitDevice>()>& make) {
  for (const NamedKitCheck& check : kKitChecks) {
    std::fprintf(stderr, "    %s\n", check.name);
    check.run(make().get());
  }
}

// For devices whose memory has addresses.
struct BackendKit {
  AddressedDevice::MakeBackend make_backend;
  AddressedDevice::MakeMemory make_memory;
};
inline void RunBackendKit(const BackendKit& kit) {
  RunKit([&] { return std::make_unique<AddressedDevice>(kit.make_backend, kit.make_memory); });
}

}  // namespace tpu_sync_native::testing
