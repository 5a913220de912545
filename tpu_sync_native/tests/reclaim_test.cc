// What goes when there is no room, in which order, and what stays.

#include <algorithm>
#include <deque>
#include <random>

#include "hosts_fixture.h"
#include "storage/namespace_root.h"
#include "storage/reclaimer.h"
#include "storage/strangers.h"
#include "storage/usage.h"

using namespace tpu_sync_native;
using namespace tpu_sync_native::testing;

namespace {

// Segments of four chunks: 4096 + 4 * 12288 bytes.
constexpr uint64_t kSegment = kStorageUnit + 4 * (kStorageUnit + kHostChunkBytes);

struct ReclaimHost : TestHost {
  explicit ReclaimHost(std::shared_ptr<FileSystem> files, const HostOptions& options = {})
      : TestHost(std::move(files), options),
        demoter(context, *base.store, base.arena),
        reclaimer(context, *peers, demoter) {}

  void WriteSegments(uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) WriteSealed(first + 4 * i, 4);
  }
  IoError Reclaim() { return reclaimer.Round(now_ms); }
  std::shared_ptr<Segment> SegmentOf(uint64_t number) {
    return context->segments->FindByIdentity(ns->host_id, ns->id, number);
  }
  uint64_t deleted() const { return context->counters.deleted_segments.load(); }

  StoreFixture base;
  Demoter demoter;  // not started: nothing is copied forward
  Reclaimer reclaimer;
};

}  // namespace

TEST(HostsThatSeeEachOtherLateStayNearTheQuota) {
  std::mt19937_64 random(11);
  for (const uint32_t hosts : {1u, 2u, 5u, 20u}) {
    const uint64_t quota = uint64_t{1} << 40, segment = quota / 2048;
    std::vector<uint64_t> own(hosts, 0);
    std::vector<uint32_t> over(hosts, 0);
    std::vector<uint64_t> wrote(hosts, 0);
    std::deque<std::vector<uint64_t>> seen(3, own);  // others are seen as they were two rounds ago
    uint64_t most = 0, least = quota, asked = 0, granted = 0;
    for (int round = 0; round < 4000; ++round) {
      seen.push_back(own);
      seen.pop_front();
      for (uint32_t h = 0; h < hosts; ++h) {
        Usage usage{.quota_bytes = quota, .total_bytes = own[h], .own_bytes = own[h], .hosts = hosts};
        for (uint32_t other = 0; other < hosts; ++other) {
          if (other != h) usage.total_bytes += seen.front()[other];
        }
        const uint64_t spare = SpareBytes(usage, wrote[h], 8 << 20);
        over[h] = usage.total_bytes + spare > quota ? over[h] + 1 : 0;
        uint64_t free = BytesToFree(usage, spare, over[h]);
        free = std::min(own[h], (free + segment - 1) / segment * segment);
        own[h] -= free;
        usage.own_bytes -= free;
        usage.total_bytes -= free;
        // Some hosts write much, some little, some nothing.
        const uint64_t wanted = h % 3 == 2 ? 0 : quota / 500 / hosts * (1 + random() % 4);
        wrote[h] = std::min<uint64_t>(wanted, static_cast<uint64_t>(RoomBytes(usage)));
        own[h] += wrote[h];
        if (round > 2000) asked += wanted;
        if (round > 2000) granted += wrote[h];
      }
      uint64_t total = 0;
      for (const uint64_t bytes : own) total += bytes;
      most = std::max(most, total);
      if (round > 2000) least = std::min(least, total);
    }
    std::fprintf(stderr, "%u hosts: %.3f to %.3f of the quota, %.2f of what was to be written\n", hosts,
                 double(least) / double(quota), double(most) / double(quota),
                 double(granted) / double(asked));
    CHECK(most <= quota);
    CHECK(least >= quota / 100 * 90);
    CHECK(granted >= asked / 2);  // and the writers are not starved for it
  }
}

