// Of which epoch a host is when the root is late, forgetful or of another mind, and how one is made for
// others.
#include <cerrno>
#include <string>

#include "check.h"
#include "segment/names.h"
#include "storage/storage_tier.h"
#include "tier_fixture.h"

namespace tpu_sync_native::testing {
namespace {

std::string NamespacePath() { return NamespaceDirectory(reinterpret_cast<const uint8_t*>(TierHost::kId)); }

// As a host whose root hangs from its engine's start on, and answers after another one has cleared. Without
// an answer nothing is judged late, and with one everything is.
struct KeptWaiting : TierHost {
  explicit KeptWaiting(FakeFiles& fake) : TierHost(fake.files(), Options()) {
    CHECK(tier->CheckRoot(10'000).empty());
    fake.plan->Add({.ops = kOpMakeDirectory, .pattern = "*/hosts", .times = 1, .hang = true});
  }
  static StorageOptions Options() {
    StorageOptions options = QuickOptions();
    options.open_late_ms = 0;
    return options;
  }
  void Open(FakeFiles& fake) {
    tier->Start();
    tier->OpenNamespace(ns, kId, kChunkBytes, kMeta, Codec::kRaw);
    CHECK(fake.plan->WaitHanging(1));
  }
};

TEST(AnEpochThatWasMadeWhileTheRootHungIsNotJoined) {
  FakeFiles fake;
  TierHost here(fake.files());
  here.Start();
  KeptWaiting host(fake);
  host.Open(fake);
  host.Put(0, 5, /*version=*/0);
  here.Clear();
  CHECK(Eventually([&] { return here.base.store->EpochBelow(here.ns) == 2; }));
  here.Put(100, 5, /*version=*/1);
  CHECK(here.Flush());
  fake.plan->Release();
  CHECK(Eventually([&] { return host.base.store->EpochBelow(host.ns) == 3; }));  // one of its own
  CHECK(Eventually([&] { return here.NamespaceState().starts_with("apart: "); }));
  host.Put(200, 5, /*version=*/0);
  CHECK(host.Flush());
  const size_t polls = fake.plan->Add({.ops = kOpList, .pattern = "*/hosts", .times = -1});
  CHECK(Eventually([&] { return fake.plan->hits(polls) >= 20; }));
  CHECK(host.Found(100, 5) == 0 && here.Found(200, 5) == 0 && here.Found(0, 5) == 0);
  CHECK(host.Get(0, 5, 0) == 5);  // what its own engine has stored is its own
  host.Forget();
  CHECK(host.Get(200, 5, 0) == 5);
}

TEST(WhatIsWithheldIsGoneWhenARootSaysTooLateThatThereIsAnotherEpoch) {
  FakeFiles fake;
  TierHost here(fake.files());
  here.Start();
  KeptWaiting host(fake);
  host.Put(0, 9, /*version=*/0);
  host.base.store->SetEpochBelow(host.ns, 1);
  host.base.store->WithholdNamespace(host.ns);
  host.Open(fake);
  here.Clear();
  CHECK(Eventually([&] { return here.base.store->EpochBelow(here.ns) == 2; }));
  fake.plan->Release();
  CHECK(Eventually([&] { return host.base.store->EpochBelow(host.ns) == 3; }));
  CHECK(host.base.store->AwaitSettled(host.ns, 20'000) && host.Found(0, 9) == 0);
  host.base.CheckSound();
}

TEST(ALateRootThatSaysNothingNewIsJoined) {
  FakeFiles fake;
  TierHost here(fake.files());
  here.Start();
  here.Clear();
  CHECK(Eventually([&] { return here.base.store->EpochBelow(here.ns) == 2; }));
  here.Put(100, 5, /*version=*/1);
  CHECK(here.Flush());
  KeptWaiting host(fake);
  host.Put(0, 9, /*version=*/1);
  host.base.store->SetEpochBelow(host.ns, 2);  // of epoch 1: an earlier daemon has seen it
  host.base.store->WithholdNamespace(host.ns);
  host.Open(fake);
  fake.plan->Release();
  CHECK(host.base.store->AwaitSettled(host.ns, 20'000));
  CHECK(host.Get(0, 9, 1) == 9);
  CHECK(Eventually([&] { return host.Found(100, 5) == 5; }));
  CHECK(host.Get(100, 5, 1) == 5 && host.NamespaceState() == "ready");
  CHECK(!fake.memory->Peek(NamespacePath() + "/epoch-2").has_value());
}

// The root's first word counts: what follows it, before the namespace serves, may be of another's clear.
TEST(AnOpeningThatFailsHalfwayIsOfTheEpochThatItFoundFirst) {
  FakeFiles fake;
  const StorageOptions options = QuickOptions();
  TierHost here(fake.files()), host(fake.files(), options);
  here.Start();
  CHECK(host.tier->CheckRoot(10'000).empty());
  const std::string own = NamespacePath() + "/hosts/" + HexId(options.host_id);
  const size_t beats = fake.plan->Add({.ops = kOpPublish, .pattern = own + "/*", .times = -1, .error = EIO});
  host.tier->Start();
  host.tier->OpenNamespace(host.ns, TierHost::kId, TierHost::kChunkBytes, TierHost::kMeta, Codec::kRaw);
  CHECK(Eventually([&] { return fake.plan->hits(beats) >= 1; }));
  here.Clear();
  CHECK(Eventually([&] { return here.base.store->EpochBelow(here.ns) == 2; }));
  fake.plan->Clear();
  CHECK(Eventually([&] { return host.NamespaceState().starts_with("apart: "); }));
  CHECK(Eventually([&] { return host.base.store->EpochBelow(host.ns) == 1; }));
}

TEST(WhatIsWithheldOfARefusedNamespaceIsGivenUp) {
  FakeFiles fake;
  TierHost other(fake.files()), host(fake.files());
  other.Start();
  host.Put(0, 9);
  host.base.store->SetEpochBelow(host.ns, 1);
  host.base.store->WithholdNamespace(host.ns);
  CHECK(host.tier->CheckRoot(10'000).empty());
  host.tier->Start();
  host.tier->OpenNamespace(host.ns, TierHost::kId, TierHost::kChunkBytes, "{\"another\":1}\n", Codec::kRaw);
  CHECK(Eventually([&] { return host.NamespaceState().starts_with("refused: "); }));
  CHECK(host.base.store->AwaitSettled(host.ns, 20'000));
  CHECK(host.Found(0, 9) == 0 && host.base.store->ReclaimStale(1000) == 9);
  CHECK(host.Put(0, 3) == 3 && host.Get(0, 3) == 3);
  host.base.CheckSound();
}

TEST(ANamespaceIsClearedThatNobodyHasOpened) {
  FakeFiles fake;
  TierHost before(fake.files());
  before.Start();
  before.Put(0, 5);
  CHECK(before.Flush());
  TierHost host(fake.files());
  CHECK(host.tier->CheckRoot(10'000).empty());
  uint64_t made = 7;
  CHECK(host.tier->ClearUnopened("no-such-namespac", 10'000, &made).empty() && made == 0);
  CHECK(!fake.memory
             ->Peek(NamespaceDirectory(reinterpret_cast<const uint8_t*>("no-such-namespac")) + "/epoch-1")
             .has_value());
  CHECK(host.tier->ClearUnopened(TierHost::kId, 10'000, &made).empty() && made == 1);
  CHECK(fake.memory->Peek(NamespacePath() + "/epoch-1").has_value());
  host.Start();
  CHECK(Eventually([&] { return host.base.store->EpochBelow(host.ns) == 2; }));
  CHECK(host.NamespaceState() == "ready" && host.Get(0, 5) == 0);
  CHECK(before.Get(0, 5) == 5);  // each host is of its own epoch
  fake.plan->Add({.ops = kOpPublish, .pattern = "*/epoch-*", .times = 1, .error = EIO});
  CHECK(!host.tier->ClearUnopened(TierHost::kId, 10'000, &made).empty() && made == 0);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
