// Hosts that die, or seem to: what they leave is taken over, once, and served on.

#include "storage/adoption.h"

#include <atomic>

#include "hooked_files.h"
#include "hosts_fixture.h"
#include "segment/segment_codec.h"

using namespace tpu_sync_native;
using namespace tpu_sync_native::testing;

namespace {

std::string HostsOf(const TestHost& host) { return HostsDirectory(host.ns->id); }

std::vector<std::string> Directories(FileSystem& files, const TestHost& host) {
  std::vector<DirEntry> entries;
  CHECK(files.List(HostsOf(host), &entries).ok());
  std::vector<std::string> names;
  for (const DirEntry& entry : entries) names.push_back(entry.name);
  return names;
}

}  // namespace

TEST(ADeadHostIsAdoptedByOneAndServedByAll) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files()), three(fake.files());
  one.Beat();
  one.WriteSealed(0, 4);
  one.Write(4, 2);                  // in the tail
  one.Write(6, 1, /*sync=*/false);  // readable though never synced: a record that verifies is a record
  one.Rounds(1);
  for (int i = 0; i < 9; ++i) {
    two.Rounds(1);
    three.Rounds(1);
  }
  CHECK(Directories(*fake.memory, one).size() == 3);
  for (int i = 0; i < 4; ++i) {
    two.Rounds(1);
    three.Rounds(1);
  }
  CHECK(two.context->counters.adopted_segments.load() + three.context->counters.adopted_segments.load() == 2);
  TestHost& adopter = two.context->counters.adopted_segments.load() != 0 ? two : three;
  const std::string adopted = HostsOf(one) + "/" + AdoptedName(one.ns->host_id, adopter.ns->host_id);
  CHECK(fake.memory->Peek(adopted + "/seg-0000000002.idx").has_value());  // the tail was sealed
  CHECK(!fake.memory->Peek(adopted + "/tail.idx").has_value());
  CHECK(!fake.memory->Peek(adopted + "/lease").has_value());
  for (TestHost* host : {&two, &three}) {
    CHECK(host->Serves(0, 7));
    CHECK(host->peers->hosts_seen(*host->ns) == 2);
    uint64_t own = 0;
    for (const auto& segment : host->context->segments->All()) own += segment->own.load();
    CHECK(own == (host == &adopter ? 2 : 0));
  }
  adopter.Rounds(1);
  for (TestHost* host : {&two, &three}) host->Rounds(1);
  CHECK(two.peers->bytes_seen(*two.ns) == three.peers->bytes_seen(*three.ns));
  TestHost four(fake.files());
  four.Rounds(2);
  CHECK(four.Serves(0, 7));
}

TEST(WhoSaysThatItLeavesIsAdoptedAtOnce) {
  FakeFiles fake;
  TestHost two(fake.files());
  {
    TestHost one(fake.files());
    one.Beat();
    one.Write(0, 3);
    CHECK(one.writer->Seal().ok());
    one.peers->Leave(*one.ns);
  }
  two.Rounds(1);
  CHECK(two.context->counters.adopted_segments.load() == 1);
  CHECK(two.Serves(0, 3));
}

// Whoever takes over reads on while the rename is done and not yet noted.
TEST(WhatIsBeingAdoptedIsServed) {
  FakeFiles fake;
  TestHost* adopter = nullptr;
  int renames = 0;
  const auto files = std::make_shared<HookedFiles>(
      fake.files(), FileHooks{.before =
                                  [&](const FileCall& call) {
                                    if (call.op == kOpRename) CHECK(adopter->Serves(0, 2));
                                    return FileVerdict{};
                                  },
                              .after =
                                  [&](const FileCall& call, const IoError& error) {
                                    if (call.op != kOpRename) return;
                                    ++renames;
                                    CHECK(error.ok());
                                    adopter->context->segments->DropFiles();
                                    CHECK(adopter->Serves(0, 4));
                                  },
                              .listed = {}});
  TestHost one(fake.files()), two(files);
  adopter = &two;
  one.Beat();
  one.WriteSealed(0, 4);
  one.peers->Leave(*one.ns);
  two.Rounds(2);
  CHECK(renames == 1);
  CHECK(two.Serves(0, 4));
}

