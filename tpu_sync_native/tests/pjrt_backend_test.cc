// The PJRT backend over the test plugin: holds, fences, copies, faults of every call.
#include "pjrt/pjrt_backend.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "copy_backend_kit.h"
#include "pjrt_host.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kBytes = 256 * 1024;

PjrtHost& Plugin() { return PjrtHost::Get(); }

PjrtOptions OverPlugin() {
  PjrtOptions options;
  options.api = reinterpret_cast<uint64_t>(Plugin().api());
  options.client = reinterpret_cast<uint64_t>(Plugin().client());
  return options;
}

bool Has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

constexpr uint64_t At(uint64_t ordinal, uint64_t offset) { return (ordinal << kDeviceBufferShift) + offset; }

// Two buffers of random bytes, an arena, a backend that has registered it.
struct World {
  std::mt19937_64 random{11};
  std::vector<uint8_t> bytes[2] = {RandomBytes(kBytes, &random), RandomBytes(kBytes, &random)};
  std::vector<uint64_t> buffers{Plugin().MakeBuffer(bytes[0]), Plugin().MakeBuffer(bytes[1])};
  std::vector<uint8_t> arena = std::vector<uint8_t>(2 * kBytes);
  std::shared_ptr<CopyBackend> backend;

  explicit World(const PjrtOptions& options = OverPlugin()) : backend(MakePjrtBackend(options)) {
    CHECK(backend->RegisterArena(arena.data(), arena.size()));
  }
  ~World() {
    backend->UnregisterArena(arena.data(), arena.size());
    for (const uint64_t buffer : buffers) Plugin().Destroy(buffer);
  }

  std::vector<CopyExtent> Whole() {
    return {{At(0, 0), arena.data(), kBytes}, {At(1, 0), arena.data() + kBytes, kBytes}};
  }
  bool Holds(size_t buffer) const {
    return std::equal(bytes[buffer].begin(), bytes[buffer].end(), arena.begin() + buffer * kBytes);
  }
  bool StoreAll(const CopyHold* hold) { return backend->Copy(CopyDirection::kStore, Whole(), hold); }
};

void NothingIsLeft() {
  for (const char* count : {"aliases", "events", "errors", "maps"}) {
    if (Plugin().Ask(count) == 0) continue;
    Fail(__FILE__, __LINE__, count, "are left: " + std::to_string(Plugin().Ask(count)));
  }
}

TEST(SaysWhatItCan) {
  {
    World world;
    const CopyCapabilities& can = world.backend->capabilities();
    CHECK(can.name == "pjrt");
    CHECK(can.buffers && can.replaces_buffers && !can.plain_memory);
    CHECK(!can.in_order_queue);
    CHECK(can.alignment_bytes == 1);
    CHECK(can.piece_bytes_max == 16 << 20);
    CHECK(can.inflight_bytes_max == 64 << 20);
    CHECK(Has(can.kernel, "RawBuffer of PJRT 0."));
    CHECK(Has(can.kernel, "arena mapped"));
    CHECK(Plugin().Ask("maps") == 1);
  }
  NothingIsLeft();
}

TEST(ATpuHasOneQueueAndTiles) {
  Plugin().Set("tpu", 1);
  const std::shared_ptr<CopyBackend> known = MakePjrtBackend(OverPlugin());
  CHECK(known->capabilities().in_order_queue);
  CHECK(known->capabilities().alignment_bytes == 4096);
  PjrtOptions told = OverPlugin();
  told.in_order_queue = false;
  told.alignment_bytes = 512;
  CHECK(!MakePjrtBackend(told)->capabilities().in_order_queue);
  CHECK(MakePjrtBackend(told)->capabilities().alignment_bytes == 512);
  PjrtOptions unknown = OverPlugin();
  unknown.client = 0;
  CHECK(!MakePjrtBackend(unknown)->capabilities().in_order_queue);
  Plugin().Set("tpu", 0);
}

