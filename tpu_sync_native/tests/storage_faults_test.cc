// The storage tier on a medium that is full, fails, lies, forgets or hangs: DRAM goes on, nothing wrong is
// read, nobody waits, and it recovers by itself.
#include <atomic>
#include <cerrno>
#include <thread>

#include "check.h"
#include "segment/names.h"
#include "tier_fixture.h"

namespace tpu_sync_native::testing {
namespace {

// What the store and its engines see of it, whatever the medium does.
void DramGoesOn(TierHost& host, uint64_t first) {
  const uint64_t began_ns = SteadyNs();
  CHECK(host.Put(first, 8) == 8);
  CHECK(host.Get(first, 8) == 8);
  CHECK(SteadyNs() - began_ns < 10 * kNsPerS);
}

TEST(AFullDiskClosesAdmissionAndServesOn) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  host.Put(0, 100);
  CHECK(host.Flush());
  fake.memory->SetCapacity(fake.memory->UsedBytes() + 64 * 1024);
  host.Put(1000, 100);
  CHECK(host.Flush());
  CHECK(host.Stat("storage_dropped_full") > 0);
  CHECK(Eventually([&] { return host.tier->state().starts_with("full: "); }));
  DramGoesOn(host, 5000);
  host.Forget();
  CHECK(host.Get(0, 1) <= 1);  // the coldest may have gone
  // Room again: it begins to admit by itself.
  fake.memory->SetCapacity(0);
  CHECK(Eventually([&] { return host.tier->state() == "ok"; }));
  const uint64_t before = host.Stat("storage_demoted_chunks");
  host.Put(2000, 50);
  CHECK(host.Flush());
  CHECK(host.Stat("storage_demoted_chunks") == before + 50);
  host.Forget();
  CHECK(host.Get(2000, 50) == 50);
}

void WritesFail(int error, const char* state) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  host.Put(0, 40);
  CHECK(host.Flush());
  fake.plan->Add({.ops = kOpOpenAppend | kOpAppend | kOpSync | kOpPublish, .times = -1, .error = error});
  host.Put(100, 40);
  CHECK(host.Flush());
  CHECK(host.Stat("storage_demoted_chunks") == 40);
  CHECK(Eventually([&] { return host.tier->state().starts_with(state); }));
  DramGoesOn(host, 5000);
  host.Forget();
  CHECK(host.Found(100, 1) == 0);
  fake.plan->Clear();
  CHECK(Eventually([&] { return host.tier->state() == "ok"; }));
  host.Put(200, 40);
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Get(200, 40) == 40);
}

TEST(AQuotaOfTheFileSystem) { WritesFail(EDQUOT, "full: no space: EDQUOT"); }
TEST(ARemountReadOnly) { WritesFail(EROFS, "full: no space: EROFS"); }
TEST(WritesThatFail) { WritesFail(EIO, ""); }