// A rename that fails changes nothing.
TEST(WhatCouldNotBeAdoptedIsServedWhereItLies) {
  FakeFiles fake;
  const auto files = std::make_shared<HookedFiles>(
      fake.files(), FileHooks{.before =
                                  [](const FileCall& call) {
                                    return call.op == kOpRename ? FileVerdict{{EIO}, {}, {}} : FileVerdict{};
                                  },
                              .after = {},
                              .listed = {}});
  TestHost one(fake.files()), two(files);
  one.Beat();
  one.WriteSealed(0, 4);
  one.peers->Leave(*one.ns);
  (void)two.Round();
  CHECK(two.context->counters.adopted_segments.load() == 0);
  CHECK(two.Serves(0, 4));
  for (const auto& segment : two.context->segments->All()) CHECK(!segment->own.load());
}

TEST(ATornTailEndsAtTheLastSoundRecord) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.Write(0, 4);
  const std::string segment = one.directory() + "/" + SegmentName(1);
  CHECK(fake.memory->Flip(segment, kStorageUnit + 2 * (kStorageUnit + kHostChunkBytes) + kStorageUnit + 100,
                          4));
  fake.memory->Put(one.directory() + "/tail.idx", "torn");
  two.Rounds(15);
  CHECK(two.context->counters.adopted_segments.load() == 0);  // none was known before it was scanned
  CHECK(two.Serves(0, 2));
  CHECK(two.ServesNone(2, 2));
}

TEST(ASegmentWithoutARecordGoes) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  fake.memory->Put(one.directory() + "/" + SegmentName(5), "");
  fake.memory->Put(one.directory() + "/" + SegmentName(6), std::string(3 * kStorageUnit, 'x'));
  two.Rounds(20);
  const auto names = Directories(*fake.memory, one);
  CHECK(names.size() == 1);  // its directory too
  CHECK(names[0] == HexId(two.ns->host_id));
}