TEST(OpensThePluginByItsPath) {
  Plugin();
  PjrtOptions options;
  options.library = PjrtHost::path();
  World world(options);
  CHECK(Has(world.backend->capabilities().kernel, "not mapped: the client is not known"));
  CHECK(world.StoreAll(world.backend->Hold(world.buffers).get()));
  CHECK(world.Holds(0) && world.Holds(1));
}

TEST(MovesExactly) {
  World world;
  std::mt19937_64 random(5);
  for (int round = 0; round < 6; ++round) {
    std::vector<CopyExtent> extents = RandomExtents(At(1, 0), world.arena.data(), kBytes, 1, &random);
    const std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
    CHECK(hold && hold->Ready());
    std::vector<uint8_t> expected = world.arena;
    for (const CopyExtent& extent : extents) {
      std::copy_n(world.bytes[1].begin() + (extent.device - At(1, 0)), extent.bytes,
                  expected.begin() + (extent.arena - world.arena.data()));
    }
    CHECK(world.backend->Copy(CopyDirection::kStore, extents, hold.get()));
    CHECK(world.arena == expected);

    std::ranges::copy(RandomBytes(world.arena.size(), &random), world.arena.begin());
    for (const CopyExtent& extent : extents) {
      std::copy_n(extent.arena, extent.bytes, world.bytes[1].begin() + (extent.device - At(1, 0)));
    }
    CHECK(world.backend->Copy(CopyDirection::kLoad, extents, hold.get()));
    CHECK(std::ranges::equal(Plugin().MemoryOf(world.buffers[1]), world.bytes[1]));
    CHECK(std::ranges::equal(Plugin().MemoryOf(world.buffers[0]), world.bytes[0]));
  }
}

TEST(OutsideABufferNothingMoves) {
  World world;
  const std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
  const int64_t before = Plugin().Ask("copies_to_host");
  const CopyExtent good{At(0, 0), world.arena.data(), 1024};
  for (const CopyExtent& bad :
       {CopyExtent{At(0, kBytes - 1023), world.arena.data() + 4096, 1024},
        CopyExtent{At(2, 0), world.arena.data() + 4096, 1}, CopyExtent{At(1, 1), world.arena.data(), kBytes},
        CopyExtent{At(0, 1), world.arena.data(), UINT64_MAX}}) {
    CHECK(!world.backend->Copy(CopyDirection::kStore, std::vector{good, bad}, hold.get()));
    CHECK(Has(world.backend->last_error(), "are outside buffer"));
  }
  CHECK(!world.backend->Copy(CopyDirection::kStore, std::vector{good}, nullptr));
  CHECK(Plugin().Ask("copies_to_host") == before);
  CHECK(world.backend->Copy(CopyDirection::kStore, std::vector{good}, hold.get()));
}

TEST(AHoldOutlivesTheBuffers) {
  World world;
  const std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
  const std::vector<uint8_t> old = world.bytes[0];
  for (uint64_t& buffer : world.buffers) buffer = Plugin().Replace(buffer);
  std::ranges::fill(Plugin().MemoryOf(world.buffers[0]), 0xee);
  CHECK(world.StoreAll(hold.get()));
  CHECK(world.Holds(0) && world.Holds(1));
  CHECK(Plugin().Ask("aliases") == 2);
}

TEST(ADeletedBufferIsNotHeld) {
  World world;
  Plugin().Delete(world.buffers[1]);
  CHECK(world.backend->Hold(world.buffers) == nullptr);
  CHECK(Has(world.backend->last_error(), "buffer 1: the buffer is deleted"));
  CHECK(world.backend->Hold(std::vector<uint64_t>{0}) == nullptr);
  CHECK(Plugin().Ask("aliases") == 0);
  CHECK(world.backend->Hold(std::span(world.buffers).first(1)) != nullptr);
}

