// An engine's session over two tiers: lookups, leases that reach below, waiting for promotes, prefetches. The
// tier below is a fake that keeps what it is asked for until the test ends it.
#include <atomic>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "client/tier_lookup.h"
#include "ring_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint8_t kId[16] = {'n', 'n', 'n', 'n', 'n', 'n', 'n', 'n', 'n', 'n', 'n', 'n', 'n', 'n', 'n', 'n'};

class FakeTier final : public LowerTier {
 public:
  explicit FakeTier(const Catalog& catalog) : catalog_(catalog) {}

  uint32_t Find(uint32_t, const KeyBatch& keys, uint32_t first, Location* where) const override {
    uint32_t found = 0;
    for (uint32_t i = first; i < keys.count; ++i, ++found) {
      where[i - first] = catalog_.Find(MakeCatalogKey(kId, keys.at(i)));
      if (where[i - first] == 0) break;
    }
    return found;
  }
  bool Promote(uint32_t, std::span<const PromoteChunk> chunks, Urgency urgency) override {
    const std::lock_guard lock(mutex_);
    for (const PromoteChunk& chunk : chunks) asked_.push_back(chunk.ref);
    prefetches_ += urgency == Urgency::kPrefetch;
    return true;
  }
  void Committed(uint32_t, uint32_t, std::span<const uint32_t>) override {}

  std::vector<SlotRef> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(asked_, {});
  }
  uint32_t prefetches() {
    const std::lock_guard lock(mutex_);
    return prefetches_;
  }

 private:
  const Catalog& catalog_;
  std::mutex mutex_;
  std::vector<SlotRef> asked_;
  uint32_t prefetches_ = 0;
};

struct TwoTiers : TestDaemon {
  TwoTiers() : TestDaemon(16u << 20, /*records_max=*/20'000), below(*storage) {
    store->SetLowerTier(&below);
    storage->SetServing(true);
    server->Start();
    session = Attach(1);
  }
  ~TwoTiers() {
    server->Stop();
    store->SetLowerTier(nullptr);
  }
  void PutBelow(const Keys& keys) {
    for (uint32_t i = 0; i < keys.batch().count; ++i) {
      CHECK(storage->Add(MakeCatalogKey(kId, keys.batch().at(i)), {1, 4096, 4096}) == Catalog::Added::kNew);
    }
  }
  TierHits Lookup(const Keys& keys) const { return session->Lookup(ns, keys.batch()); }
  Incoming Lease(const Keys& keys) {
    return Ask(*session, {.op = Op::kLease, .ns = ns, .keys = &keys.batch()});
  }
  // Ready leading slots of a lease within `wait_ms`.
  uint32_t Ready(const Incoming& lease, uint64_t wait_ms) const {
    std::vector<uint32_t> slots, generations;
    for (const SlotRef& ref : lease.slots) {
      slots.push_back(ref.slot);
      generations.push_back(ref.generation);
    }
    return session->WaitReady(slots, generations, SteadyNs() + wait_ms * kNsPerMs);
  }
  bool Unchanged(const SlotRef& ref) const {
    bool unchanged = false;
    session->Unchanged({&ref.slot, 1}, {&ref.generation, 1}, &unchanged);
    return unchanged;
  }
  void End(std::span<const SlotRef> refs, Store::PromoteEnd how) { store->EndPromotes(refs, how); }
  void Finish(LeaseId lease) {
    if (lease != 0) Ask(*session, {.op = Op::kRelease, .lease = lease});
    Detach(1);
    const std::vector<std::string> findings = store->Audit();
    for (const std::string& finding : findings) std::fprintf(stderr, "audit: %s\n", finding.c_str());
    CHECK(findings.empty());
  }

  FakeTier below;
  std::unique_ptr<Session> session;
};

bool operator==(const TierHits& a, const TierHits& b) {
  return a.chunks == b.chunks && a.host_chunks == b.host_chunks;
}

