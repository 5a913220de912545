// What a clear means for the storage tier: nothing of before is found by the host that cleared, whatever was
// queued or under way; and hosts of different epochs read nothing of one another.
#include <cerrno>
#include <string>

#include "check.h"
#include "segment/names.h"
#include "storage/storage_tier.h"
#include "tier_fixture.h"

namespace tpu_sync_native::testing {
namespace {

std::string NamespacePath() { return NamespaceDirectory(reinterpret_cast<const uint8_t*>(TierHost::kId)); }

TEST(AClearMakesEverythingAMissHere) {
  FakeFiles fake;
  TierHost here(fake.files()), peer(fake.files());
  here.Start();
  peer.Start();
  here.Put(0, 60);
  CHECK(here.Flush());
  CHECK(Eventually([&] { return peer.Found(0, 60) == 60; }));
  here.Clear();
  CHECK(here.Found(0, 60) == 0);
  CHECK(here.Get(0, 60) == 0);
  CHECK(Eventually([&] { return here.NamespaceState() == "ready"; }));
  // The files of before go, for others too.
  CHECK(Eventually([&] { return peer.Found(0, 60) == 0; }));
  CHECK(peer.Get(0, 60) == 0);
  CHECK(Eventually([&] { return here.Stat("storage_deleted_segments") >= 1; }));
  // What is stored from now on is found again, with its own bytes, and nothing of before.
  here.Put(0, 60, /*version=*/1);
  CHECK(here.Flush());
  here.Forget();
  CHECK(here.Get(0, 60, 1) == 60);
  // Whoever comes new is of the present epoch.
  TierHost later(fake.files());
  later.Start();
  CHECK(Eventually([&] { return later.Found(0, 60) == 60; }));
  CHECK(later.Get(0, 60, 1) == 60);
}

// Weights are updated in place on one host after the other: until an engine is reset it computes with the old
// ones, and neither host is to read what the other stores meanwhile.
TEST(WhoClearsAndWhoDoesNotShareNothing) {
  FakeFiles fake;
  TierHost here(fake.files()), peer(fake.files());
  here.Start();
  peer.Start();
  here.Put(0, 5);
  CHECK(here.Flush());
  CHECK(Eventually([&] { return peer.Found(0, 5) == 5; }));
  here.Clear();
  CHECK(Eventually([&] { return here.NamespaceState() == "ready"; }));
  CHECK(Eventually([&] { return peer.NamespaceState().starts_with("apart: "); }));
  CHECK(peer.Stat("storage_namespaces_apart") == 1);
  here.Put(100, 5, /*version=*/1);
  peer.Put(100, 5, /*version=*/0);
  peer.Put(200, 5, /*version=*/0);
  here.Put(300, 5, /*version=*/1);
  CHECK(here.Flush() && peer.Flush());
  const size_t polls = fake.plan->Add({.ops = kOpList, .pattern = "*/hosts", .times = -1});
  CHECK(Eventually([&] { return fake.plan->hits(polls) >= 20; }));
  for (TierHost* host : {&here, &peer}) host->Forget();
  CHECK(here.Get(100, 5, 1) == 5 && peer.Get(100, 5, 0) == 5);
  CHECK(here.Found(200, 5) == 0 && peer.Found(300, 5) == 0);
  // Its own clear, and it goes on with what it stores then.
  peer.Clear();
  CHECK(Eventually([&] { return peer.NamespaceState() == "ready"; }));
  CHECK(Eventually([&] { return here.NamespaceState().starts_with("apart: "); }));
  peer.Put(100, 5, /*version=*/1);
  here.Put(400, 5, /*version=*/1);
  CHECK(peer.Flush() && here.Flush());
  for (TierHost* host : {&here, &peer}) host->Forget();
  CHECK(peer.Get(100, 5, 1) == 5 && here.Get(400, 5, 1) == 5);
}

// Chunks that were computed before a clear and come to be written after it.
TEST(WhatWasQueuedBeforeAClearIsNotFoundAfterIt) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  host.Put(500, 5);
  CHECK(host.Flush());
  const size_t hang = fake.plan->Add({.ops = kOpAppend, .pattern = "*.kvs", .times = 1, .hang = true});
  host.Put(0, 30);
  CHECK(fake.plan->WaitHanging(1));
  host.Put(100, 30);
  host.Clear();
  CHECK(Eventually([&] { return host.NamespaceState() == "ready"; }));
  fake.plan->Release();
  CHECK(fake.plan->hits(hang) == 1);
  CHECK(host.Flush());
  CHECK(host.Found(0, 30) == 0 && host.Found(100, 30) == 0 && host.Found(500, 5) == 0);
  TierHost later(fake.files());
  later.Start();
  later.Put(900, 1);
  CHECK(later.Flush());
  CHECK(Eventually([&] { return later.Stat("storage_hosts") == 2; }));
  CHECK(later.Get(0, 30) == 0 && later.Get(100, 30) == 0 && later.Get(500, 5) == 0);
}

TEST(AClearWaitsForTheRootAndServesNothingMeanwhile) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  host.Put(0, 20);
  CHECK(host.Flush());
  fake.plan->Add({.ops = kOpPublish, .pattern = "*/epoch-*", .times = 3, .error = EIO});
  host.Clear();
  CHECK(host.NamespaceState() == "clearing");
  CHECK(host.Found(0, 20) == 0);
  host.Put(0, 20, 1);
  CHECK(Eventually([&] { return host.NamespaceState() == "ready"; }));
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Get(0, 20, 1) == 20);
  CHECK(fake.memory->Peek(NamespacePath() + "/epoch-1").has_value());
}