// A sync that failed lost what was written since the one before, and is never asked again.
TEST(WhatAFailedSyncLostIsNeverFound) {
  FakeFiles fake;
  StorageOptions options = QuickOptions();
  options.sync_ms = 100'000;  // by Flush alone
  TierHost host(fake.files(), options);
  host.Start();
  host.Put(0, 10);
  CHECK(host.Flush());
  const size_t fault = fake.plan->Add({.ops = kOpSync, .pattern = "*.kvs", .times = 1, .error = EIO});
  host.Put(100, 10);
  CHECK(host.Flush());
  CHECK(fake.plan->hits(fault) == 1);
  CHECK(host.Stat("storage_demoted_chunks") == 10);
  CHECK(host.Stat("storage_dropped_error") == 10);
  host.Forget();
  CHECK(host.Found(100, 10) == 0);
  CHECK(host.Get(0, 10) == 10);
  CHECK(host.tier->Stop(10'000));
  fake.memory->Crash();
  TierHost later(fake.files());
  later.Start();
  CHECK(Eventually([&] { return later.Get(0, 10) == 10; }));
  CHECK(later.Found(100, 10) == 0);
}

TEST(ATornAppendIsAMissAndWhatWentBeforeIsNot) {
  for (const uint64_t torn : {uint64_t{0}, uint64_t{100}, uint64_t{4096}, uint64_t{9000}, uint64_t{20'000}}) {
    FakeFiles fake;
    StorageOptions options = QuickOptions();
    options.sync_ms = 100'000;
    TierHost host(fake.files(), options);
    host.Start();
    const size_t appends = fake.plan->Add({.ops = kOpAppend, .pattern = "*.kvs", .times = -1});
    host.Put(0, 3);
    CHECK(Eventually([&] { return fake.plan->hits(appends) == 1; }));
    // That one is appended, and not synced yet, when the next append fails.
    const size_t fault =
        fake.plan->Add({.ops = kOpAppend, .pattern = "*.kvs", .times = 1, .error = EIO, .bytes_done = torn});
    host.Put(100, 5);
    CHECK(host.Flush());
    CHECK(fake.plan->hits(fault) == 1);
    CHECK(host.Stat("storage_demoted_chunks") == 3);
    CHECK(host.tier->Stop(10'000));
    TierHost later(fake.files());
    later.Start();
    CHECK(Eventually([&] { return later.Get(0, 3) == 3; }));
    CHECK(later.Get(100, 5) == 0);
    CHECK(later.Stat("storage_failed_corrupt") == 0);
  }
}

// Power fails at any moment; what is left may be any part of what was not durable.
TEST(ACrashLeavesOnlyMisses) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    FakeFiles fake;
    {
      TierHost host(fake.files());
      host.Start();
      host.Put(0, 60);
      if (seed % 3 == 0) CHECK(host.Flush());
      host.Put(100, 60);
      if (seed % 2 == 0) CHECK(Eventually([&] { return host.Stat("storage_demoted_chunks") > 0; }));
      fake.memory->Crash(seed);
      host.tier->Stop(0);
    }
    TierHost later(fake.files());
    later.Start();
    later.Put(500, 5);
    CHECK(later.Flush());
    if (seed % 3 == 0) {
      CHECK(Eventually([&] { return later.Get(0, 60) == 60; }));
    }
    later.Get(0, 60);  // compares every byte that it gets
    later.Get(100, 60);
    CHECK(later.Get(500, 5) == 5);
  }
}

// Bytes on storage change under everybody's feet.
TEST(FlippedBitsAreMisses) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  host.Put(0, 40);
  CHECK(host.Flush());
  for (const std::string& name : fake.memory->FileNames()) {
    if (!name.ends_with(".kvs")) continue;
    const uint64_t bytes = fake.memory->Peek(name)->size();
    for (uint64_t at = 4096; at < bytes; at += 3 * 4096) fake.memory->Flip(name, at + 5, 0x10);
  }
  host.Forget();
  uint32_t good = 0;
  for (uint64_t i = 0; i < 40; ++i) good += host.Get(i, 1);
  CHECK(good < 40);
  CHECK(host.Stat("storage_failed_corrupt") == 40 - good);
}

// ---- a medium that hangs ----

TEST(AHungAppendHoldsUpNobody) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  host.Put(0, 20);
  CHECK(host.Flush());
  fake.plan->Add({.ops = kOpAppend, .pattern = "*.kvs", .times = -1, .hang = true});
  host.Put(100, 10);
  CHECK(fake.plan->WaitHanging(1));
  DramGoesOn(host, 5000);
  host.Forget();
  CHECK(host.Get(0, 20) == 20);  // reads go on
  CHECK(!host.tier->Flush(50));
  const uint64_t pinned = host.base.Stat("pinned_slots");
  CHECK(pinned > 0 && pinned <= 20);  // two batches at most
  const uint64_t began_ns = SteadyNs();
  CHECK(!host.tier->Stop(200));
  CHECK(SteadyNs() - began_ns < 5 * kNsPerS);
  fake.plan->Release();
}

TEST(AHungMediumServesMissesUntilItAnswers) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  host.Put(0, 20);
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Found(0, 20) == 20);
  fake.plan->Add({.ops = kOpsAll, .times = -1, .hang = true});
  CHECK(fake.plan->WaitHanging(1));
  CHECK(Eventually([&] { return host.tier->state().starts_with("down: "); }));
  CHECK(host.Found(0, 20) == 0);
  CHECK(host.Get(0, 20) == 0);
  DramGoesOn(host, 5000);
  CHECK(Eventually([&] { return host.Stat("storage_demote_queue_bytes") == 0; }));
  fake.plan->Release();
  CHECK(Eventually([&] { return host.tier->state() == "ok"; }));
  CHECK(Eventually([&] { return host.Found(0, 20) == 20; }));
  CHECK(host.Get(0, 20) == 20);
  host.Put(200, 20);
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Get(200, 20) == 20);
}