TEST(AHostThatWasPausedGoesOnAsAnother) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.WriteSealed(0, 4);
  one.Write(4, 2);
  const std::string before = one.directory();
  two.Rounds(15);
  CHECK(two.Serves(0, 6));
  // It wakes up, and writes on before it looks.
  one.Write(6, 1);
  CHECK(one.Round(60'000).ok());
  CHECK(one.directory() != before);
  CHECK(one.context->counters.times_adopted.load() == 1);
  CHECK(one.Serves(0, 6));  // from where they lie now
  one.Write(20, 3);
  one.Rounds(1);
  two.Rounds(1);
  CHECK(two.Serves(20, 3));
  CHECK(one.Serves(20, 3));
  for (const auto& segment : one.context->segments->All()) {
    CHECK(segment->own.load() == (one.context->segments->Directory(*segment) == one.directory()));
  }
  CHECK(two.peers->hosts_seen(*two.ns) == 2);
}

TEST(WhoWasPausedItselfDeclaresNobodyDead) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.WriteSealed(0, 2);
  two.Rounds(2);
  one.Rounds(1);
  CHECK(two.Round(600'000).ok());  // both slept; the first host's lease moved once in all that time
  CHECK(two.Round(600'000).ok());
  CHECK(two.context->counters.adopted_segments.load() == 0);
  CHECK(two.peers->hosts_seen(*two.ns) == 2);
}

TEST(ALeaseThatCannotBeReadSaysNothing) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.WriteSealed(0, 2);
  two.Rounds(2);
  fake.plan->Add({.ops = kOpReadAll, .pattern = one.directory() + "/lease", .times = -1, .error = EIO});
  for (int i = 0; i < 30; ++i) CHECK(two.Round().code == EIO);
  CHECK(two.context->counters.adopted_segments.load() == 0);
  fake.plan->Clear();
  two.Rounds(12);
  CHECK(two.context->counters.adopted_segments.load() == 1);
}

TEST(AnAdoptionCutShortIsTakenUp) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  one.Beat();
  one.WriteSealed(0, 4);
  one.Write(4, 2);
  one.Rounds(1);
  two.Beat();
  two.WriteSealed(10, 2);
  two.Rounds(1);
  // The second host has renamed, and dies there.
  CHECK(
      fake.memory->Rename(one.directory(), HostsOf(one) + "/" + AdoptedName(one.ns->host_id, two.ns->host_id))
          .ok());
  TestHost three(fake.files());
  three.Rounds(15);
  CHECK(three.Serves(0, 6));
  CHECK(three.Serves(10, 2));
  for (const std::string& name : Directories(*fake.memory, one)) {
    CHECK(name == HexId(three.ns->host_id) || name.ends_with(".adopt." + HexId(three.ns->host_id)));
  }
  // An adopter that is not there at all.
  uint8_t nobody[16];
  MakeHostId(nobody);
  const std::string mine = HostsOf(one) + "/" + AdoptedName(one.ns->host_id, three.ns->host_id);
  CHECK(fake.memory->Rename(mine, HostsOf(one) + "/" + AdoptedName(one.ns->host_id, nobody)).ok());
  TestHost four(fake.files());
  for (int i = 0; i < 40; ++i) {
    three.Rounds(1);
    four.Rounds(1);
  }
  CHECK(three.Serves(0, 6));
  CHECK(four.Serves(0, 6));
}

TEST(ACrashOfTheMediumLeavesOnlyMissesAndSoundChunks) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    FakeFiles fake;
    TestHost two(fake.files());
    {
      TestHost one(fake.files());
      one.Beat();
      one.WriteSealed(0, 4);
      one.Write(4, 2);
      one.Write(6, 2, /*sync=*/false);
      one.Rounds(1);
      two.Rounds(1);
      fake.memory->Crash(seed);
    }
    two.Rounds(20);
    CHECK(two.Serves(0, 6));
    for (uint64_t i = 6; i < 8; ++i) CHECK(two.Read(i) != ReadVerdict::kIo);
  }
}

TEST(TwoHostsOfOneIdPart) {
  FakeFiles fake;
  TestHost one(fake.files()), two(fake.files());
  std::memcpy(two.ns->host_id, one.ns->host_id, 16);
  two.context->options.boot_id = one.context->options.boot_id;
  one.Beat();
  two.Beat();  // a clone that starts: the directory is there
  CHECK(one.directory() != two.directory());
  // A clone made while it runs: both move the same lease.
  TestHost three(fake.files());
  three.Beat();
  const std::string lease = three.directory() + "/lease";
  const std::string old = *fake.memory->Peek(lease);
  three.Rounds(2);
  LeaseFile moved{};
  CHECK(DecodeLease(*fake.memory->Peek(lease), &moved).empty());
  moved.counter += 100;
  fake.memory->Put(lease, EncodeLease(moved));
  three.Rounds(1);
  CHECK(three.context->counters.times_adopted.load() == 1);
}

TEST(WhereNothingIsRenamedDeadHostsAreServedAsTheyAre) {
  FileSystemTraits traits;
  traits.renames = false;
  FakeFiles fake(traits);
  TestHost one(fake.files()), two(fake.files()), three(fake.files());
  one.Beat();
  one.WriteSealed(0, 4);
  one.Rounds(1);
  for (int i = 0; i < 15; ++i) {
    two.Rounds(1);
    three.Rounds(1);
  }
  CHECK(fake.memory->Peek(one.directory() + "/" + SegmentName(1)).has_value());
  for (TestHost* host : {&two, &three}) {
    CHECK(host->Serves(0, 4));
    const auto segments = host->context->segments->All();
    CHECK(segments.size() == 1);
    CHECK(segments[0]->own.load());  // anybody may delete it
    CHECK(host->peers->bytes_seen(*host->ns) == segments[0]->bytes.load());
  }
  one.Rounds(1);  // it was only slow
  two.Rounds(1);
  CHECK(!two.context->segments->All()[0]->own.load());
}

CHECK_MAIN()