TEST(ClearsInARowEndWithTheLast) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  for (uint64_t round = 0; round < 40; ++round) {
    host.Put(0, 10, round);
    if (round % 3 == 0) host.Flush();
    host.Clear();
  }
  host.Put(0, 10, 77);
  CHECK(Eventually([&] { return host.NamespaceState() == "ready"; }));
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Get(0, 10, 77) == 10);
  uint32_t epochs = 0;
  for (const std::string& name : fake.memory->FileNames())
    epochs += name.find("/epoch-") != std::string::npos;
  CHECK(epochs >= 1 && epochs <= 20);
}

// ---- the daemon starts anew, its engine does not ----

TEST(AnEngineThatOutlivesItsDaemonStaysInItsEpoch) {
  FakeFiles fake;
  TierHost here(fake.files());
  here.Start();
  uint64_t told = 0;
  {
    TierHost before(fake.files());
    before.Start();
    before.Put(0, 5);
    CHECK(before.Flush());
    CHECK(Eventually([&] { return (told = before.base.store->EpochBelow(before.ns)) == 1; }));
  }
  here.Clear();
  CHECK(Eventually([&] { return here.NamespaceState() == "ready"; }));
  CHECK(Eventually([&] { return here.base.store->EpochBelow(here.ns) == 2; }));
  here.Put(100, 5, /*version=*/1);
  CHECK(here.Flush());
  TierHost after(fake.files());
  after.Start(TierHost::kMeta, Codec::kRaw, told);
  CHECK(after.NamespaceState().starts_with("apart: "));
  CHECK(Eventually([&] { return after.base.store->EpochBelow(after.ns) == told; }));
  const size_t polls = fake.plan->Add({.ops = kOpList, .pattern = "*/hosts", .times = -1});
  CHECK(Eventually([&] { return fake.plan->hits(polls) >= 20; }));
  CHECK(after.Found(100, 5) == 0);
  after.Put(100, 5, /*version=*/0);
  CHECK(after.Flush());
  for (TierHost* host : {&here, &after}) host->Forget();
  CHECK(here.Get(100, 5, 1) == 5 && after.Get(100, 5, 0) == 5);
}

TEST(AClearThatTheRootNeverSawIsMadeUpFor) {
  FakeFiles fake;
  uint64_t told = 0;
  {
    TierHost before(fake.files());
    before.Start();
    before.Put(0, 5);
    CHECK(before.Flush());
    CHECK(Eventually([&] { return before.base.store->EpochBelow(before.ns) == 1; }));
    fake.plan->Add({.ops = kOpPublish, .pattern = "*/epoch-*", .times = -1, .error = EIO});
    before.Clear();
    told = before.base.store->EpochBelow(before.ns);  // what its engine sees when the daemon is killed
    CHECK(told == (kUnconfirmedClear | 1));
  }
  fake.plan->Clear();
  TierHost after(fake.files());
  after.Start(TierHost::kMeta, Codec::kRaw, told);
  CHECK(Eventually([&] { return after.base.store->EpochBelow(after.ns) == 2; }));
  CHECK(fake.memory->Peek(NamespacePath() + "/epoch-1").has_value());
  CHECK(after.Get(0, 5) == 0);
  after.Put(0, 5, /*version=*/1);
  CHECK(after.Flush());
  after.Forget();
  CHECK(after.Get(0, 5, 1) == 5);
}

