// What every copy backend must do, whatever its device memory is. copy_kit_devices.h lists the devices.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "copy/backend.h"
#include "copy/layout.h"

namespace tpu_sync_native::testing {

// A backend, and the device behind it as its owner sees it: his calls go around the backend. What a device
// cannot do for a test it says by false; the check is then left out.
class KitDevice {
 public:
  virtual ~KitDevice() = default;
  virtual std::shared_ptr<CopyBackend> backend() = 0;
  // Memory for so many bytes. What a hold calls it, or, in plain memory, its address.
  virtual uint64_t MakeBuffer(uint64_t bytes) = 0;
  virtual std::vector<uint8_t> Read(uint64_t buffer) = 0;
  virtual void Write(uint64_t buffer, std::span<const uint8_t> bytes) = 0;
  // Where buffers are replaced: launches a step that writes these bytes to the buffer's start; returns what
  // lies in its place then.
  virtual uint64_t Step(uint64_t buffer, std::span<const uint8_t>) { return buffer; }
  // Steps launched from now on do not run before the release.
  virtual bool HoldSteps() { return false; }
  virtual void ReleaseSteps() {}
  // One of the next copies fails.
  virtual bool FailACopy() { return false; }
  virtual bool refuses_other_memory() const { return false; }  // than the registered
};

// Device memory with addresses that last, of one test: reading and writing go around the backend.
struct DeviceMemory {
  uint64_t address = 0;
  std::function<std::vector<uint8_t>()> read;
  std::function<void(std::span<const uint8_t>)> write;
};

// A device whose memory has such addresses.
class AddressedDevice final : public KitDevice {
 public:
  using MakeBackend = std::function<std::shared_ptr<CopyBackend>()>;
  using MakeMemory = std::function<DeviceMemory(uint64_t bytes)>;
  AddressedDevice(MakeBackend make_backend, MakeMemory make_memory)
      : make_backend_(std::move(make_backend)), make_memory_(std::move(make_memory)) {}
  std::shared_ptr<CopyBackend> backend() override { return make_backend_(); }
  uint64_t MakeBuffer(uint64_t bytes) override {
    DeviceMemory memory = make_memory_(bytes);
    const uint64_t address = memory.address;
    memory_.insert_or_assign(address, std::move(memory));
    return address;
  }
  std::vector<uint8_t> Read(uint64_t buffer) override { return memory_.at(buffer).read(); }
  // Of the first bytes.
  void Write(uint64_t buffer, std::span<const uint8_t> bytes) override {
    const DeviceMemory& memory = memory_.at(buffer);
    std::vector<uint8_t> all = memory.read();
    std::ranges::copy(bytes, all.begin());
    memory.write(all);
  }

 private:
  const MakeBackend make_backend_;
  const MakeMemory make_memory_;
  std::map<uint64_t, DeviceMemory> memory_;
};

inline std::vector<uint8_t> RandomBytes(uint64_t bytes, std::mt19937_64* random) {
  std::vector<uint8_t> data(bytes);
  for (uint64_t i = 0; i < bytes; i += sizeof(uint64_t)) {  // by words: sanitizers make calls dear
    const uint64_t word = (*random)();
    std::memcpy(data.data() + i, &word, std::min<uint64_t>(sizeof word, bytes - i));
  }
  return data;
}

// One buffer of a device, an arena, and what moves bytes between them.
struct KitWorld {
  KitWorld(KitDevice* of, uint64_t bytes, uint64_t seed)
      : device(of), backend(of->backend()), random(seed), arena(RandomBytes(bytes, &random)) {
    buffer = device->MakeBuffer(bytes);
    device->Write(buffer, RandomBytes(bytes, &random));
    CHECK(backend->RegisterArena(arena.data(), arena.size()));
  }
  ~KitWorld() { backend->UnregisterArena(arena.data(), arena.size()); }

  bool has_buffers() const { return backend->capabilities().buffers; }
  // Of the buffer as it is now, ready; null in plain memory.
  std::shared_ptr<CopyHold> Hold() const {
    if (!has_buffers()) return nullptr;
    const std::vector<uint64_t> buffers = {buffer};
    std::shared_ptr<CopyHold> hold = backend->Hold(buffers);
    CHECK(hold != nullptr);
    return hold;
  }
  // What starts at `offset` of the buffer.
  CopyExtent Extent(uint64_t offset, uint64_t arena_offset, uint64_t bytes) {
    return {has_buffers() ? offset : buffer + offset, arena.data() + arena_offset, bytes};
  }
  bool Copy(CopyDirection direction, const std::vector<CopyExtent>& extents, const CopyHold* hold) const {
    return backend->Copy(direction, extents, hold);
  }