TEST(LookupGoesOnBelow) {
  TwoTiers tiers;
  StoreKeys(*tiers.session, tiers.ns, Keys(0, 5));
  tiers.PutBelow(Keys(5, 10));
  StoreKeys(*tiers.session, tiers.ns, Keys(15, 3));
  tiers.PutBelow(Keys(18, 2));
  CHECK((tiers.Lookup(Keys(0, 100)) == TierHits{20, 8}));
  CHECK((tiers.Lookup(Keys(5, 1)) == TierHits{1, 0}));
  CHECK((tiers.Lookup(Keys(20, 5)) == TierHits{0, 0}));
  tiers.storage->SetServing(false);
  CHECK((tiers.Lookup(Keys(0, 100)) == TierHits{5, 5}));
  tiers.storage->SetServing(true);
  // A key that is being stored ends the walk, wherever else it lies: a lease would not wait for it.
  const Keys stored(6, 1);
  const Incoming write = Ask(*tiers.session, {.op = Op::kReserve, .ns = tiers.ns, .keys = &stored.batch()});
  CHECK(write.lease != 0);
  CHECK((tiers.Lookup(Keys(0, 100)) == TierHits{6, 5}));
  Ask(*tiers.session, {.op = Op::kAbort, .lease = write.lease});
  CHECK((tiers.Lookup(Keys(0, 100)) == TierHits{20, 8}));
  CHECK((tiers.session->Lookup(999, Keys(0, 100).batch()) == TierHits{0, 0}));
  tiers.session->MarkLost();
  CHECK((tiers.Lookup(Keys(0, 100)) == TierHits{0, 0}));
}

// Against the rule, one key after another, for random mixtures and long runs.
TEST(LookupAsTheRuleSays) {
  TwoTiers tiers;
  std::mt19937_64 random(5);
  constexpr uint64_t kNumbers = 1800;
  std::set<uint64_t> here, below;
  for (uint64_t number = 0; number < kNumbers;) {
    const uint64_t run = random() % 3 == 0 ? random() % 400 + 1 : random() % 4 + 1;
    const uint64_t end = std::min(number + run, kNumbers);
    const uint64_t kind = random() % 16;  // 0: nowhere, up to 5: here, up to 10: below, else both
    for (; number < end; ++number) {
      if (kind > 0 && (kind <= 5 || kind > 10)) {
        StoreKeys(*tiers.session, tiers.ns, Keys(number, 1));
        here.insert(number);
      }
      if (kind > 5) {
        tiers.PutBelow(Keys(number, 1));
        below.insert(number);
      }
    }
  }
  CHECK(here.size() > 300 && here.size() < 900);  // the store has room for 1024
  for (int round = 0; round < 2000; ++round) {
    const uint64_t first = random() % kNumbers;
    const auto count = static_cast<uint32_t>(random() % 1000);
    TierHits expected;
    for (uint64_t number = first; number < first + count; ++number) {
      if (!here.contains(number) && !below.contains(number)) break;
      ++expected.chunks;
      expected.host_chunks += here.contains(number);
    }
    CHECK(tiers.Lookup(Keys(first, count)) == expected);
  }
}

