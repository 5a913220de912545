// The storage tier as a whole, on a medium that works: what is committed here is read here and elsewhere,
// later and after a restart; what was cleared is not; nobody else's file is touched.
#include "storage/storage_tier.h"

#include <cerrno>
#include <map>

#include "check.h"
#include "fs/posix_file_system.h"
#include "segment/names.h"
#include "temporary_root.h"
#include "tier_fixture.h"

namespace tpu_sync_native::testing {
namespace {

std::string NamespacePath() { return NamespaceDirectory(reinterpret_cast<const uint8_t*>(TierHost::kId)); }

void StoreAndReadBack(const std::shared_ptr<FileSystem>& files, Codec codec) {
  TierHost host(files);
  host.Start(TierHost::kMeta, codec);
  CHECK(host.Put(0, 200) == 200);
  CHECK(host.Flush());
  CHECK(host.Stat("storage_demoted_chunks") == 200);
  CHECK(host.Stat("storage_records") == 200);
  host.Forget();
  CHECK(host.base.reader->LongestPrefix(host.ns, Range(0, 200).batch()) == 0);
  CHECK(host.Found(0, 200) == 200);
  CHECK(host.Get(0, 200) == 200);
  CHECK(host.Stat("storage_promoted_chunks") == 200);
  CHECK(host.tier->state() == "ok");
  CHECK(host.tier->Stop(10'000));
  host.base.CheckNothingHeld();
}

TEST(WhatIsCommittedIsReadBack) { StoreAndReadBack(FakeFiles().files(), Codec::kRaw); }

TEST(WithACodec) { StoreAndReadBack(FakeFiles().files(), Codec::kLz4); }

TEST(OnARealDirectory) {
  const TemporaryRoot root;
  StoreAndReadBack(MakePosixFileSystem(root.path()), Codec::kRaw);
}

// Whole segments only, and nothing that asks for renames.
TEST(OnAnObjectStore) {
  FileSystemTraits traits;
  traits.appends_readable = false;
  traits.renames = false;
  FakeFiles fake(traits);
  TierHost host(fake.files());
  host.Start();
  CHECK(host.Put(0, 100) == 100);
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Get(0, 100) == 100);
  for (const std::string& name : fake.memory->FileNames()) CHECK(name.find("tail.idx") == std::string::npos);
}

TEST(AnotherHostReadsIt) {
  FakeFiles fake;
  TierHost writer(fake.files()), reader(fake.files());
  writer.Start();
  reader.Start();
  writer.Put(0, 100);
  CHECK(writer.Flush());
  CHECK(Eventually([&] { return reader.Found(0, 100) == 100; }));
  CHECK(reader.Get(0, 100) == 100);
  // What is on storage already is not written again.
  reader.Forget();
  CHECK(reader.Put(1000, 1) == 1);
  CHECK(reader.Flush());
  CHECK(reader.Stat("storage_demoted_chunks") == 1);
}

TEST(ARestartFindsWhatWasWritten) {
  FakeFiles fake;
  {
    TierHost host(fake.files());
    host.Start();
    host.Put(0, 300);
    CHECK(host.tier->Stop(10'000));
    CHECK(host.Stat("storage_demoted_chunks") == 300);
    CHECK(host.Stat("storage_sealed_segments") > 1);
  }
  TierHost host(fake.files());
  host.Start();
  // A read that meets the moment in which the directory of before is taken over is a miss.
  CHECK(Eventually([&] { return host.Get(0, 300) == 300; }));
}

// The same directory again: its numbers go on.
TEST(AHostIdThatComesBackOverwritesNothing) {
  FakeFiles fake;
  const StorageOptions options = QuickOptions();
  for (uint64_t life = 0; life < 3; ++life) {
    StorageOptions own = options;
    own.boot_id = 100 + life;
    TierHost host(fake.files(), own);
    host.Start();
    host.Put(life * 100, 100);
    CHECK(host.tier->Stop(10'000));
    CHECK(host.Stat("storage_demoted_chunks") == 100);
  }
  TierHost host(fake.files());
  host.Start();
  // A read that meets the moment in which the directory of before is taken over is a miss.
  CHECK(Eventually([&] { return host.Get(0, 300) == 300; }));
}

TEST(AChunkThatIsThereIsNotWrittenTwice) {
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  host.Put(0, 50);
  CHECK(host.Flush());
  host.Forget();
  CHECK(host.Put(0, 50) == 50);
  CHECK(host.Flush());
  CHECK(host.Stat("storage_demoted_chunks") == 50);
  CHECK(host.Stat("storage_dropped_present") == 50);
}

TEST(WhatDoesNotFitIntoTheQueueIsDroppedFromItsEnd) {
  FakeFiles fake;
  StorageOptions options = QuickOptions();
  options.demote_queue_bytes = 10 * TierHost::kChunkBytes;
  TierHost host(fake.files(), options);
  host.Start();
  fake.plan->Add({.ops = kOpAppend, .pattern = "*.kvs", .times = -1, .hang = true});
  host.Put(0, 1);
  CHECK(fake.plan->WaitHanging(1));
  for (uint64_t i = 0; i < 10; ++i) host.Put(100 * (i + 1), 20);
  CHECK(host.Stat("storage_dropped_queue") >= 150);
  fake.plan->Release();
  CHECK(host.Flush());
  CHECK(host.Stat("storage_demoted_chunks") + host.Stat("storage_dropped_queue") == 201);
  host.Forget();
  CHECK(host.Get(100, 20) == 10);
}

// ---- the root ----

TEST(AnotherFingerprintUnderTheSameIdIsRefusedLoudly) {
  FakeFiles fake;
  {
    TierHost first(fake.files());
    first.Start();
    first.Put(0, 10);
    CHECK(first.Flush());
  }
  TierHost second(fake.files());
  CHECK(second.tier->CheckRoot(10'000).empty());
  second.tier->Start();
  const std::string meta = "{\"chunk_bytes\":5000,\"fingerprint\":{\"model\":\"n\"}}\n";
  second.tier->OpenNamespace(second.ns, TierHost::kId, TierHost::kChunkBytes, meta, Codec::kRaw);
  CHECK(Eventually([&] { return second.NamespaceState().starts_with("refused: "); }));
  CHECK(second.NamespaceState().find("meta.json holds another fingerprint") != std::string::npos);
  CHECK(second.NamespaceState().find("byte 44") != std::string::npos);
  CHECK(second.Stat("storage_namespaces_refused") == 1);
  // DRAM goes on; nothing is written, nothing served.
  second.Put(0, 10, 5);
  CHECK(second.Flush());
  CHECK(second.Get(0, 10, 5) == 10);
  CHECK(second.Stat("storage_demoted_chunks") == 0);
  second.Forget();
  CHECK(second.Get(0, 10, 5) == 0);
  CHECK(*fake.memory->Peek(NamespacePath() + "/meta.json") == TierHost::kMeta);
}

TEST(RootsThatCannotBeUsedSayWhy) {
  const struct {
    const char* marker;
    const char* words;
  } cases[] = {
      {"{\"format\": 2}\n", "newer version: its format is 2"},
      {"{\"format\": 0}\n", "is not the marker"},
      {"{\"format\": 99999999999999999999}\n", "is not the marker"},
      {"{\"format\": 1, \"more\": 2}\n", "is not the marker"},
      {"", "is not the marker"},
      {"}", "is not the marker"},
      {"{\"format\":}", "is not the marker"},
      {"hello", "is not the marker"},
  };
  for (const auto& wrong : cases) {
    FakeFiles fake;
    fake.memory->Put("kvtier.json", wrong.marker);
    TierHost host(fake.files());
    const std::string why = host.tier->CheckRoot(10'000);
    CHECK(why.find(wrong.words) != std::string::npos);
    CHECK(fake.memory->FileNames() == std::vector<std::string>{"kvtier.json"});
    CHECK(*fake.memory->Peek("kvtier.json") == wrong.marker);
  }
  FakeFiles spaced;
  spaced.memory->Put("kvtier.json", "{ \"format\" : 1 }");
  CHECK(TierHost(spaced.files()).tier->CheckRoot(10'000).empty());
  FakeFiles large;
  large.memory->Put("kvtier.json", std::string(10'000, 'x'));
  CHECK(TierHost(large.files()).tier->CheckRoot(10'000).find("is not the marker") != std::string::npos);
  FakeFiles broken;
  broken.plan->Add({.ops = kOpReadAll, .pattern = "kvtier.json", .times = -1, .error = EIO});
  CHECK(TierHost(broken.files()).tier->CheckRoot(10'000).find("cannot be read: EIO") != std::string::npos);
  const auto checked = [](int error, bool marked) {
    FakeFiles fake;
    if (marked) fake.memory->Put("kvtier.json", "{\"format\": 1}\n");
    fake.plan->Add({.ops = kOpCheckRoot | kOpPublish, .times = -1, .error = error});
    return TierHost(fake.files()).tier->CheckRoot(10'000);
  };
  CHECK(checked(EIO, true).find("EIO") != std::string::npos);
  CHECK(checked(EROFS, true).find("EROFS") != std::string::npos);
  CHECK(checked(ENOSPC, true).empty());  // what is there can be served
  CHECK(checked(ENOSPC, false).find("cannot be made: ENOSPC") != std::string::npos);
  FakeFiles hung;
  hung.plan->Add({.ops = kOpsAll, .times = -1, .hang = true});
  CHECK(TierHost(hung.files()).tier->CheckRoot(50).find("did not answer within 50 ms") != std::string::npos);
  const TemporaryRoot above;
  TierHost missing(MakePosixFileSystem(above / "nowhere"));
  CHECK(missing.tier->CheckRoot(10'000).find(above / "nowhere") != std::string::npos);
}

TEST(ForeignFilesStayAsTheyAre) {
  FakeFiles fake;
  const std::string hosts = NamespacePath() + "/hosts";
  const std::map<std::string, std::string> foreign = {
      {"notes.txt", "mine"},
      {"v1/notes.txt", "mine"},
      {"v1/0123/meta.json", "mine"},
      {"v2/deep/er", "mine"},
      {NamespacePath() + "/epoch-01", "mine"},
      {NamespacePath() + "/epoch-x", "mine"},
      {hosts + "/README", "mine"},
      {hosts + "/not-a-host/seg-0000000001.kvs", "mine"},
      {hosts + "/00000000000000000000000000000000/seg-1.kvs", "mine"},
      {hosts + "/00000000000000000000000000000000/seg-0000000001.idx", "no index"},
      {hosts + "/00000000000000000000000000000000/seg-0000000002.kvs", "no segment"},
  };
  for (const auto& [name, data] : foreign) fake.memory->Put(name, data);
  {
    TierHost host(fake.files());
    host.Start();
    host.Put(0, 100);
    CHECK(host.Flush());
    host.base.store->ClearNamespace(host.ns);
    host.tier->ClearNamespace(host.ns);
    CHECK(Eventually([&] { return host.Stat("storage_deleted_segments") >= 1; }));
  }
  for (const auto& [name, data] : foreign) CHECK(fake.memory->Peek(name) == data);
}

TEST(OptionsThatMakeNoSenseAreNamed) {
  const auto make = [](auto change) {
    StorageOptions options = QuickOptions();
    change(options);
    TierHost host(FakeFiles().files(), options);
  };
  CHECK_THROWS(make([](StorageOptions& o) { o.segment_bytes = 1; }), "segment_bytes is 1");
  CHECK_THROWS(make([](StorageOptions& o) { o.load_threads = 0; }), "load_threads is 0");
  CHECK_THROWS(make([](StorageOptions& o) { o.poll_ms = 0; }), "poll_ms is 0");
  CHECK_THROWS(make([](StorageOptions& o) { o.dead_after_ms = 30; }), "dead_after_ms");
  CHECK_THROWS(make([](StorageOptions& o) { o.free_low = 0.5; }), "free_low");
  CHECK_THROWS(make([](StorageOptions& o) { o.copy_forward_share = 1.5; }), "copy_forward_share");
  TierHost host(FakeFiles().files());
  CHECK_THROWS(host.tier->OpenNamespace(9, "short", 4096, "{}", Codec::kRaw), "16 bytes");
  CHECK_THROWS(host.tier->OpenNamespace(9, TierHost::kId, 1ull << 40, "{}", Codec::kRaw), "chunk_bytes");
  StorageOptions small = QuickOptions();
  small.quota_bytes = 1 << 20;
  CHECK(TierHost(FakeFiles().files(), small).Stat("storage_segment_bytes") == (1 << 20) / 16);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
