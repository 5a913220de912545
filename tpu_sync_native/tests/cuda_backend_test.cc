// The CUDA backend over a fake driver.
#include "cuda/cuda_backend.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "copy_engine_kit.h"
#include "cuda_library.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kBytes = 1 << 16;

// A device with some memory, a host's arena and the backend between them.
struct World {
  explicit World(bool registered = true) {
    library->fake()->Reset();
    if (!registered) return;
    CHECK(backend->RegisterArena(arena.data(), arena.size()));
  }
  ~World() {
    backend->UnregisterArena(arena.data(), arena.size());
    library->Free(device);
  }

  // In eight extents, none beside another.
  std::vector<CopyExtent> Extents() {
    std::vector<CopyExtent> extents;
    for (uint64_t i = 0; i < 8; ++i) {
      const uint64_t at = i * kBytes / 8;
      extents.push_back({device + at, arena.data() + at, kBytes / 16});
    }
    return extents;
  }
  bool Copy(CopyDirection direction) { return backend->Copy(direction, Extents(), nullptr); }
  FakeCuda& fake() { return *library->fake(); }

  std::shared_ptr<CudaLibrary> library = std::make_shared<CudaLibrary>(FAKE_CUDA);
  cuda::DevicePtr device = library->Allocate(kBytes);
  std::vector<uint8_t> arena = std::vector<uint8_t>(kBytes, 1);
  std::shared_ptr<CopyBackend> backend = MakeCudaBackend({.library = FAKE_CUDA});
};

TEST(SaysWhatItCan) {
  World world;
  const CopyCapabilities& can = world.backend->capabilities();
  CHECK(can.name == "cuda");
  CHECK(can.kernel == "fake GPU, pinned memory, batches");
  CHECK(can.streams && !can.buffers && !can.plain_memory && !can.replaces_buffers && !can.in_order_queue);
  CHECK(can.piece_bytes_max != 0 && can.inflight_bytes_max >= can.piece_bytes_max);
  CHECK(world.backend->last_error().empty());
}