TEST(ALeaseStreams) {
  TwoTiers tiers;
  StoreKeys(*tiers.session, tiers.ns, Keys(0, 2));
  tiers.PutBelow(Keys(2, 4));
  const Incoming lease = tiers.Lease(Keys(0, 10));
  CHECK(lease.lease != 0 && lease.slots.size() == 6);
  const std::vector<SlotRef> asked = tiers.below.Take();
  CHECK(asked.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(asked[i].slot == lease.slots[2 + i].slot && asked[i].generation == lease.slots[2 + i].generation);
    CHECK(tiers.Unchanged(asked[i]));
  }
  CHECK((tiers.Lookup(Keys(0, 10)) == TierHits{6, 2}));  // on their way: chunks, not in DRAM yet
  CHECK(tiers.Ready(lease, 0) == 2);

  std::atomic<uint32_t> ready{0};
  std::thread waiter([&] { ready.store(tiers.Ready(lease, 20'000)); });
  for (size_t i = 0; i < 4; ++i) {
    CHECK(ready.load() == 0);
    tiers.End({&asked[i], 1}, Store::PromoteEnd::kReadable);
    CHECK(tiers.Ready(lease, 0) == 3 + i);
  }
  waiter.join();
  CHECK(ready.load() == 6);
  CHECK((tiers.Lookup(Keys(0, 10)) == TierHits{6, 6}));
  tiers.Finish(lease.lease);
}

TEST(ALostChunkEndsTheWait) {
  TwoTiers tiers;
  tiers.PutBelow(Keys(0, 3));
  const Incoming lease = tiers.Lease(Keys(0, 3));
  const std::vector<SlotRef> asked = tiers.below.Take();
  CHECK(asked.size() == 3);
  tiers.End({&asked[0], 1}, Store::PromoteEnd::kReadable);
  tiers.End({&asked[2], 1}, Store::PromoteEnd::kReadable);
  std::atomic<uint32_t> ready{9};
  std::thread waiter([&] { ready.store(tiers.Ready(lease, 20'000)); });
  tiers.End({&asked[1], 1}, Store::PromoteEnd::kLost);
  waiter.join();
  CHECK(ready.load() == 1);
  CHECK(tiers.Unchanged(asked[0]) && !tiers.Unchanged(asked[1]) && tiers.Unchanged(asked[2]));
  tiers.Finish(lease.lease);
}

TEST(AWaitEndsInTime) {
  TwoTiers tiers;
  tiers.PutBelow(Keys(0, 1));
  const Incoming lease = tiers.Lease(Keys(0, 1));
  const uint64_t start_ns = SteadyNs();
  CHECK(tiers.Ready(lease, 120) == 0);
  CHECK(SteadyNs() - start_ns >= 120 * kNsPerMs);
  // A lost session ends it long before its deadline.
  std::thread loser([&] { tiers.session->MarkLost(); });
  CHECK(tiers.Ready(lease, 60'000) == 0);
  CHECK(SteadyNs() - start_ns < 30'000 * kNsPerMs);
  loser.join();
  tiers.End(tiers.below.Take(), Store::PromoteEnd::kLost);
}

TEST(PrefetchIsPosted) {
  TwoTiers tiers;
  tiers.PutBelow(Keys(0, 3));
  const Keys keys(0, 3);
  CHECK(tiers.session->Post({.op = Op::kPrefetch, .ns = tiers.ns, .keys = &keys.batch()}, true) ==
        Posted::kYes);
  Ask(*tiers.session, {.op = Op::kPing});
  const std::vector<SlotRef> asked = tiers.below.Take();
  CHECK(asked.size() == 3 && tiers.below.prefetches() == 1);
  tiers.End(asked, Store::PromoteEnd::kReadable);
  CHECK((tiers.Lookup(keys) == TierHits{3, 3}));
  tiers.Finish(0);
}

TEST(AForeignCatalogIsRefused) {
  TestDaemon daemon;
  const MemFd ring;
  daemon.store->OpenSession(1, 1, 1);
  daemon.server->Add(1, ring.get());
  const MemFd wrong;
  ResizeFile(wrong.get(), 8192, "wrong");
  CHECK_THROWS(
      Session(daemon.data.get(), daemon.meta.get(), ring.get(), daemon.doorbell.get(), wrong.get(), 50),
      "catalog: magic");
  const Session none(daemon.data.get(), daemon.meta.get(), ring.get(), daemon.doorbell.get(), -1, 50);
  CHECK((none.Lookup(daemon.ns, Keys(0, 3).batch()) == TierHits{0, 0}));
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
