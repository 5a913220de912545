// Hosts of one root: they see each other's chunks, lose them when they go, and live with what others leave.

#include "storage/peers.h"

#include <algorithm>
#include <atomic>

#include "hosts_fixture.h"
#include "segment/segment_codec.h"
#include "storage/epochs.h"
#include "storage/namespace_root.h"

using namespace tpu_sync_native;
using namespace tpu_sync_native::testing;

namespace {

std::string HostsOf(const TestHost& host) { return HostsDirectory(host.ns->id); }

// Counts calls that reach the medium.
struct Counted {
  explicit Counted(std::shared_ptr<FileSystem> below) {
    FileHooks hooks;
    hooks.before = [this](const FileCall&) {
      calls.fetch_add(1);
      return FileVerdict{};
    };
    files = std::make_shared<HookedFiles>(std::move(below), std::move(hooks));
  }
  std::atomic<int> calls{0};
  std::shared_ptr<FileSystem> files;
};

}  // namespace

TEST(FreshAndSealedChunksOfOthersAreSeen) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.Write(0, 3);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(0, 3));
  one.Write(3, 2);  // the tail grows
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(0, 5));
  CHECK(one.writer->Seal().ok());
  one.WriteSealed(5, 4);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(0, 9));
  CHECK(two.context->catalog->records() == 9);
  CHECK(two.peers->hosts_seen(*two.ns) == 2);
  CHECK(two.peers->bytes_seen(*two.ns) == one.peers->bytes_seen(*one.ns));
}

TEST(AnUnsyncedChunkIsNobodys) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.Write(0, 2);
  one.Write(2, 2, /*sync=*/false);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(0, 2));
  CHECK(two.ServesNone(2, 2));
}

TEST(APollWithoutChangesCostsAReadAHostWhateverThereIs) {
  FakeFiles fake;
  Counted counted(fake.files());
  TestHost one(fake.files()), three(fake.files()), two(counted.files);
  for (TestHost* host : {&one, &three}) host->Beat();
  for (uint64_t i = 0; i < 10; ++i) one.WriteSealed(i * 4, 4);
  three.Write(100, 4);
  for (TestHost* host : {&one, &three, &two, &two}) host->Rounds(1);
  CHECK(two.Serves(0, 40));
  one.Rounds(1);
  counted.calls = 0;
  two.Rounds(1);
  // The own lease read and published, the namespace and its hosts listed, a lease a host.
  CHECK(counted.calls.load() == 6);
  counted.calls = 0;
  for (uint64_t i = 0; i < 40; ++i) CHECK(two.Knows(i));
  CHECK(counted.calls.load() == 0);
  one.WriteSealed(200, 4);
  one.Rounds(1);
  counted.calls = 0;
  two.Rounds(1);
  CHECK(counted.calls.load() <= 9);  // and the one host's listing, its new index
  CHECK(two.Serves(200, 4));
}

TEST(RemovedSegmentsAreMisses) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.WriteSealed(0, 4);
  one.WriteSealed(10, 4);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(0, 4));
  CHECK(RemoveSegmentFiles(*one.context, one.directory(), 1).ok());
  one.ns->changes.fetch_add(1);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.ServesNone(0, 4));
  CHECK(two.Serves(10, 4));
  CHECK(two.context->catalog->records() == 4);  // swept
  CHECK(two.context->segments->All().size() == 1);
}

TEST(AStaleListingNeitherLosesNorResurrects) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.Rounds(1);
  two.Rounds(1);  // sees an empty directory
  one.WriteSealed(0, 4);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(0, 4));
  // Something changes, and the listing that is asked for it is older than what is known.
  fake.plan->StaleListings("*/hosts*", 2);
  one.WriteSealed(10, 4);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(0, 4));
  one.ns->changes.fetch_add(1);
  one.Rounds(1);
  two.Rounds(3);
  CHECK(two.Serves(0, 4));
  // An old listing still shows what was removed.
  one.ns->changes.fetch_add(1);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(10, 4));
  fake.plan->StaleListings("*/hosts/*", 1);
  CHECK(RemoveSegmentFiles(*one.context, one.directory(), 1).ok());
  one.ns->changes.fetch_add(1);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Read(0) == ReadVerdict::kMissing || two.Knows(0));
  one.ns->changes.fetch_add(1);
  one.Rounds(1);
  two.Rounds(2);
  CHECK(two.ServesNone(0, 4));
  CHECK(!two.Knows(0));
  CHECK(two.Serves(10, 4));
}

