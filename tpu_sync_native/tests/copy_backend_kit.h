// What every copy backend must do, whatever its device memory is. A backend's test gives a factory for the
// backend and for memory on its device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "copy/backend.h"

namespace tpu_sync_native::testing {

// Device memory of one test: reading and writing go around the backend.
struct DeviceMemory {
  uint64_t address = 0;
  std::function<std::vector<uint8_t>()> read;
  std::function<void(std::span<const uint8_t>)> write;
};

struct BackendKit {
  std::function<std::shared_ptr<CopyBackend>()> make_backend;
  std::function<DeviceMemory(uint64_t bytes)> make_memory;
};

inline std::vector<uint8_t> RandomBytes(uint64_t bytes, std::mt19937_64* random) {
  std::vector<uint8_t> data(bytes);
  for (auto& byte : data) byte = static_cast<uint8_t>((*random)());
  return data;
}

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

// Moves exactly the extents' bytes, both ways, and touches nothing beside them.
inline void CheckMovesExactly(const BackendKit& kit, uint64_t seed) {
  std::mt19937_64 random(seed);
  constexpr uint64_t kBytes = 1 << 20;
  const auto backend = kit.make_backend();
  const DeviceMemory memory = kit.make_memory(kBytes);
  std::vector<uint8_t> arena = RandomBytes(kBytes, &random);
  CHECK(backend->RegisterArena(arena.data(), kBytes));
  const std::vector<uint8_t> on_device = RandomBytes(kBytes, &random);
  memory.write(on_device);
  const auto extents =
      RandomExtents(memory.address, arena.data(), kBytes, backend->capabilities().alignment_bytes, &random);
  CHECK(!extents.empty());

  std::vector<uint8_t> expected = arena;
  for (const CopyExtent& extent : extents) {
    std::copy_n(on_device.begin() + (extent.device - memory.address), extent.bytes,
                expected.begin() + (extent.arena - arena.data()));
  }
  CHECK(backend->Copy(CopyDirection::kStore, extents, nullptr));
  CHECK(arena == expected);
  CHECK(memory.read() == on_device);

  const std::vector<uint8_t> fresh = RandomBytes(kBytes, &random);
  std::copy(fresh.begin(), fresh.end(), arena.begin());
  expected = on_device;
  for (const CopyExtent& extent : extents) {
    std::copy_n(fresh.begin() + (extent.arena - arena.data()), extent.bytes,
                expected.begin() + (extent.device - memory.address));
  }
  CHECK(backend->Copy(CopyDirection::kLoad, extents, nullptr));
  CHECK(memory.read() == expected);
  CHECK(arena == fresh);
}

inline void CheckNothingToDo(const BackendKit& kit) {
  CHECK(kit.make_backend()->Copy(CopyDirection::kStore, {}, nullptr));
  CHECK(kit.make_backend()->Copy(CopyDirection::kLoad, {}, nullptr));
}

inline void CheckNamesItself(const BackendKit& kit) {
  const auto backend = kit.make_backend();
  CHECK(!backend->capabilities().name.empty());
  CHECK(backend->capabilities().alignment_bytes >= 1);
}

inline void RunBackendKit(const BackendKit& kit) {
  CheckNamesItself(kit);
  CheckNothingToDo(kit);
  for (uint64_t seed = 1; seed <= 8; ++seed) CheckMovesExactly(kit, seed);
}

}  // namespace tpu_sync_native::testing