TEST(TheFenceIsTheReadyEvent) {
  World world;
  Plugin().Set("ready_gate", 1);
  std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
  CHECK(!hold->Ready());
  std::atomic<int> told{0};
  hold->OnReady([&told] { ++told; });
  CHECK(told == 0);
  // The step's bytes come while the hold waits.
  std::ranges::fill(Plugin().MemoryOf(world.buffers[0]), 0x5a);
  std::ranges::fill(world.bytes[0], 0x5a);
  Plugin().Set("ready_gate", 0);
  CHECK(told == 1);
  CHECK(hold->Ready());
  hold->OnReady([&told] { ++told; });
  CHECK(told == 2);
  CHECK(world.StoreAll(hold.get()));
  CHECK(world.Holds(0) && world.Holds(1));
  CHECK(Plugin().Ask("unready") == 0);
}

// Who takes a hold is about to launch a step, and never waits for the one before.
TEST(AFenceThatCannotBeAskedIsNoHold) {
  {
    World world;
    for (const int64_t nth : {1, 2}) {
      Plugin().Set("ready_gate", 1);
      Plugin().Set("fail:PJRT_Event_OnReady", nth);
      std::atomic<bool> returned{false};
      std::shared_ptr<CopyHold> hold;
      std::thread taking([&] {
        hold = world.backend->Hold(world.buffers);
        returned = true;
      });
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!returned && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      const bool waited = !returned;
      Plugin().Set("ready_gate", 0);
      taking.join();
      CHECK(!waited && hold == nullptr);
      CHECK(Has(world.backend->last_error(), "PJRT_Event_OnReady: refused on purpose"));
      CHECK(Plugin().Ask("aliases") == 0);
      CHECK(world.backend->Hold(world.buffers) != nullptr);
    }
  }
  NothingIsLeft();
}

TEST(AHoldMayGoBeforeItIsReady) {
  World world;
  Plugin().Set("ready_gate", 1);
  std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
  const auto told = std::make_shared<std::atomic<int>>(0);
  hold->OnReady([told] { ++*told; });
  hold.reset();
  CHECK(Plugin().Ask("aliases") == 0);
  Plugin().Set("ready_gate", 0);
  CHECK(*told <= 1);
}

TEST(BuffersOfAFailedStepAreNotCopied) {
  World world;
  Plugin().Set("fail:ready", 2);
  const std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
  CHECK(hold && hold->Ready());
  const int64_t before = Plugin().Ask("copies_to_host");
  CHECK(!world.StoreAll(hold.get()));
  CHECK(Has(world.backend->last_error(), "the launch failed on purpose"));
  CHECK(Plugin().Ask("copies_to_host") == before);
}

// Returns only when the last byte has landed, also when one has failed before.
TEST(ACopyWaitsForAllItsEvents) {
  World world;
  const std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
  for (const int64_t fault : {0, 1, 2}) {
    std::ranges::fill(world.arena, 0);
    Plugin().Set("queue_gate", 1);
    Plugin().Set("fail:copy", fault);
    const int64_t before = Plugin().Ask("copies_to_host");
    std::atomic<bool> returned{false};
    bool ok = false;
    std::thread copying([&] {
      ok = world.StoreAll(hold.get());
      returned = true;
    });
    while (Plugin().Ask("copies_to_host") != before + 2) std::this_thread::yield();
    CHECK(!returned);
    Plugin().Set("queue_gate", 0);
    copying.join();
    CHECK(ok == (fault == 0));
    CHECK(world.Holds(0) == (fault != 1) && world.Holds(1) == (fault != 2));
    if (fault != 0) CHECK(Has(world.backend->last_error(), "the copy failed on purpose"));
  }
}

