// One daemon's life in a simulation: its store and its storage tier, with all their threads, on an arena that
// outlives it.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "memory_files.h"
#include "restart_fixture.h"
#include "sim/weather.h"
#include "storage/storage_tier.h"

namespace tpu_sync_native::testing {

// A namespace that every host has open.
struct SimSpace {
  const char* id;
  uint64_t chunk_bytes;
};
inline constexpr SimSpace kSpaces[] = {{"namespace-sim-00", 4096}, {"namespace-sim-01", 6000}};
inline constexpr uint32_t kSpaceCount = 2;

// What all hosts of a run have in common.
struct SimShape {
  uint64_t slabs = 6, slab_bytes = 32 << 10;
  std::string policy = "lru";
  uint64_t lease_ms = 600'000;
  StorageOptions storage;
};

inline SimShape DrawShape(Schedule& run) {
  SimShape shape;
  shape.policy = run.Draw(2) == 0 ? "lru" : "s3fifo";
  StorageOptions& storage = shape.storage;
  storage.segment_bytes = 64 << 10;
  storage.io_bytes = 32 << 10;
  storage.records_max = 4096;
  storage.load_threads = static_cast<uint32_t>(1 + run.Draw(2));
  storage.store_threads = static_cast<uint32_t>(1 + run.Draw(2));
  storage.demote_queue_bytes = 256 << 10;
  storage.promote_queue_bytes = 128 << 10;
  storage.sync_ms = 200;
  storage.sync_bytes = 64 << 10;
  storage.dead_after_ms = 10'000;
  storage.copy_forward_share = 0.6;  // segments are small: less would be no chunk
  storage.quota_bytes = run.Draw(2) == 0 ? 0 : 512 << 10;
  return shape;
}

class Life {
 public:
  // keep: the arena and `meta_file` are those of the daemon before.
  Life(Schedule& run, const SimShape& shape, const std::shared_ptr<MemoryFiles>& medium,
       const Weather& weather, const MemFile& data_file, std::unique_ptr<MemFile> its_meta_file,
       const uint8_t host_id[16], uint64_t boot_id, bool keep)
      : door(std::make_shared<Door>(run, weather)), meta_file(std::move(its_meta_file)) {
    arena = std::make_shared<Arena>(data_file.fd(), shape.slabs * shape.slab_bytes, shape.slab_bytes);
    arena->Populate();
    StoreOptions options;
    options.boot_id = boot_id;
    options.policy = shape.policy;
    options.lease_ms = shape.lease_ms;
    options.slots_max = static_cast<uint32_t>(arena->bytes() / 4096);
    options.keep = keep;
    if (keep) {
      CHECK(Store::WhyNotKept(data_file.fd(), arena->bytes(), arena->slab_bytes(), meta_file->fd(),
                              options) == "");
    }
    store = std::make_unique<Store>(arena, meta_file->fd(), options);
    meta = Mapping(meta_file->fd(), FileBytes(meta_file->fd(), "meta"), Mapping::Access::kRead, "meta");
    reader = std::make_unique<IndexReader>(meta.data(), meta.bytes());
    StorageOptions storage = shape.storage;
    std::memcpy(storage.host_id, host_id, sizeof(storage.host_id));
    storage.boot_id = boot_id;
    tier = std::make_unique<StorageTier>(Through(door, medium), *store, arena, catalog_file.fd(), storage);
  }
  ~Life() {
    door->Shut();  // whatever has not reached the medium by now does not
    tier->Stop(0);
  }

  std::string StateOf(uint32_t ns) const {
    for (const auto& state : tier->Namespaces()) {
      if (state.ns == ns) return state.state;
    }
    return "";
  }
  uint64_t Stat(std::string_view name) const {
    for (const Counter& counter : store->Stats()) {
      if (counter.name == name) return counter.value;
    }
    Fail(__FILE__, __LINE__, "no such counter:", std::string(name));
  }
  void CheckSound() const {
    const std::vector<std::string> findings = store->Audit();
    for (const std::string& finding : findings) std::fprintf(stderr, "audit: %s\n", finding.c_str());
    CHECK(findings.empty());
  }
  void Print() const {
    for (const auto& counters : {store->Stats(), tier->Stats()}) {
      for (const Counter& counter : counters) {
        if (counter.value == 0) continue;
        std::fprintf(stderr, "  %.*s %llu\n", static_cast<int>(counter.name.size()), counter.name.data(),
                     static_cast<unsigned long long>(counter.value));
      }
    }
    std::fprintf(stderr, "  %s\n", tier->state().c_str());
    for (const auto& state : tier->Namespaces()) std::fprintf(stderr, "  %s\n", state.state.c_str());
  }

  const std::shared_ptr<Door> door;
  std::unique_ptr<MemFile> meta_file;
  MemFile catalog_file{"catalog"};
  std::shared_ptr<Arena> arena;
  std::unique_ptr<Store> store;
  Mapping meta;
  std::unique_ptr<IndexReader> reader;
  std::unique_ptr<StorageTier> tier;
};

}  // namespace tpu_sync_native::testing