TEST(TheColdestSegmentsGoUntilTheQuotaHolds) {
  FakeFiles fake;
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment, .quota_bytes = 20 * kSegment});
  host.Rounds(1);
  host.WriteSegments(0, 25);
  for (uint64_t number = 1; number <= 25; ++number) {
    host.SegmentOf(number)->age_from_s.store(static_cast<uint32_t>(number <= 3 ? 1000 + number : number));
  }
  CHECK(host.Reclaim().ok());
  CHECK(host.peers->bytes_seen(*host.ns) <= 20 * kSegment);
  CHECK(host.peers->bytes_seen(*host.ns) >= 18 * kSegment);
  CHECK(host.Serves(0, 12));                       // spared lately
  CHECK(host.ServesNone(12, 4 * host.deleted()));  // misses at once
  CHECK(host.Serves(12 + 4 * host.deleted(), 4));
  CHECK(host.context->counters.deleted_bytes.load() == host.deleted() * kSegment);
  uint64_t files = 0;
  for (const std::string& name : fake.memory->FileNames())
    files += name.ends_with(".kvs") || name.ends_with(".idx");
  CHECK(files == 2 * (25 - host.deleted()));
  const uint64_t deleted = host.deleted();
  CHECK(host.Reclaim().ok());
  CHECK(host.deleted() == deleted);  // enough is enough
  CHECK(host.context->room_bytes.load() > 0);
  host.Rounds(1);
  CHECK(host.context->catalog->records() == 4 * (25 - deleted));  // swept
}

TEST(AQuotaOfANamespaceLeavesOthersAlone) {
  FakeFiles fake;
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment, .namespace_quota_bytes = 10 * kSegment});
  host.Rounds(1);
  host.WriteSegments(0, 15);
  const auto other = host.Open(2, 9);
  CHECK(host.peers->Heartbeat(*other, host.now_ms).ok());
  SegmentWriter writer(host.context, other);
  RecordBatch batch(kHostChunkBytes, Codec::kRaw, 1 << 20);
  const std::string chunk = ChunkOf(NumberedKey(1));
  CHECK(batch.Add(NumberedKey(1), reinterpret_cast<const uint8_t*>(chunk.data())));
  CHECK(writer.Append(batch, 0).ok());
  CHECK(writer.Seal().ok());
  CHECK(host.Reclaim().ok());
  CHECK(host.peers->bytes_seen(*host.ns) <= 10 * kSegment);
  CHECK(host.peers->bytes_seen(*other) == 2 * kStorageUnit + kHostChunkBytes);
  CHECK(host.ns->room_bytes.load() < other->room_bytes.load());
}

TEST(TheHostAboveItsShareFrees) {
  FakeFiles fake;
  const HostOptions options{.segment_bytes = kSegment, .quota_bytes = 40 * kSegment};
  ReclaimHost big(fake.files(), options), small(fake.files(), options);
  for (ReclaimHost* host : {&big, &small}) host->Rounds(1);
  big.WriteSegments(0, 35);
  small.WriteSegments(1000, 10);
  for (int i = 0; i < 2; ++i) {
    for (ReclaimHost* host : {&big, &small}) host->Rounds(1);
  }
  CHECK(small.Reclaim().ok());
  CHECK(small.deleted() == 0);
  CHECK(big.Reclaim().ok());
  CHECK(big.deleted() >= 5);
  CHECK(big.deleted() <= 8);
  for (ReclaimHost* host : {&big, &small}) host->Rounds(1);
  CHECK(small.Serves(1000, 40));
  CHECK(big.Serves(1000, 40));
  uint64_t served = 0;
  for (uint64_t i = 0; i < 140; ++i) served += small.Read(i) == ReadVerdict::kOk;
  CHECK(served == 4 * (35 - big.deleted()));  // the other host has noticed
}