TEST(AWholeHostThatSeemsGoneInAStaleListingStays) {
  FakeFiles fake;
  TestHost two(fake.files());
  two.Rounds(1);
  TestHost one(fake.files());
  // A host lists its peers when it makes its directory: that answer is an old one too, and what is seen next.
  fake.plan->StaleListings("*/hosts", 2);
  one.Beat();
  one.WriteSealed(0, 4);
  one.Beat();
  two.Rounds(1);  // has not seen it yet
  CHECK(two.ServesNone(0, 4));
  two.Rounds(1);
  CHECK(two.Serves(0, 4));
  TestHost three(fake.files());
  three.Rounds(2);
  CHECK(three.Serves(0, 4));
}

TEST(IndexesThatDoNotFitWhereTheyLieAreRefused) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.WriteSealed(0, 4);
  one.WriteSealed(10, 4);
  one.WriteSealed(20, 4);
  const std::string directory = one.directory() + "/";
  fake.memory->Put(directory + IndexName(2),
                   *fake.memory->Peek(directory + IndexName(1)));  // of another segment
  CHECK(fake.memory->Flip(directory + IndexName(3), kStorageUnit + 70, 1));
  fake.memory->Put(directory + "tail.idx", "no index");
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(0, 4));
  CHECK(two.ServesNone(10, 4));
  CHECK(two.ServesNone(20, 4));
  CHECK(two.context->counters.indexes_refused.load() == 3);
  // The whole of it in a directory of another host.
  uint8_t other[16];
  MakeHostId(other);
  const std::string copied = HostsOf(one) + "/" + HexId(other) + "/";
  for (const char* name : {"seg-0000000001.kvs", "seg-0000000001.idx"}) {
    fake.memory->Put(copied + name, *fake.memory->Peek(directory + name));
  }
  TestHost three(fake.files());
  three.Rounds(1);
  CHECK(three.Serves(0, 4));
  CHECK(three.context->segments->All().size() == 1);
}

TEST(ForeignFilesAreNeitherReadNorTouched) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.WriteSealed(0, 4);
  const std::string index = *fake.memory->Peek(one.directory() + "/" + IndexName(1));
  const std::vector<std::string> foreign = {
      HostsOf(one) + "/README",
      HostsOf(one) + "/backup/seg-0000000001.idx",
      HostsOf(one) + "/" + HexId(one.ns->host_id) + ".adopt/seg-0000000001.idx",
      HostsOf(one) + "/" + HexId(one.ns->host_id) + ".adopt.nobody/seg-0000000001.idx",
      one.directory() + "/seg-1.idx",
      one.directory() + "/notes.txt",
      one.directory() + "/deep/seg-0000000009.kvs",
  };
  for (const std::string& path : foreign) fake.memory->Put(path, index);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(0, 4));
  CHECK(two.context->segments->All().size() == 1);
  two.Rounds(15);  // the first host is dead and adopted; what is foreign in its directory moves with it
  CHECK(two.Serves(0, 4));
  size_t found = 0;
  for (const std::string& path : fake.memory->FileNames()) {
    for (const std::string& name : foreign) {
      found += path.substr(path.rfind('/')) == name.substr(name.rfind('/')) &&
               fake.memory->Peek(path) == std::optional(index) && !path.ends_with("01.idx");
    }
  }
  CHECK(found >= 4);
  CHECK(fake.memory->Peek(HostsOf(one) + "/backup/seg-0000000001.idx") == std::optional(index));
}

