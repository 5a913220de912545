// Fences of the CUDA backend over a fake driver: what an engine had launched is waited for, by nobody's
// thread.
#include <condition_variable>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "cuda/cuda_backend.h"
#include "cuda_library.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kBytes = 4096;

// An engine with a stream of its own, whose steps write the device's memory when a test lets them.
struct Engine {
  Engine() {
    library->fake()->Reset();
    CHECK(backend->RegisterArena(arena.data(), kBytes));
  }
  ~Engine() {
    library->AwaitStream(stream);
    library->DestroyStream(stream);
    library->Free(device);
  }

  // Writes `value` everywhere, once FinishSteps was called.
  void LaunchStep(uint8_t value) {
    library->fake()->Launch(stream, [this, value] {
      may_end.get_future().wait();
      std::memset(library->fake()->Memory(device), value, kBytes);
    });
  }
  void FinishSteps() { may_end.set_value(); }
  std::shared_ptr<CopyHold> Fence() { return backend->Fence(reinterpret_cast<uint64_t>(stream)); }
  bool Store(const CopyHold* hold) {
    const CopyExtent all{device, arena.data(), kBytes};
    return backend->Copy(CopyDirection::kStore, {&all, 1}, hold);
  }

  std::shared_ptr<CudaLibrary> library = std::make_shared<CudaLibrary>(FAKE_CUDA);
  cuda::DevicePtr device = library->Allocate(kBytes);
  cuda::Stream stream = library->MakeStream();
  std::promise<void> may_end;
  std::vector<uint8_t> arena = std::vector<uint8_t>(kBytes);
  std::shared_ptr<CopyBackend> backend = MakeCudaBackend({.library = FAKE_CUDA});
};

TEST(AStoreThatWaitsReadsWhatTheStepWrote) {
  Engine engine;
  engine.LaunchStep(9);
  const auto fence = engine.Fence();
  CHECK(fence != nullptr && !fence->Ready());
  engine.FinishSteps();
  while (!fence->Ready()) std::this_thread::yield();
  CHECK(engine.Store(fence.get()));
  CHECK(engine.arena == std::vector<uint8_t>(kBytes, 9));
}

// Why there are fences: the copy's stream does not wait for the engine's.
TEST(AStoreThatDoesNotWaitReadsTooEarly) {
  Engine engine;
  engine.LaunchStep(9);
  CHECK(engine.Store(nullptr));
  CHECK(engine.arena == std::vector<uint8_t>(kBytes, 0));
  engine.FinishSteps();
}

TEST(TheDriverCallsBackOnceTheStepIsDone) {
  Engine engine;
  engine.LaunchStep(9);
  const auto fence = engine.Fence();
  std::promise<std::thread::id> called;
  fence->OnReady([&] { called.set_value(std::this_thread::get_id()); });
  auto by = called.get_future();
  CHECK(by.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  CHECK(!fence->Ready());
  engine.FinishSteps();
  CHECK(by.get() != std::this_thread::get_id());
  CHECK(fence->Ready());
}

TEST(WhatIsLaunchedLaterIsNotWaitedFor) {
  Engine engine;
  const auto fence = engine.Fence();
  engine.LaunchStep(9);
  while (!fence->Ready()) std::this_thread::yield();
  CHECK(engine.Store(fence.get()));
  engine.FinishSteps();
}

TEST(AFenceThatIsGoneMayStillBeCalled) {
  Engine engine;
  engine.LaunchStep(9);
  std::promise<void> called;
  engine.Fence()->OnReady([&] { called.set_value(); });
  engine.FinishSteps();
  called.get_future().wait();
}

TEST(AStreamThatIsNoneIsRefused) {
  Engine engine;
  int no_stream = 0;
  CHECK(engine.backend->Fence(reinterpret_cast<uint64_t>(&no_stream)) == nullptr);
  CHECK(!engine.backend->last_error().empty());
  CHECK(engine.Fence() != nullptr);  // the device goes on
}

// A callback that cannot be had must not open the fence.
TEST(AFenceStaysShutWhenTheDriverWillNotCallBack) {
  Engine engine;
  engine.LaunchStep(9);
  const auto fence = engine.Fence();
  engine.library->fake()->FailOnce("cuLaunchHostFunc", cuda::kOutOfMemory);
  bool called = false;
  fence->OnReady([&] { called = true; });
  CHECK(!called && !fence->Ready());
  engine.FinishSteps();
  while (!fence->Ready()) std::this_thread::yield();
}

TEST(ALostContextOpensTheFenceAndFailsTheCopy) {
  Engine engine;
  engine.LaunchStep(9);
  const auto fence = engine.Fence();
  engine.library->fake()->BreakContext(cuda::kIllegalAddress);
  CHECK(fence->Ready());
  bool called = false;
  fence->OnReady([&] { called = true; });
  CHECK(called);
  CHECK(!engine.Store(fence.get()));
  engine.FinishSteps();
  engine.library->fake()->Reset();
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
