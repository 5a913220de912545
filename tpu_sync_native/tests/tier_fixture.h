// A host: a store on anonymous files, its storage tier on a root that the test gives, and what an engine does
// with them. The bytes of a chunk follow from its key's number, so whatever is read can be judged.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/futex.h"
#include "fake_files.h"
#include "storage/storage_tier.h"
#include "store_fixture.h"

namespace tpu_sync_native::testing {

// Until it holds, looked at again and again; false after 20 s. For what other threads bring about.
inline bool Eventually(const std::function<bool()>& holds) {
  const uint64_t deadline_ns = SteadyNs() + 20 * kNsPerS;
  while (!holds()) {
    if (SteadyNs() > deadline_ns) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Times short enough for a test, a medium that is not taken for hung because the machine is busy.
inline StorageOptions QuickOptions() {
  static uint8_t hosts = 0;
  StorageOptions options;
  options.host_id[0] = ++hosts;
  options.boot_id = hosts;
  options.segment_bytes = 256 << 10;
  options.io_bytes = 64 << 10;
  options.sync_ms = 10;
  options.poll_ms = 20;
  options.heartbeat_ms = 20;
  options.open_late_ms = 3'600'000;
  options.records_max = 10'000;
  options.demote_queue_bytes = 64 << 20;
  options.free_low = options.free_high = 0;  // whatever else lies on the file system of the tests
  return options;
}

class TierHost {
 public:
  static constexpr char kMeta[] = "{\"chunk_bytes\":5000,\"fingerprint\":{\"model\":\"m\"}}\n";
  static constexpr uint64_t kChunkBytes = 5000;  // not a multiple of anything

  explicit TierHost(std::shared_ptr<FileSystem> files, const StorageOptions& options = QuickOptions(),
                    const Shape& shape = {.slabs = 16, .slab_bytes = 64 * 4096})
      : base(shape) {
    tier = std::make_unique<StorageTier>(std::move(files), *base.store, base.arena, catalog.fd(), options);
    ns = base.store->OpenNamespace(kId, kChunkBytes);
  }
  ~TierHost() { tier->Stop(10'000); }

  // The usual beginning; the namespace serves when it returns.
  void Start(const std::string& meta = kMeta, std::optional<Codec> codec = Codec::kRaw, uint64_t told = 0) {
    CHECK(tier->CheckRoot(10'000).empty());
    tier->Start();
    tier->OpenNamespace(ns, kId, kChunkBytes, meta, codec, told);
    CHECK(Eventually([&] { return NamespaceState() == "ready" || NamespaceState().starts_with("apart: "); }));
  }
  // A second namespace, which is opening when this returns.
  uint32_t OpenOther() {
    constexpr char kOther[] = "namespace-other!";
    const uint32_t other = base.store->OpenNamespace(kOther, kChunkBytes);
    tier->OpenNamespace(other, kOther, kChunkBytes, "{}", Codec::kRaw);
    return other;
  }
  void Clear() {
    base.store->ClearNamespace(ns);
    tier->ClearNamespace(ns);
  }
  std::string NamespaceState() const {
    for (const auto& state : tier->Namespaces()) {
      if (state.ns == ns) return state.state;
    }
    return "";
  }
  uint64_t Stat(std::string_view name) const {
    for (const Counter& counter : tier->Stats()) {
      if (counter.name == name) return counter.value;
    }
    Fail(__FILE__, __LINE__, "no such counter:", std::string(name));
  }

  // For a test that failed: what the tier says of itself.
  void Print() const {
    for (const Counter& counter : tier->Stats()) {
      if (counter.value == 0) continue;
      std::fprintf(stderr, "  %.*s %llu\n", static_cast<int>(counter.name.size()), counter.name.data(),
                   static_cast<unsigned long long>(counter.value));
    }
    std::fprintf(stderr, "  %s, namespace %s\n", tier->state().c_str(), NamespaceState().c_str());
  }

  static std::string BytesOf(uint64_t number, uint64_t version) {
    std::string bytes(kChunkBytes, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>((number * 131 + version * 17 + i * 7 + i / 251) & 0xff);
    }
    return bytes;
  }

  // Stores chunks first, first + 1, ... as an engine would; how many were granted.
  uint32_t Put(uint64_t first, uint32_t count, uint64_t version = 0) {
    const Keys keys = Range(first, count);
    const WriteGrant grant = base.store->Reserve(1, ns, keys.batch());
    CHECK(grant.outcome == Outcome::kOk);
    size_t slot = 0;
    for (uint32_t i = 0; i < count; ++i) {
      if (grant.grants[i] != Grant::kGranted) continue;
      std::memcpy(base.arena->data() + grant.slots[slot++].offset, BytesOf(first + i, version).data(),
                  kChunkBytes);
    }
    if (grant.lease != 0) CHECK(base.store->Commit(1, grant.lease) == Outcome::kOk);
    return static_cast<uint32_t>(slot);
  }
  bool Flush() { return tier->Flush(20'000); }
  // Empties DRAM of what is evictable.
  void Forget() { base.store->Evict(ns, UINT64_MAX); }

  // Leases the leading hits, waits for those on their way, compares every byte. How many could be read.
  uint32_t Get(uint64_t first, uint32_t count, uint64_t version = 0) {
    const ReadGrant grant = base.store->Lease(1, ns, Range(first, count).batch());
    CHECK(grant.outcome == Outcome::kOk);
    std::vector<bool> ready;
    for (const SlotRef& ref : grant.slots) ready.push_back(Await(ref) == Readiness::kReady);
    // The reader has a mapping of its own, through which ThreadSanitizer sees no order; the store's mutex it
    // sees.
    base.store->Sessions();
    uint32_t good = 0;
    for (size_t i = 0; i < grant.slots.size(); ++i) {
      if (!ready[i]) continue;
      const std::byte* data = base.arena->data() + grant.slots[i].offset;
      CHECK(std::memcmp(data, BytesOf(first + i, version).data(), kChunkBytes) == 0);
      ++good;
    }
    if (grant.lease != 0) CHECK(base.store->Release(1, grant.lease) == Outcome::kOk);
    return good;
  }
  // Leading keys on storage or here, without a side effect.
  uint32_t Found(uint64_t first, uint32_t count) const {
    return base.store->LongestPrefix(ns, Range(first, count).batch());
  }

  StoreFixture base;
  MemFile catalog{"catalog"};
  std::unique_ptr<StorageTier> tier;
  uint32_t ns = 0;

  static constexpr char kId[] = "namespace-storag";

 private:
  Readiness Await(const SlotRef& ref) const {
    const uint64_t deadline_ns = SteadyNs() + 20 * kNsPerS;
    for (;;) {
      const uint32_t ended = base.reader->promotes_ended();
      const Readiness readiness = base.reader->ReadinessOf(ref.slot, ref.generation);
      if (readiness != Readiness::kPending) return readiness;
      CHECK(SteadyNs() < deadline_ns);
      base.reader->AwaitPromotes(ended, deadline_ns);
    }
  }
};

}  // namespace tpu_sync_native::testing