TEST(SegmentsOfClearedEpochsGoFirst) {
  FakeFiles fake;
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment});  // without any quota
  host.Rounds(1);
  host.WriteSegments(0, 3);
  CHECK(ConfirmClear(*host.context, *host.ns).ok());
  host.Rounds(1);
  CHECK(host.ServesNone(0, 12));
  CHECK(host.Reclaim().ok());
  CHECK(host.deleted() == 3);
  for (const std::string& name : fake.memory->FileNames()) CHECK(!name.ends_with(".kvs"));
}

TEST(WhatCannotBeRemovedIsCountedAndTriedAgain) {
  FakeFiles fake;
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment, .quota_bytes = 20 * kSegment});
  host.Rounds(1);
  host.WriteSegments(0, 21);
  fake.plan->Add({.ops = kOpRemove, .pattern = "*.kvs", .times = 1, .error = EIO});
  CHECK(host.Reclaim().code == EIO);
  CHECK(host.deleted() == 0);
  CHECK(host.ServesNone(0, 4));
  CHECK(host.Serves(4, 80));
  CHECK(host.Reclaim().ok());
  CHECK(host.deleted() >= 1);
  uint64_t files = 0;
  for (const std::string& name : fake.memory->FileNames()) files += name.ends_with(".kvs");
  CHECK(files == 21 - host.deleted());
}

TEST(AReadOnlyMediumLosesNothing) {
  FakeFiles fake;
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment, .quota_bytes = 20 * kSegment});
  host.Rounds(1);
  host.WriteSegments(0, 22);
  fake.plan->Add({.ops = kOpsWrite, .times = -1, .error = EROFS});
  host.context->CloseAdmission("no space: EROFS");
  for (int i = 0; i < 10; ++i) CHECK(host.Reclaim().code == EROFS);
  CHECK(host.Serves(0, 88));
  CHECK(host.deleted() == 0);
  fake.plan->Clear();
  for (int i = 0; i < 40; ++i) CHECK(host.Reclaim().ok());
  CHECK(host.context->admitting.load());
  CHECK(host.deleted() >= 2);
}

TEST(BelowTheWatermarkNothingIsAdmittedAndTheColdestGoes) {
  FakeFiles fake;
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment});
  host.Rounds(1);
  host.WriteSegments(0, 20);
  fake.memory->SetCapacity(fake.memory->UsedBytes() * 100 / 95);  // 5 % free
  CHECK(host.Reclaim().ok());
  CHECK(!host.context->admitting.load());
  CHECK(host.context->admission_reason().starts_with("full: "));
  CHECK(host.deleted() >= 2);
  CHECK(host.deleted() <= 5);
  CHECK(host.Reclaim().ok());
  CHECK(host.context->admitting.load());
  SpaceInfo space;
  CHECK(fake.memory->Space(&space).ok());
  CHECK(space.free_bytes * 100 >= space.total_bytes * 15);
}

TEST(AFailedWriteIsTriedAgainAfterAPauseThatDoubles) {
  FakeFiles fake;
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment});
  host.Rounds(1);
  host.WriteSegments(0, 8);
  std::vector<int> pauses;
  for (int failure = 0; failure < 7; ++failure) {
    host.reclaimer.NoSpace();
    CHECK(!host.context->admitting.load());
    int rounds = 0;
    while (!host.context->admitting.load()) {
      CHECK(host.Reclaim().ok());
      CHECK(++rounds < 100);
    }
    pauses.push_back(rounds);
  }
  CHECK(pauses == (std::vector<int>{2, 3, 5, 9, 17, 17, 17}));
  CHECK(host.deleted() == 7);  // a segment each time: whatever statfs says, there was no room
  CHECK(host.Reclaim().ok());
  host.reclaimer.NoSpace();
  CHECK(host.Reclaim().ok());
  CHECK(host.Reclaim().ok());
  CHECK(host.context->admitting.load());  // the attempt in between had lasted
}