  KitDevice* const device;
  const std::shared_ptr<CopyBackend> backend;
  std::mt19937_64 random;
  std::vector<uint8_t> arena;
  uint64_t buffer = 0;
};

// Extents of random lengths (every small length, around the thresholds, large) at random, disjoint places.
inline std::vector<CopyExtent> RandomExtents(uint64_t device, uint8_t* arena, uint64_t bytes,
                                             uint64_t alignment, std::mt19937_64* random) {
  std::vector<CopyExtent> extents;
  uint64_t at_device = 0;
  uint64_t at_arena = 0;
  while (true) {
    const uint64_t scale = uint64_t{1} << ((*random)() % 18);
    const uint64_t length = (1 + (*random)() % scale + alignment - 1) / alignment * alignment;
    at_device += (*random)() % 3 * alignment;
    at_arena += (*random)() % 130;
    if (at_device + length > bytes || at_arena + length > bytes) return extents;
    extents.push_back({device + at_device, arena + at_arena, length});
    at_device += length;
    at_arena += length;
  }
}

inline void CheckSaysWhatItCan(KitDevice* device) {
  const auto backend = device->backend();
  const CopyCapabilities& can = backend->capabilities();
  CHECK(!can.name.empty());
  CHECK(can.alignment_bytes >= 1);
  CHECK(!can.replaces_buffers || can.buffers);
  CHECK(!(can.plain_memory && can.buffers));
  if (can.piece_bytes_max != 0) CHECK(can.piece_bytes_max >= can.alignment_bytes);
  if (can.inflight_bytes_max != 0) CHECK(can.inflight_bytes_max >= can.piece_bytes_max);
}

// Moves exactly the extents' bytes, both ways, and touches nothing beside them.
inline void CheckMovesExactlyFrom(KitDevice* device, uint64_t seed) {
  constexpr uint64_t kBytes = 1 << 20;
  KitWorld world(device, kBytes, seed);
  const std::vector<uint8_t> on_device = device->Read(world.buffer);
  const uint64_t base = world.Extent(0, 0, 0).device;
  const auto extents = RandomExtents(base, world.arena.data(), kBytes,
                                     world.backend->capabilities().alignment_bytes, &world.random);
  CHECK(!extents.empty());

  std::vector<uint8_t> expected = world.arena;
  for (const CopyExtent& extent : extents) {
    std::copy_n(on_device.begin() + static_cast<int64_t>(extent.device - base), extent.bytes,
                expected.begin() + (extent.arena - world.arena.data()));
  }
  CHECK(world.Copy(CopyDirection::kStore, extents, world.Hold().get()));
  CHECK(world.arena == expected);
  CHECK(device->Read(world.buffer) == on_device);

  const std::vector<uint8_t> fresh = RandomBytes(kBytes, &world.random);
  std::ranges::copy(fresh, world.arena.begin());
  expected = on_device;
  for (const CopyExtent& extent : extents) {
    std::copy_n(fresh.begin() + (extent.arena - world.arena.data()), extent.bytes,
                expected.begin() + static_cast<int64_t>(extent.device - base));
  }
  CHECK(world.Copy(CopyDirection::kLoad, extents, world.Hold().get()));
  CHECK(device->Read(world.buffer) == expected);
  CHECK(world.arena == fresh);
}

inline void CheckMovesExactly(KitDevice* device) {
  for (uint64_t seed = 1; seed <= 8; ++seed) CheckMovesExactlyFrom(device, seed);
}

inline void CheckNothingToDo(KitDevice* device) {
  KitWorld world(device, 4096, 1);
  const auto arena = world.arena;
  const auto bytes = device->Read(world.buffer);
  for (const auto direction : {CopyDirection::kStore, CopyDirection::kLoad}) {
    CHECK(world.Copy(direction, {}, world.Hold().get()));
    CHECK(world.Copy(direction, {world.Extent(0, 0, 0)}, world.Hold().get()));
  }
  CHECK(world.arena == arena && device->Read(world.buffer) == bytes);
}

inline void CheckManyThreads(KitDevice* device) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kPart = 64 * 1024;
  KitWorld world(device, kThreads * kPart, 5);
  const auto before = device->Read(world.buffer);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> wrong{0};
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto hold = world.Hold();
      for (int round = 0; round < 8; ++round) {
        const std::vector<CopyExtent> part = {
            world.Extent(t * kPart, t * kPart, kPart / 2),
            world.Extent(t * kPart + kPart / 2, t * kPart + kPart / 2, kPart / 2)};
        const bool moved = world.Copy(CopyDirection::kStore, part, hold.get()) &&
                           world.Copy(CopyDirection::kLoad, part, hold.get());
        if (!moved) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(world.arena == before && device->Read(world.buffer) == before);
}

inline void CheckHolds(KitDevice* device) {
  KitWorld world(device, 8192, 6);
  if (!world.has_buffers()) return;
  const std::vector<uint64_t> unknown = {world.buffer, 0};
  CHECK(world.backend->Hold(unknown) == nullptr);
  const uint64_t other = device->MakeBuffer(16384);
  const std::vector<uint64_t> both = {world.buffer, other};
  const auto hold = world.backend->Hold(both);
  CHECK(hold != nullptr);
  CHECK(hold->BufferBytes(0) >= 8192 && hold->BufferBytes(1) >= 16384 && hold->BufferBytes(2) == 0);
  // The second buffer, by its ordinal.
  const std::vector<uint8_t> bytes = RandomBytes(16384, &world.random);
  device->Write(other, bytes);
  CHECK(world.Copy(CopyDirection::kStore, {world.Extent((uint64_t{1} << kDeviceBufferShift) + 8192, 0, 4096)},
                   hold.get()));
  CHECK(std::equal(world.arena.begin(), world.arena.begin() + 4096, bytes.begin() + 8192));
}

// What is held can be read as it was, whatever lies in its place now.
inline void CheckAHoldOutlivesAReplacement(KitDevice* device) {
  KitWorld world(device, 8192, 7);
  if (!world.backend->capabilities().replaces_buffers) return;
  const std::vector<uint8_t> before = device->Read(world.buffer);
  const auto hold = world.Hold();
  const std::vector<uint8_t> after = RandomBytes(8192, &world.random);
  world.buffer = device->Step(world.buffer, after);
  CHECK(world.Copy(CopyDirection::kStore, {world.Extent(0, 0, 8192)}, hold.get()));
  CHECK(world.arena == before);
  CHECK(device->Read(world.buffer) == after);
}

// A hold is ready when the step that writes its buffers has run, and says so once.
inline void CheckFence(KitDevice* device) {
  KitWorld world(device, 8192, 8);
  if (!world.has_buffers() || !device->HoldSteps()) return;
  const std::vector<uint8_t> after = RandomBytes(8192, &world.random);
  world.buffer = device->Step(world.buffer, after);
  auto hold = world.Hold();
  auto dropped = world.Hold();
  CHECK(!hold->Ready());
  struct Told {
    std::atomic<int> first{0}, later{0}, dropped{0};
  };
  const auto told = std::make_shared<Told>();  // shared with calls that may outlast this
  const auto count = [told](std::atomic<int> Told::*which) {
    ++((*told).*which);
    ((*told).*which).notify_all();
  };
  hold->OnReady([count] { count(&Told::first); });
  dropped->OnReady([count] { count(&Told::dropped); });
  dropped.reset();
  CHECK(told->first == 0);
  device->ReleaseSteps();
  told->first.wait(0);
  CHECK(hold->Ready());
  CHECK(world.Copy(CopyDirection::kStore, {world.Extent(0, 0, 8192)}, hold.get()));
  CHECK(world.arena == after);
  hold->OnReady([count] { count(&Told::later); });
  told->later.wait(0);
  CHECK(told->first == 1 && told->later == 1 && told->dropped <= 1);
}

// One extent that fails fails its call, and the next call works.
inline void CheckGoesOnAfterAFailure(KitDevice* device) {
  KitWorld world(device, 8192, 9);
  const std::vector<CopyExtent> halves = {world.Extent(0, 0, 4096), world.Extent(4096, 4096, 4096)};
  if (device->FailACopy()) {
    CHECK(!world.Copy(CopyDirection::kStore, halves, world.Hold().get()));
    CHECK(world.Copy(CopyDirection::kStore, halves, world.Hold().get()));
    CHECK(world.arena == device->Read(world.buffer));
  }
  if (device->refuses_other_memory()) {
    std::vector<uint8_t> other(4096, 0x5a);
    const auto bytes = device->Read(world.buffer);
    const std::vector<CopyExtent> wrong = {{world.Extent(0, 0, 0).device, other.data(), 4096}};
    CHECK(!world.Copy(CopyDirection::kStore, wrong, world.Hold().get()));
    CHECK(!world.Copy(CopyDirection::kLoad, wrong, world.Hold().get()));
    CHECK(other == std::vector<uint8_t>(4096, 0x5a) && device->Read(world.buffer) == bytes);
    CHECK(world.Copy(CopyDirection::kStore, halves, world.Hold().get()));
  }
}

}  // namespace tpu_sync_native::testing