// An error of each call in turn: said, nothing kept, and the next time it works.
TEST(AnyCallMayFail) {
  const std::vector<const char*> in_hold{"PJRT_Buffer_IsDeleted", "PJRT_Buffer_OnDeviceSizeInBytes",
                                         "PJRT_RawBuffer_CreateRawAliasOfBuffer", "PJRT_Buffer_ReadyEvent"};
  {
    World world;
    for (const char* call : in_hold) {
      for (const int64_t nth : {1, 2}) {
        Plugin().Set((std::string("fail:") + call).c_str(), nth);
        CHECK(world.backend->Hold(world.buffers) == nullptr);
        CHECK(Has(world.backend->last_error(), call));
        CHECK(Has(world.backend->last_error(), "refused on purpose"));
        CHECK(Plugin().Ask("aliases") == 0);
        CHECK(world.backend->Hold(world.buffers) != nullptr);
      }
    }
    const std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
    for (const char* call : {"PJRT_RawBuffer_CopyRawDeviceToHost", "PJRT_Event_OnReady"}) {
      for (const int64_t nth : {1, 2}) {
        Plugin().Set((std::string("fail:") + call).c_str(), nth);
        CHECK(!world.StoreAll(hold.get()));
        CHECK(Has(world.backend->last_error(), call));
        std::ranges::fill(world.arena, 0);
        CHECK(world.StoreAll(hold.get()));
        CHECK(world.Holds(0) && world.Holds(1));
      }
    }
    Plugin().Set("fail:PJRT_RawBuffer_CopyRawHostToDevice", 1);
    CHECK(!world.backend->Copy(CopyDirection::kLoad, world.Whole(), hold.get()));
    // Neither a callback nor waiting: then nobody knows whether the bytes have landed.
    Plugin().Set("fail:PJRT_Event_OnReady", 1);
    Plugin().Set("fail:PJRT_Event_Await", 1);
    CHECK(!world.StoreAll(hold.get()));
    CHECK(Has(world.backend->last_error(), "PJRT_Event_Await: refused on purpose"));
    Plugin().Set("fail:PJRT_RawBuffer_Destroy", 1);  // the last chance is past; only the error must not stay
  }
  NothingIsLeft();
}

TEST(AnArenaThatCannotBeMappedIsCopiedWithoutAndSaidSo) {
  Plugin().Set("fail:PJRT_Client_DmaMap", 1);
  World world;
  CHECK(
      Has(world.backend->capabilities().kernel, "arena not mapped: PJRT_Client_DmaMap: refused on purpose"));
  CHECK(world.StoreAll(world.backend->Hold(world.buffers).get()));
  CHECK(Plugin().Ask("maps") == 0);
  PjrtOptions off = OverPlugin();
  off.dma_map = false;
  World unmapped(off);
  CHECK(Plugin().Ask("maps") == 0);
  CHECK(unmapped.StoreAll(unmapped.backend->Hold(unmapped.buffers).get()));
}

TEST(OnlyMappedMemoryIsUsedWhereItMustBe) {
  World world;
  Plugin().Set("strict", 1);
  const std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
  CHECK(world.StoreAll(hold.get()));
  std::vector<uint8_t> elsewhere(kBytes);
  CHECK(!world.backend->Copy(CopyDirection::kStore,
                             std::vector{CopyExtent{At(0, 0), elsewhere.data(), kBytes}}, hold.get()));
  CHECK(Has(world.backend->last_error(), "host memory is not mapped"));
  Plugin().Set("strict", 0);
}

TEST(ManyThreadsCopyAtOnce) {
  World world;
  constexpr int kThreads = 4;
  constexpr uint64_t kShare = 2 * kBytes / kThreads;
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(thread);
      const uint64_t begin = thread * kShare;
      for (int round = 0; round < 20; ++round) {
        const std::shared_ptr<CopyHold> hold = world.backend->Hold(world.buffers);
        std::vector<CopyExtent> extents =
            RandomExtents(At(begin / kBytes, begin % kBytes), world.arena.data() + begin, kShare, 1, &random);
        if (!world.backend->Copy(CopyDirection::kStore, extents, hold.get())) ++failed;
        for (const CopyExtent& extent : extents) {
          const uint8_t* source =
              world.bytes[begin / kBytes].data() + extent.device % (1ULL << kDeviceBufferShift);
          if (!std::equal(source, source + extent.bytes, extent.arena)) ++failed;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
}

TEST(NothingIsLeftOver) { NothingIsLeft(); }

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