// Threads that hang outlive the tier, the store and the arena's owner; they find nothing to harm.
TEST(AHungThreadThatReturnsAfterEverybodyLeft) {
  FakeFiles fake;
  {
    TierHost host(fake.files());
    host.Start();
    fake.plan->Add({.ops = kOpAppend | kOpPublish, .times = -1, .hang = true});
    host.Put(0, 50);
    CHECK(fake.plan->WaitHanging(2));
    CHECK(!host.tier->Stop(0));
  }
  fake.plan->Release();
  CHECK(Eventually([&] { return fake.plan->hanging() == 0; }));
}

TEST(ANamespaceThatHangsLeavesTheOthersTheirTurn) {
  FakeFiles fake;
  StorageOptions options = QuickOptions();
  options.store_threads = 2;
  TierHost host(fake.files(), options);
  host.Start();
  const uint32_t other = host.OpenOther();
  const std::string path = NamespaceDirectory(reinterpret_cast<const uint8_t*>(TierHost::kId));
  fake.plan->Add({.ops = kOpAppend, .pattern = path + "/*.kvs", .times = -1, .hang = true});
  host.Put(0, 50);
  CHECK(fake.plan->WaitHanging(1));
  const uint64_t before = host.Stat("storage_demoted_chunks");
  host.base.Put(0, 30, other);
  CHECK(Eventually([&] { return host.Stat("storage_demoted_chunks") == before + 30; }));
  fake.plan->Release();
  CHECK(host.Flush());
}

