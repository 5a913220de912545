// The doubles themselves: a test that stands on them says nothing if they forget to forget.
#include "fake_files.h"

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "file_tools.h"

namespace tpu_sync_native {
namespace {

using namespace testing;

bool There(FileSystem& files, const std::string& path) {
  std::string data;
  return files.ReadAll(path, 1 << 30, &data).ok();
}

TEST(ACrashForgetsWhatWasNotSynced) {
  FakeFiles fake;
  FileSystem& files = *fake.files();
  Ok(files.MakeDirectory("d", false), "d");
  Buffer data(10'000);
  auto synced = Append(files, "d/synced", {data.part(0, 4096)});
  Ok(synced->Sync(), "sync");
  Ok(synced->Append(std::vector{data.part(4096, 4096)}), "append");
  auto never = Append(files, "d2", {data.part(0, 4096)});
  std::unique_ptr<ReadFile> reader;
  Ok(files.OpenRead("d/synced", &reader), "open");

  fake.memory->Crash();
  CHECK(ReadBack(files, "d/synced") == data.text().substr(0, 4096));
  CHECK(!There(files, "d2"));
  uint8_t byte = 0;
  Is(reader->Read(0, std::vector{IoVec{&byte, 1}}), EIO, "opened before the crash");
  Is(synced->Sync(), EIO, "opened before the crash");
}

TEST(ACrashForgetsEntriesThatWereNotSynced) {
  FakeFiles fake;
  FileSystem& files = *fake.files();
  Ok(files.MakeDirectory("d", false), "d");
  Ok(files.Publish("d/published", "1", true), "publish");
  auto unsynced = Append(files, "d/unsynced", {});
  Ok(files.Remove("d/published"), "remove");
  fake.memory->Crash();
  CHECK(There(files, "d/published"));  // its removal was not durable
  CHECK(!There(files, "d/unsynced"));
  Ok(files.Rename("d/published", "moved"), "rename");
  fake.memory->Crash();
  CHECK(There(files, "moved") && !There(files, "d/published"));
}

TEST(ACrashByChanceKeepsPrefixesOrZeros) {
  Buffer data(8192);
  bool kept_some = false, forgot_some = false, zeros = false, entry_kept = false;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    FakeFiles fake;
    FileSystem& files = *fake.files();
    auto file = Append(files, "f", {data.part(0, 1000)});
    Ok(file->Sync(), "sync");
    Ok(file->Append(std::vector{data.part(1000, 7000)}), "append");
    Append(files, "g", {data.part(0, 10)}).reset();
    fake.memory->Crash(seed);
    const std::string left = ReadBack(files, "f");
    CHECK(left.size() >= 1000 && left.size() <= 8000);
    CHECK(left.substr(0, 1000) == data.text().substr(0, 1000));
    const bool same = left == data.text().substr(0, left.size());
    kept_some |= left.size() > 1000;
    forgot_some |= left.size() < 8000;
    zeros |= !same;
    entry_kept |= There(files, "g");
  }
  CHECK(kept_some && forgot_some && zeros && entry_kept);
}

TEST(FaultsComeWhenTheyWerePlanted) {
  FakeFiles fake;
  FileSystem& files = *fake.files();
  const size_t fault =
      fake.plan->Add({.ops = kOpAppend, .pattern = "*.kvs", .skip = 1, .times = 2, .error = ENOSPC});
  auto other = Append(files, "other", {});
  std::unique_ptr<AppendFile> file;
  Ok(files.OpenAppend("a.kvs", 0, &file), "open");
  Ok(file->Append({}), "the first");
  Is(file->Append({}), ENOSPC, "the second");
  Is(file->Append({}), ENOSPC, "the third");
  Ok(file->Append({}), "the fourth");
  Ok(other->Append({}), "another file");
  CHECK(fake.plan->hits(fault) == 2);
}

TEST(TornAppendsAndShortReads) {
  FakeFiles fake;
  FileSystem& files = *fake.files();
  Buffer data(10'000);
  std::unique_ptr<AppendFile> file;
  Ok(files.OpenAppend("f", 0, &file), "open");
  fake.plan->Add({.ops = kOpAppend, .error = EIO, .bytes_done = 5000});
  Is(file->Append(std::vector{data.part(0, 4096), data.part(4096, 4096)}), EIO, "torn");
  CHECK(*fake.memory->Peek("f") == data.text().substr(0, 5000));
  fake.plan->Add({.ops = kOpRead, .error = IoError::kShort, .bytes_done = 100});
  std::unique_ptr<ReadFile> reader;
  Ok(files.OpenRead("f", &reader), "open");
  Buffer got(4096, 2);
  std::memset(got.data(), 0, got.size());
  Is(reader->Read(0, std::vector{got.all()}), IoError::kShort, "short");
  CHECK(std::memcmp(got.data(), data.data(), 100) == 0 && got.data()[100] == 0 && got.data()[200] == 0);
  Ok(reader->Read(0, std::vector{got.all()}), "the next");
}

TEST(HangsLastUntilTheyAreReleased) {
  FakeFiles fake;
  Ok(fake.files()->Publish("f", "1", true), "publish");
  fake.plan->Add({.ops = kOpReadAll, .times = -1, .hang = true});
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      CHECK(There(*fake.files(), "f"));
      ++done;
    });
  }
  CHECK(fake.plan->WaitHanging(2));
  CHECK(done == 0);
  fake.plan->Release();
  for (std::thread& thread : threads) thread.join();
  CHECK(done == 2);
  CHECK(There(*fake.files(), "f"));  // nobody hangs any more
}