TEST(WhatAFullCatalogRefusedIsFoundWhenItHasRoom) {
  FakeFiles fake;
  TestHost one(fake.files(), {.records_max = 16}), two(fake.files(), {.records_max = 16});
  one.Beat();
  for (uint64_t i = 0; i < 8; ++i) one.WriteSealed(4 * i, 4);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(one.context->catalog->refused_full() == 16);  // its own
  CHECK(two.context->catalog->refused_full() == 16);  // another's
  for (TestHost* host : {&one, &two}) {
    CHECK(host->context->catalog->records() == 16);
    host->Rounds(3);
    CHECK(host->context->catalog->refused_full() == 16);  // nobody tries in vain
  }
  const auto all = one.context->segments->All();  // each knows four of them
  for (const auto& segment : all) {
    if (segment->identity.number % 2 == 0) continue;
    RetireSegment(*one.context, *segment);
    CHECK(RemoveSegmentFiles(*one.context, one.directory(), segment->identity.number).ok());
  }
  one.ns->changes.fetch_add(1);
  one.Rounds(2);
  two.Rounds(3);
  for (TestHost* host : {&one, &two}) {
    CHECK(host->context->catalog->records() == 16);
    for (uint64_t i = 0; i < 8; ++i) CHECK(i % 2 == 0 ? host->ServesNone(4 * i, 4) : host->Serves(4 * i, 4));
  }
}

TEST(AHostIsOfItsOwnEpochWhateverOthersClear) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.WriteSealed(0, 4);
  two.Beat();
  two.WriteSealed(10, 4);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(one.Serves(10, 4) && two.Serves(0, 4));
  CHECK(ConfirmClear(*one.context, *one.ns).ok());
  one.Rounds(1);
  two.Rounds(1);
  CHECK(one.ns->epoch.load() == 1);
  CHECK(two.ns->epoch.load() == 0 && two.ns->root_epoch.load() == 1);
  CHECK(one.ServesNone(0, 4) && one.ServesNone(10, 4));
  CHECK(one.context->catalog->records() == 0);
  CHECK(two.Serves(0, 4) && two.Serves(10, 4));  // until their owner removes its own
  one.WriteSealed(20, 2);
  one.Write(22, 2);
  two.WriteSealed(30, 2);
  one.Rounds(2);
  two.Rounds(2);
  CHECK(one.Serves(20, 4) && one.ServesNone(30, 2));
  CHECK(two.Serves(30, 2) && two.ServesNone(20, 4));
  // Whoever clears is alone with what it stores from then on, whoever comes new is of the highest epoch.
  CHECK(ConfirmClear(*two.context, *two.ns).ok());
  CHECK(two.ns->epoch.load() == 2);
  two.WriteSealed(40, 2);
  one.Rounds(2);
  two.Rounds(2);
  CHECK(one.Serves(20, 4) && one.ServesNone(40, 2));
  CHECK(two.Serves(40, 2) && two.ServesNone(20, 4) && two.ServesNone(30, 2));
  TestHost three(fake.files());
  RaiseEpoch(*three.context, *three.ns, 2);
  three.Rounds(2);
  CHECK(three.Serves(40, 2) && three.ServesNone(20, 4));
  fake.memory->Put(NamespaceDirectory(one.ns->id) + "/epoch-00", "");  // foreign
  one.Rounds(1);
  CHECK(one.ns->root_epoch.load() == 2);
}

TEST(FailuresOfTheMediumAreReportedAndGotOver) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.WriteSealed(0, 4);
  one.Rounds(1);
  for (const uint32_t op : {kOpList, kOpReadAll, kOpPublish, kOpMakeDirectory}) {
    TestHost fresh(fake.files());
    fake.plan->Add({.ops = op, .times = 2, .error = EIO});
    int failed = 0;
    for (int i = 0; i < 6; ++i) failed += !fresh.Round().ok();
    CHECK(failed >= 1);
    CHECK(fresh.Serves(0, 4));
    fresh.peers->Leave(*fresh.ns);
  }
  CHECK(two.Round().ok());
  CHECK(two.Serves(0, 4));
}

CHECK_MAIN()