TEST(SaysWhatIsMissing) {
  World world;
  CHECK_THROWS(MakeCudaBackend({.library = "libcuda-of-nobody.so.1"}), "no CUDA driver: libcuda-of-nobody");
  CHECK_THROWS(MakeCudaBackend({.ordinal = 7, .library = FAKE_CUDA}), "device 7: CUDA_ERROR_INVALID_DEVICE");
  world.fake().SetDevices(0);
  CHECK_THROWS(MakeCudaBackend({.library = FAKE_CUDA}), "cuInit: CUDA_ERROR_NO_DEVICE (as told");
  world.fake().SetDevices(1);
  world.fake().FailOnce("cuStreamCreate", cuda::kOutOfMemory, 1);
  const int retained = world.fake().retained_contexts();
  CHECK_THROWS(MakeCudaBackend({.library = FAKE_CUDA}), "cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(world.fake().retained_contexts() == retained);
}

TEST(LeavesNothingBehind) {
  World world;
  const uint64_t streams = world.fake().live_streams();
  const uint64_t events = world.fake().live_events();
  const uint64_t pins = world.fake().pinned_ranges();
  const int retained = world.fake().retained_contexts();
  std::vector<uint8_t> arena(kBytes);
  {
    const auto backend = MakeCudaBackend({.library = FAKE_CUDA});
    CHECK(backend->RegisterArena(arena.data(), kBytes));
    CHECK(world.fake().pinned_ranges() == pins + 1);
    const CopyExtent extent{world.device, arena.data(), kBytes};
    CHECK(backend->Copy(CopyDirection::kStore, {&extent, 1}, nullptr));
    const auto fence = backend->Fence(0);
    CHECK(fence != nullptr);
  }
  CHECK(world.fake().live_streams() == streams);
  CHECK(world.fake().live_events() == events);
  CHECK(world.fake().pinned_ranges() == pins);
  CHECK(world.fake().retained_contexts() == retained);
}

TEST(ManyExtentsAreOneCall) {
  World world;
  CHECK(world.Copy(CopyDirection::kStore));
  CHECK(world.fake().calls("cuMemcpyBatchAsync_v2") == 1);
  CHECK(world.fake().calls("cuMemcpyDtoHAsync_v2") == 0);
}

TEST(WhereTheArenaCannotBePinnedItStillCopies) {
  World world(/*registered=*/false);
  world.fake().RefusePins(true);
  CHECK(world.backend->RegisterArena(world.arena.data(), kBytes));
  const std::string& kernel = world.backend->capabilities().kernel;
  CHECK(kernel.find("through pageable memory: cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY") !=
        std::string::npos);
  CHECK(world.Copy(CopyDirection::kLoad));
  CHECK(world.fake().pageable_copies() == 8);
  CHECK(world.fake().calls("cuMemcpyBatchAsync_v2") == 0);
  CHECK(world.library->Read(world.device, 1)[0] == 1);
}

TEST(NothingLandsAfterTheReturn) {
  World world;
  world.fake().SetCopyTime(2000);
  CHECK(world.Copy(CopyDirection::kLoad));
  CHECK(world.fake().unfinished_copies() == 0);
  world.fake().FailOnce("cuEventRecord", cuda::kOutOfMemory);
  CHECK(!world.Copy(CopyDirection::kStore));
  CHECK(world.fake().unfinished_copies() == 0);
}

TEST(WhatWasGivenIsWaitedForWhenTheRestIsRefused) {
  const auto library = std::make_shared<CudaLibrary>(FAKE_CUDA_OF_BEFORE_BATCHES);
  FakeCuda& fake = *library->fake();
  fake.Reset();
  const auto backend = MakeCudaBackend({.library = FAKE_CUDA_OF_BEFORE_BATCHES});
  std::vector<uint8_t> arena(kBytes);
  CHECK(backend->RegisterArena(arena.data(), kBytes));
  CHECK(backend->capabilities().kernel == "fake GPU, pinned memory");
  const cuda::DevicePtr device = library->Allocate(kBytes);
  const std::vector<CopyExtent> extents = {{device, arena.data(), 8}, {device + 64, arena.data() + 64, 8}};
  fake.SetCopyTime(2000);
  fake.FailOnce("cuMemcpyDtoHAsync_v2", cuda::kInvalidValue, /*after=*/1);
  CHECK(!backend->Copy(CopyDirection::kStore, extents, nullptr));
  CHECK(fake.unfinished_copies() == 0);
  CHECK(backend->last_error() == "cuMemcpyDtoHAsync: CUDA_ERROR_INVALID_VALUE (as told by a fake)");
  CHECK(backend->Copy(CopyDirection::kStore, extents, nullptr));  // no fault of the context: it goes on
  library->Free(device);
}

TEST(AFaultOfTheContextIsForEver) {
  World world;
  const CopyExtent nowhere{uint64_t{1} << 20, world.arena.data(), 8};
  CHECK(!world.backend->Copy(CopyDirection::kStore, {&nowhere, 1}, nullptr));
  const std::string fault = world.backend->last_error();
  CHECK(fault.find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
  const uint64_t copies = world.fake().calls("cuMemcpyDtoHAsync_v2");
  CHECK(!world.Copy(CopyDirection::kStore));
  CHECK(!world.Copy(CopyDirection::kLoad));
  CHECK(world.backend->Fence(0) == nullptr);
  CHECK(world.fake().calls("cuMemcpyDtoHAsync_v2") == copies);
  CHECK(world.backend->last_error() == fault);
  world.fake().Reset();
}

TEST(ACopyUnderWayEndsWithTheContext) {
  World world;
  world.fake().StopCopies(true);
  auto copied = std::async(std::launch::async, [&] { return world.Copy(CopyDirection::kLoad); });
  while (world.fake().unfinished_copies() != 8) std::this_thread::yield();
  world.fake().BreakContext(cuda::kIllegalAddress);
  CHECK(!copied.get());
  world.fake().Reset();
}

TEST(TheCallersContextAndModeStayAsTheyWere) {
  World world;
  const size_t before = world.fake().contexts_of_this_thread();
  CHECK(world.Copy(CopyDirection::kLoad));
  const auto fence = world.backend->Fence(0);
  CHECK(fence != nullptr);
  fence->Ready();
  world.fake().FailOnce("cuMemcpyBatchAsync_v2", cuda::kInvalidValue);
  CHECK(!world.Copy(CopyDirection::kLoad));
  CHECK(world.fake().contexts_of_this_thread() == before);
  CHECK(!world.fake().this_thread_is_relaxed());
}

TEST(AGraphThatAnotherThreadCapturesIsNotSpoiled) {
  World world;
  world.fake().CaptureElsewhere(true);
  {
    const cuda::CurrentContext current(world.library->driver(), world.library->context());
    int mode = 0;  // as a thread is that does not ask for less
    world.library->driver().call().ThreadExchangeStreamCaptureMode(&mode);
    cuda::Event event = nullptr;
    CHECK(world.library->driver().call().EventCreate(&event, 0) == cuda::kSuccess);
    CHECK(world.library->driver().call().EventQuery(event) == cuda::kCaptureUnsupported);
    world.library->driver().call().EventDestroy(event);
    world.library->driver().call().ThreadExchangeStreamCaptureMode(&mode);
  }
  CHECK(world.Copy(CopyDirection::kLoad));
  const auto fence = world.backend->Fence(0);
  CHECK(fence != nullptr);
  while (!fence->Ready()) std::this_thread::yield();
  CHECK(world.backend->last_error().empty());
}

TEST(ThreadsCopyBesideOneAnother) {
  World world;
  constexpr int kThreads = 4;
  const uint64_t share = kBytes / kThreads;
  const std::vector<uint8_t> original(kBytes, 7);
  world.library->Write(world.device, original);
  std::vector<std::thread> threads;
  std::atomic<bool> all{true};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, at = i * share] {
      for (int round = 0; round < 50; ++round) {
        const CopyExtent extent{world.device + at, world.arena.data() + at, share};
        const auto direction = round % 2 == 0 ? CopyDirection::kStore : CopyDirection::kLoad;
        if (!world.backend->Copy(direction, {&extent, 1}, nullptr)) all = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(all);
  CHECK(world.arena == original);
  CHECK(world.library->Read(world.device, kBytes) == original);
}

TEST(AForkedChildLeavesTheDriverAlone) {
  World world;
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t before = world.fake().calls("cuMemHostUnregister") +
                            world.fake().calls("cuDevicePrimaryCtxRelease_v2") +
                            world.fake().calls("cuCtxPushCurrent_v2");
    world.backend.reset();
    const uint64_t after = world.fake().calls("cuMemHostUnregister") +
                           world.fake().calls("cuDevicePrimaryCtxRelease_v2") +
                           world.fake().calls("cuCtxPushCurrent_v2");
    std::_Exit(before == after ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
