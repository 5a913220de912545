// A real store with a tier below that the test plays, and a copy engine on the shared index: loads whose
// chunks come up one by one.

#include <cstring>
#include <numeric>

#include "client/index_guard.h"
#include "copy_fakes.h"
#include "fake_lower_tier.h"

namespace tpu_sync_native::testing {
namespace {

constexpr double kLongS = 60;
constexpr uint32_t kChunkBytes = 4096;
constexpr uint32_t kChunks = 12;

struct World : StoreFixture {
  World() {
    store->SetLowerTier(&below);
    below.Put(ns, 0, kChunks);
    Put(0, 2);  // two are here
    std::memset(arena->data(), 'h', arena->bytes());
    engine = std::make_unique<CopyEngine>(CopyEngineOptions{.threads = 1,
                                                            .arena = reinterpret_cast<uint8_t*>(map->data()),
                                                            .arena_bytes = map->data_bytes(),
                                                            .guard = std::make_shared<IndexGuard>(map, lost),
                                                            .backend = backend,
                                                            .ready_deadline_ms = 3'600'000});
    layout = engine->AddLayout(
        {{{reinterpret_cast<uint64_t>(device.data()), kChunkBytes, kChunkBytes}}, kChunks, 1, 0});
  }

  void Load(uint64_t job, const ReadGrant& grant) {
    const auto count = grant.slots.size();
    const std::vector<int64_t> layouts = {layout};
    const std::vector<int64_t> sizes = {static_cast<int64_t>(count)};
    std::vector<int64_t> blocks(count);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::vector<uint32_t> slots, generations;
    std::vector<uint64_t> offsets;
    for (const SlotRef& ref : grant.slots) {
      slots.push_back(ref.slot);
      generations.push_back(ref.generation);
      offsets.push_back(ref.offset);
    }
    engine->Submit({job, CopyDirection::kLoad, layouts, sizes, blocks, blocks, slots, generations, offsets});
  }
  // The tier has read the chunk.
  void Arrive(const SlotRef& ref, char byte) {
    std::memset(arena->data() + ref.offset, byte, kChunkBytes);
    store->EndPromotes({&ref, 1}, Store::PromoteEnd::kReadable);
  }
  bool OnDevice(uint32_t chunk, char byte) const {
    return std::all_of(device.begin() + chunk * kChunkBytes, device.begin() + (chunk + 1) * kChunkBytes,
                       [&](uint8_t one) { return one == static_cast<uint8_t>(byte); });
  }
  CopyCompletion Finish(uint64_t job) {
    CHECK(engine->Wait(std::vector<uint64_t>{job}, kLongS));
    const auto done = engine->Poll();
    CHECK(done.size() == 1 && done[0].job == job);
    return done[0];
  }

  FakeLowerTier below;
  std::vector<uint8_t> device = std::vector<uint8_t>(kChunks * kChunkBytes);
  std::shared_ptr<const ArenaMap> map = std::make_shared<const ArenaMap>(data_file.fd(), meta_file.fd());
  std::shared_ptr<std::atomic<Lost>> lost = std::make_shared<std::atomic<Lost>>(Lost::kNo);
  std::shared_ptr<GatedBackend> backend = std::make_shared<GatedBackend>();
  std::unique_ptr<CopyEngine> engine;
  int layout = 0;
};

}  // namespace

TEST(ALoadFollowsThePromotesOfItsLease) {
  World world;
  const ReadGrant grant = world.store->Lease(1, world.ns, Range(0, kChunks).batch());
  CHECK(grant.slots.size() == kChunks);
  world.Load(1, grant);
  world.backend->AwaitBatches(1);
  CHECK(world.OnDevice(0, 'h') && world.OnDevice(1, 'h') && world.OnDevice(2, 0));
  for (uint32_t i = 2; i < kChunks; ++i) {
    world.Arrive(grant.slots[i], static_cast<char>('a' + i));
    world.backend->AwaitBatches(i);  // on the device before the chunk behind it is here
    CHECK(world.OnDevice(i, static_cast<char>('a' + i)));
  }
  const CopyCompletion done = world.Finish(1);
  CHECK(done.ok && done.chunks_valid == kChunks && done.bytes == kChunks * kChunkBytes);
}

TEST(ALostPromoteIsAFailedLoad) {
  World world;
  const ReadGrant grant = world.store->Lease(1, world.ns, Range(0, kChunks).batch());
  world.Load(1, grant);
  for (uint32_t i = kChunks; i-- > 2;) {
    if (i == 5) {
      world.store->EndPromotes({&grant.slots[5], 1}, Store::PromoteEnd::kLostBusy);
    } else {
      world.Arrive(grant.slots[i], 'x');
    }
  }
  const CopyCompletion done = world.Finish(1);
  CHECK(!done.ok && done.chunks_valid == 5 && world.OnDevice(4, 'x') && world.OnDevice(5, 0));
  world.store->EndPromotes({&grant.slots[5], 1}, Store::PromoteEnd::kGone);
  world.store->Release(1, grant.lease);
  world.CheckNothingHeld();
}

TEST(ABrokenSessionWaitsForNothing) {
  World world;
  const ReadGrant grant = world.store->Lease(1, world.ns, Range(0, kChunks).batch());
  world.Load(1, grant);
  world.backend->AwaitBatches(1);
  *world.lost = Lost::kMarked;
  const CopyCompletion done = world.Finish(1);  // of hours that it might have waited
  CHECK(!done.ok && done.chunks_valid == 2);
}

TEST(AClearedNamespaceEndsTheLoadWithItsPromotes) {
  World world;
  const ReadGrant grant = world.store->Lease(1, world.ns, Range(0, kChunks).batch());
  world.Load(1, grant);
  world.store->ClearNamespace(world.ns);
  for (uint32_t i = 2; i < kChunks; ++i) world.Arrive(grant.slots[i], 'x');
  CHECK(world.Finish(1).chunks_valid == 2);  // which were here before
  world.store->Release(1, grant.lease);
  world.CheckNothingHeld();
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
