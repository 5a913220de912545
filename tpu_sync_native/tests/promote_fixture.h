// A real store above a promoter above segments on a fake medium.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/futex.h"
#include "read_fixture.h"
#include "storage/promoter.h"

namespace tpu_sync_native::testing {

inline constexpr uint64_t kChunk = 4096;
inline constexpr uint64_t kPatienceNs = 20 * kNsPerS;
inline constexpr uint64_t kRecordBytes = kStorageUnit + kChunk;

// What the store sees below it: the catalog, and a promoter.
class Below : public LowerTier {
 public:
  Below(const ReadFixture& world, Promoter& promoter) : world_(world), promoter_(promoter) {}
  uint32_t Find(uint32_t, const KeyBatch& keys, uint32_t first, Location* where) const override {
    const SegmentIdentity identity = MakeIdentity(kChunk);
    for (uint32_t i = first; i < keys.count; ++i) {
      where[i - first] = world_.context->catalog->Find(MakeCatalogKey(identity.namespace_id, keys.at(i)));
      if (where[i - first] == 0) return i - first;
    }
    return keys.count - first;
  }
  bool Promote(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency) override {
    return promoter_.Offer(ns, chunks, urgency);
  }
  void Hurry(std::span<const uint32_t> slots) override { promoter_.Hurry(slots); }
  void Committed(uint32_t, uint32_t, std::span<const uint32_t>) override {}

 private:
  const ReadFixture& world_;
  Promoter& promoter_;
};

// Calls of a hook that wait until the test lets them go.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --waiting_;
  }
  void AwaitWaiting(int count) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return waiting_ >= count; }));
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

struct PromoteWorld : ReadFixture {
  explicit PromoteWorld(const ReadOptions& with = {},
                        const Shape& shape = {.slabs = 8, .slab_bytes = 64 * kChunk})
      : ReadFixture(with), host(shape) {
    const SegmentIdentity identity = MakeIdentity(kChunk);
    space->ns = host.store->OpenNamespace(
        {reinterpret_cast<const char*>(identity.namespace_id), sizeof(identity.namespace_id)}, kChunk);
    std::copy_n(identity.namespace_id, 16, space->id);
    space->chunk_bytes = kChunk;
    space->epoch = identity.epoch;
    space->state = StorageNamespace::State::kReady;
    context->namespaces[space->ns] = space;
    promoter = std::make_unique<Promoter>(context, *host.store, host.arena);
    below = std::make_unique<Below>(*this, *promoter);
    host.store->SetLowerTier(below.get());
    promoter->Start();
  }
  ~PromoteWorld() {
    fake.plan->Release();
    host.store->SetLowerTier(nullptr);
    promoter->Stop(10'000);
  }

  // Chunks first, first + 1, ... in one segment.
  MadeSegment Store(uint64_t first, uint32_t count, uint64_t number) {
    MadeSegment made = NewSegment(number);
    for (uint32_t i = 0; i < count; ++i) made.Add(KeyOf(first + i), PayloadOf(first + i, kChunk));
    segments.push_back(Publish(made));
    return made;
  }
  ReadGrant Lease(uint64_t first, uint32_t count) {
    return host.store->Lease(1, space->ns, Range(first, count).batch());
  }
  Readiness Now(const SlotRef& ref) const {
    const Readiness readiness = host.reader->ReadinessOf(ref.slot, ref.generation);
    // The reader has a mapping of its own. ThreadSanitizer knows the order of words by their address, so it
    // is shown the same order once more, by the store's mutex.
    host.store->Stats();
    return readiness;
  }
  // Leading chunks that are here, as an engine sees them.
  uint32_t Here(uint64_t first, uint32_t count) const {
    return host.reader->LongestPrefix(space->ns, Range(first, count).batch());
  }
  // Until it holds; every end of promotes wakes this.
  void Await(const std::function<bool()>& holds) const {
    const uint64_t deadline_ns = SteadyNs() + kPatienceNs;
    for (;;) {
      const uint32_t ended = host.reader->promotes_ended();
      if (holds()) return;
      CHECK(SteadyNs() < deadline_ns);
      host.reader->AwaitPromotes(ended, deadline_ns);
    }
  }
  Readiness End(const SlotRef& ref) const {
    Await([&] { return Now(ref) != Readiness::kPending; });
    return Now(ref);
  }
  void CheckBytes(const SlotRef& ref, uint64_t number) const {
    const std::string expected = PayloadOf(number, kChunk);
    CHECK(std::memcmp(host.arena->data() + ref.offset, expected.data(), kChunk) == 0);
    CHECK(Now(ref) == Readiness::kReady);
  }
  void Release(const ReadGrant& grant) { CHECK(host.store->Release(1, grant.lease) == Outcome::kOk); }
  void CheckNothingLeft() const {
    Await([&] { return promoter->queued_chunks() == 0; });
    host.CheckNothingHeld();
    CHECK(host.Stat("promoting_slots") == 0);
  }

  StoreFixture host;
  std::shared_ptr<StorageNamespace> space = std::make_shared<StorageNamespace>();
  std::vector<std::shared_ptr<Segment>> segments;
  std::unique_ptr<Promoter> promoter;
  std::unique_ptr<Below> below;
};

}  // namespace tpu_sync_native::testing