TEST(WhatNobodyHasOpenGoesBeforeAnythingElse) {
  FakeFiles fake;
  const HostOptions old_model{.segment_bytes = kSegment, .namespace_byte = 9};
  auto dead = std::make_unique<TestHost>(fake.files(), old_model);
  TestHost living(fake.files(), {.segment_bytes = kSegment, .namespace_byte = 11});
  for (TestHost* host : {dead.get(), &living}) {
    host->Rounds(1);
    for (uint64_t i = 0; i < 5; ++i) host->WriteSealed(4 * i, 4);
    host->Beat();
  }
  const std::string gone = dead->directory();
  fake.memory->Put(gone + "/notes.txt", "foreign");
  dead = nullptr;
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment, .quota_bytes = 20 * kSegment});
  host.Rounds(1);
  CHECK(host.Reclaim().ok());
  host.WriteSegments(0, 11);  // with what the others have: over the quota
  CHECK(host.Reclaim().ok());
  const uint64_t before = host.deleted();
  CHECK(before <= 3);
  CHECK(fake.memory->Peek(gone + "/" + SegmentName(1)).has_value());  // it may come back
  for (int i = 0; i < 150; ++i) {
    living.Beat();
    CHECK(host.Round(1000).ok());
    CHECK(host.Reclaim().ok());
  }
  host.WriteSegments(1000, 3);
  CHECK(host.Reclaim().ok());
  CHECK(host.deleted() >= before + 5);
  uint64_t segments = 0;
  for (const std::string& name : fake.memory->FileNames()) {
    segments += name.ends_with(".kvs") && name.starts_with(HostsDirectory(living.ns->id));
    CHECK(!(name.ends_with(".kvs") &&
            name.find(HexId(std::vector<uint8_t>(16, 9).data())) != std::string::npos));
  }
  CHECK(segments == 5);
  CHECK(living.Serves(0, 20));
  const auto names = fake.memory->FileNames();
  CHECK(
      std::any_of(names.begin(), names.end(), [](const auto& name) { return name.ends_with("notes.txt"); }));
}

TEST(ANamespaceThatIsRefusedTakesSpaceToo) {
  FakeFiles fake;
  TestHost other(fake.files(), {.segment_bytes = kSegment, .namespace_byte = 9});
  other.Rounds(1);
  for (uint64_t i = 0; i < 10; ++i) other.WriteSealed(4 * i, 4);
  other.Beat();
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment, .quota_bytes = 20 * kSegment});
  host.Open(2, 9)->state.store(StorageNamespace::State::kRefused);
  host.Rounds(1);
  CHECK(host.Reclaim().ok());
  host.WriteSegments(0, 15);
  for (int i = 0; i < 8; ++i) {
    other.Beat();
    host.Rounds(1);
    CHECK(host.Reclaim().ok());
  }
  CHECK(host.deleted() >= 5);
  CHECK(other.Serves(0, 40));
}

TEST(ANamespaceThatIsOpenedIsNotCountedTwice) {
  FakeFiles fake;
  TestHost other(fake.files(), {.segment_bytes = kSegment, .namespace_byte = 9});
  other.Rounds(1);
  for (uint64_t i = 0; i < 8; ++i) other.WriteSealed(4 * i, 4);
  other.Beat();
  ReclaimHost host(fake.files(), {.segment_bytes = kSegment, .quota_bytes = 20 * kSegment});
  host.Rounds(1);
  host.WriteSegments(0, 8);
  CHECK(host.Reclaim().ok());
  const auto opened = host.Open(2, 9);
  for (int i = 0; i < 6; ++i) {
    other.Beat();
    CHECK(host.Round().ok());
    CHECK(host.peers->Heartbeat(*opened, host.now_ms).ok());
    CHECK(host.peers->Poll(*opened, host.now_ms).ok());
    CHECK(host.Reclaim().ok());
  }
  CHECK(host.peers->bytes_seen(*opened) == 8 * kSegment);
  CHECK(host.deleted() == 0);
}

CHECK_MAIN()