TEST(ListingsOfYesterday) {
  FakeFiles fake;
  FileSystem& files = *fake.files();
  Ok(files.MakeDirectory("hosts", false), "hosts");
  Ok(files.Publish("hosts/a", "1", true), "publish");
  std::vector<DirEntry> entries;
  Ok(files.List("hosts", &entries), "list");
  fake.plan->StaleListings("hosts*", 2);
  Ok(files.Publish("hosts/b", "1", true), "publish");
  for (int i = 0; i < 2; ++i) {
    Ok(files.List("hosts", &entries), "list");
    CHECK(entries.size() == 1 && entries[0].name == "a");
  }
  Ok(files.List("hosts", &entries), "list");
  CHECK(entries.size() == 2);
}

TEST(AFullDisk) {
  FakeFiles fake;
  FileSystem& files = *fake.files();
  fake.memory->SetCapacity(10'000);
  Buffer data(9000);
  std::unique_ptr<AppendFile> file;
  Ok(files.OpenAppend("f", 0, &file), "open");
  Ok(file->Append(std::vector{data.all()}), "fits");
  Is(file->Append(std::vector{data.all()}), ENOSPC, "does not");
  Is(files.Publish("g", "1", true), ENOSPC, "nothing does");
  SpaceInfo space;
  Ok(files.Space(&space), "space");
  CHECK(space.total_bytes == 10'000 && space.free_bytes == 0);
  Ok(files.Remove("f"), "remove");
  Ok(files.Publish("g", "1", true), "room again");
}

TEST(HooksSeeEveryCall) {
  std::vector<std::string> seen;
  FileHooks hooks;
  hooks.before = [&](const FileCall& call) {
    seen.push_back("before " + std::to_string(call.op) + " " + call.path + call.to);
    return FileVerdict{};
  };
  hooks.after = [&](const FileCall& call, const IoError& error) {
    seen.push_back("after " + std::to_string(call.op) + " " + std::to_string(error.code));
  };
  HookedFiles files(std::make_shared<MemoryFiles>(), hooks);
  Ok(files.Publish("a", "1", true), "publish");
  Is(files.Rename("a", "b/c"), ENOENT, "rename");
  CHECK((seen ==
         std::vector<std::string>{"before " + std::to_string(kOpPublish) + " a",
                                  "after " + std::to_string(kOpPublish) + " 0",
                                  "before " + std::to_string(kOpRename) + " ab/c",
                                  "after " + std::to_string(kOpRename) + " " + std::to_string(ENOENT)}));
}

}  // namespace
}  // namespace tpu_sync_native

CHECK_MAIN()