// Whoever waits for what hangs is let go when the tier stops, however long he would have waited.
TEST(AFlushEndsWithTheTier) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  fake.plan->Add({.ops = kOpAppend, .pattern = "*.kvs", .times = -1, .hang = true});
  host.Put(0, 10);
  CHECK(fake.plan->WaitHanging(1));
  std::atomic<bool> flushing{false}, flushed{true}, over{false};
  std::thread waiter([&] {
    flushing.store(true);
    flushed.store(host.tier->Flush(40'000));
    over.store(true);
  });
  CHECK(Eventually([&] { return flushing.load(); }));
  CHECK(!host.tier->Stop(100));
  CHECK(Eventually([&] { return over.load(); }));
  waiter.join();
  CHECK(!flushed.load());
  fake.plan->Release();
}

// Somebody else's directory, say: it stays so, it is shown, and the other namespaces neither lose the queue
// to it nor have their medium taken for down.
TEST(ANamespaceThatCannotBeOpenedHarmsNoOther) {
  FakeFiles fake;
  StorageOptions options = QuickOptions();
  options.demote_queue_bytes = 40 * TierHost::kChunkBytes;
  options.poll_ms = options.heartbeat_ms = 20'000;  // what goes well is not to hide what does not
  TierHost host(fake.files(), options);
  host.Start();
  constexpr int kOthers = 4;
  std::vector<uint32_t> others;
  for (int i = 0; i < kOthers; ++i) {
    const std::string id = "namespace-other" + std::to_string(i);
    others.push_back(host.base.store->OpenNamespace(id, TierHost::kChunkBytes));
    const std::string path = NamespaceDirectory(reinterpret_cast<const uint8_t*>(id.data()));
    fake.plan->Add({.ops = kOpReadAll, .pattern = path + "/meta.json", .times = -1, .error = EACCES});
    host.tier->OpenNamespace(others.back(), id, TierHost::kChunkBytes, "{}", Codec::kRaw);
    host.base.Put(0, 30, others.back());
  }
  CHECK(host.Stat("storage_demote_queue_bytes") == 40 * TierHost::kChunkBytes);
  host.Put(0, 30);
  CHECK(Eventually([&] { return host.Stat("storage_demoted_chunks") == 30; }));
  const auto tries = [&] {
    int hits = 0;
    for (size_t i = 0; i < kOthers; ++i) hits += fake.plan->hits(i);
    return hits;
  };
  CHECK(Eventually([&] { return tries() >= 20; }));  // more than failures in a row that open the breaker
  CHECK(host.Stat("storage_breaker_openings") == 0);
  CHECK(host.Stat("storage_namespaces_opening") == kOthers);
  for (const auto& state : host.tier->Namespaces()) {
    CHECK(state.state == (state.ns == host.ns ? "ready" : "opening: EACCES: Permission denied"));
  }
}

// The root cannot be opened at first: nothing is lost by it but time.
TEST(ANamespaceIsOpenedWhenTheRootAnswers) {
  FakeFiles fake;
  TierHost host(fake.files());
  CHECK(host.tier->CheckRoot(10'000).empty());
  fake.plan->Add({.ops = kOpPublish, .pattern = "*/meta.json", .times = 3, .error = EIO});
  host.tier->Start();
  host.tier->OpenNamespace(host.ns, TierHost::kId, TierHost::kChunkBytes, TierHost::kMeta, Codec::kRaw);
  host.Put(0, 20);
  CHECK(host.Flush());
  CHECK(host.NamespaceState() == "ready");
  CHECK(host.Stat("storage_demoted_chunks") == 20);
}

// An index that could not be published is published later; until then this host finds its records.
TEST(AnIndexIsPublishedAsSoonAsItCanBe) {
  FakeFiles fake;
  TierHost host(fake.files()), peer(fake.files());
  host.Start();
  peer.Start();
  const size_t fault = fake.plan->Add({.ops = kOpPublish, .pattern = "*.idx", .times = 4, .error = EIO});
  host.Put(0, 15);
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Get(0, 15) == 15);
  CHECK(Eventually([&] { return peer.Found(0, 15) == 15; }));
  CHECK(fake.plan->hits(fault) == 4);
  CHECK(peer.Get(0, 15) == 15);
}

// Commits, leases, clears and a medium with random faults, all at once.
TEST(NothingWrongIsEverRead) {
  FakeFiles fake;
  StorageOptions options = QuickOptions();
  options.quota_bytes = 2 << 20;
  TierHost host(fake.files(), options, {.slabs = 4, .slab_bytes = 64 * 4096}), peer(fake.files(), options);
  host.Start();
  peer.Start();
  fake.plan->Add({.ops = kOpAppend, .skip = 20, .times = 3, .error = EIO, .bytes_done = 5000});
  fake.plan->Add({.ops = kOpRead, .skip = 50, .times = 5, .error = EIO});
  fake.plan->Add({.ops = kOpSync, .skip = 30, .times = 2, .error = EIO});
  fake.plan->Add({.ops = kOpPublish, .skip = 60, .times = 5, .error = ENOSPC});
  std::atomic<bool> done{false};
  std::thread reading([&] {
    for (uint64_t i = 0; !done.load(); ++i) peer.Get(i * 7 % 600, 24);
  });
  for (uint64_t round = 0; round < 60; ++round) {
    host.Put(round * 29 % 600, 24);
    host.Get(round * 13 % 600, 24);
    if (round % 8 == 7) host.Forget();
  }
  done.store(true);
  reading.join();
  host.Flush();
  CHECK(host.tier->Stop(10'000));
  CHECK(peer.tier->Stop(10'000));
  host.base.CheckNothingHeld();
  peer.base.CheckNothingHeld();
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