// Of a root that is none of this one's, or of a listing that is older than the epoch.
TEST(AnEpochThatIsNotThereIsNobodyElses) {
  FakeFiles fake;
  TierHost other(fake.files()), host(fake.files());
  other.Start();
  other.Put(0, 5);
  CHECK(other.Flush());
  host.Start(TierHost::kMeta, Codec::kRaw, /*told=*/8);
  CHECK(Eventually([&] { return host.base.store->EpochBelow(host.ns) == 2; }));
  CHECK(fake.memory->Peek(NamespacePath() + "/epoch-1").has_value());
  host.Put(10, 5);
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Get(10, 5) == 5 && host.Found(0, 5) == 0);
}

// The arena has outlived its daemon, the engine has not: it starts with the weights of the root's last clear.
TEST(AnArenaOfAnOlderEpochIsNotServedToAnEngineThatStartsNew) {
  FakeFiles fake;
  TierHost here(fake.files()), next(fake.files());
  here.Start();
  here.Clear();
  CHECK(Eventually([&] { return here.base.store->EpochBelow(here.ns) == 2; }));
  here.Put(100, 5, /*version=*/1);
  CHECK(here.Flush());
  next.Put(0, 5, /*version=*/0);  // what is there when the daemon starts, of epoch 0
  next.base.store->SetEpochBelow(next.ns, 1);
  next.base.store->WithholdNamespace(next.ns);
  next.Start();
  CHECK(Eventually([&] { return next.base.store->EpochBelow(next.ns) == 2; }));
  CHECK(next.base.store->AwaitSettled(next.ns, 0));
  CHECK(next.NamespaceState() == "ready");  // of the root's epoch: no clear of its own, nothing apart
  CHECK(!fake.memory->Peek(NamespacePath() + "/epoch-2").has_value());
  CHECK(next.Found(0, 5) == 0);
  CHECK(Eventually([&] { return next.Found(100, 5) == 5; }));
  CHECK(next.Get(100, 5, 1) == 5);
  next.Put(0, 5, /*version=*/1);
  CHECK(next.Flush());
  CHECK(Eventually([&] { return here.Found(0, 5) == 5; }));
  CHECK(here.Get(0, 5, 1) == 5);
}

// The root does not answer: nothing of it is served, what is stored now is, and all by itself it comes back.
TEST(WhatIsWithheldComesBackWhenTheRootAnswers) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Put(0, 9);
  host.base.store->SetEpochBelow(host.ns, 1);
  host.base.store->WithholdNamespace(host.ns);
  CHECK(host.tier->CheckRoot(10'000).empty());
  fake.plan->Add({.ops = kOpList, .pattern = "*", .times = 1, .hang = true});
  host.tier->Start();
  host.tier->OpenNamespace(host.ns, TierHost::kId, TierHost::kChunkBytes, TierHost::kMeta, Codec::kRaw);
  CHECK(fake.plan->WaitHanging(1));
  CHECK(!host.base.store->AwaitSettled(host.ns, 20));
  CHECK(host.Found(0, 9) == 0 && host.Get(0, 9) == 0);
  CHECK(host.Put(100, 3) == 3 && host.Get(100, 3) == 3);
  CHECK(host.base.store->EpochBelow(host.ns) == 0);
  fake.plan->Release();
  CHECK(host.base.store->AwaitSettled(host.ns, 20'000));
  CHECK(host.Get(0, 9) == 9);
  CHECK(Eventually([&] { return host.base.store->EpochBelow(host.ns) == 1; }));
  host.base.CheckSound();
}

// A tier may come with the next daemon.
TEST(AClearWithoutATierIsRemembered) {
  TierHost host(FakeFiles().files());
  CHECK(host.base.store->EpochBelow(host.ns) == 0);
  host.base.store->ClearNamespace(host.ns);
  CHECK(host.base.store->EpochBelow(host.ns) == kUnconfirmedClear);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
