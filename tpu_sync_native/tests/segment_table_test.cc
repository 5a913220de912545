// Numbers of segments, and their open files.
#include "storage/segment_table.h"

#include <atomic>
#include <cerrno>
#include <set>
#include <thread>

#include "check.h"
#include "fake_files.h"
#include "segment/names.h"

namespace tpu_sync_native::testing {
namespace {

SegmentIdentity Identity(uint64_t number, uint8_t host = 1) {
  SegmentIdentity identity;
  identity.host_id[0] = host;
  identity.namespace_id[0] = 2;
  identity.number = number;
  return identity;
}

void Plant(const FakeFiles& fake, const std::string& directory, uint64_t number) {
  fake.memory->Put(directory + "/" + SegmentName(number), "segment " + std::to_string(number));
}

TEST(AnIdentityHasOneNumber) {
  FakeFiles fake;
  SegmentTable table(fake.files());
  const auto one = table.Add(Identity(1), "a", true);
  CHECK(one->id == 1 && table.Add(Identity(1), "b", false) == one);
  CHECK(table.Add(Identity(1, 9), "b", false)->id == 2);
  CHECK(table.Get(1) == one && table.Get(0) == nullptr && table.Get(3) == nullptr &&
        table.Get(UINT32_MAX) == nullptr);
  const SegmentIdentity wanted = Identity(1);
  CHECK(table.FindByIdentity(wanted.host_id, wanted.namespace_id, 1) == one);
  CHECK(table.FindByIdentity(wanted.host_id, wanted.namespace_id, 2) == nullptr);
  CHECK(table.All().size() == 2);
}

TEST(ARetiredOneIsGoneForReadersUntilItIsForgotten) {
  FakeFiles fake;
  SegmentTable table(fake.files());
  const auto one = table.Add(Identity(1), "a", true);
  table.Retire(one->id);
  CHECK(one->retired && table.Get(one->id) == nullptr);
  CHECK(table.All().size() == 1 && table.Add(Identity(1), "a", true) == one);
  table.Forget(one->id);
  table.Forget(one->id);
  CHECK(table.All().empty());
  // Its number rests for a while, so that whoever still carries it meets nobody else.
  const auto again = table.Add(Identity(1), "a", true);
  CHECK(again != one && again->id != one->id && !again->retired);
}

TEST(NumbersAreUsedAgainOnceEnoughRest) {
  FakeFiles fake;
  SegmentTable table(fake.files());
  std::set<uint32_t> ids;
  for (uint64_t number = 1; number <= 10'000; ++number) {
    const auto segment = table.Add(Identity(number), "a", true);
    ids.insert(segment->id);
    table.Forget(segment->id);
  }
  CHECK(ids.size() < 5000);
}

TEST(FilesStayOpenAsManyAsAllowed) {
  FakeFiles fake;
  for (uint64_t number = 1; number <= 4; ++number) Plant(fake, "a", number);
  SegmentTable table(fake.files(), 2);
  const size_t opens = fake.plan->Add({.ops = kOpOpenRead, .times = -1});
  std::vector<std::shared_ptr<Segment>> segments;
  for (uint64_t number = 1; number <= 4; ++number) segments.push_back(table.Add(Identity(number), "a", true));
  std::shared_ptr<ReadFile> file, again;
  CHECK(table.OpenFile(*segments[0], &file).ok() && table.OpenFile(*segments[0], &again).ok());
  CHECK(file == again && fake.plan->hits(opens) == 1);
  CHECK(table.OpenFile(*segments[1], &again).ok() && table.OpenFile(*segments[0], &again).ok());
  CHECK(table.OpenFile(*segments[2], &again).ok());  // number 1 was used last, so 2 goes
  CHECK(fake.plan->hits(opens) == 3);
  CHECK(table.OpenFile(*segments[0], &again).ok() && fake.plan->hits(opens) == 3);
  CHECK(table.OpenFile(*segments[1], &again).ok() && fake.plan->hits(opens) == 4);
  table.DropFile(segments[1]->id);
  CHECK(table.OpenFile(*segments[1], &again).ok() && fake.plan->hits(opens) == 5);
  table.DropFiles();
  CHECK(table.OpenFile(*segments[1], &again).ok() && fake.plan->hits(opens) == 6);
  // Who holds a file reads on, whatever becomes of the segment; nobody opens a retired one into the cache.
  table.Retire(segments[0]->id);
  char byte = 0;
  const IoVec part{&byte, 1};
  CHECK(file->Read(0, {&part, 1}).ok() && byte == 's');
  CHECK(table.OpenFile(*segments[0], &again).ok() && table.OpenFile(*segments[0], &again).ok());
  CHECK(fake.plan->hits(opens) == 8);
}

TEST(ASegmentThatMovedIsFoundWhereItIs) {
  FakeFiles fake;
  Plant(fake, "b", 1);
  SegmentTable table(fake.files());
  const auto segment = table.Add(Identity(1), "a", false);
  std::shared_ptr<ReadFile> file;
  CHECK(table.OpenFile(*segment, &file).not_found());
  // It moves while somebody looks for it in the old place.
  fake.plan->Add({.ops = kOpOpenRead, .pattern = "a/*", .times = 1, .hang = true});
  std::thread looking([&] { CHECK(table.OpenFile(*segment, &file).ok()); });
  CHECK(fake.plan->WaitHanging(1));
  table.Move(segment->id, "b", true);
  fake.plan->Release();
  looking.join();
  CHECK(file != nullptr && segment->own && table.Directory(*segment) == "b");
  fake.plan->Add({.ops = kOpOpenRead, .times = 1, .error = EIO});
  table.DropFiles();
  CHECK(table.OpenFile(*segment, &file).code == EIO);
}

TEST(ManyThreads) {
  FakeFiles fake;
  for (uint64_t number = 1; number <= 20; ++number) Plant(fake, "a", number);
  SegmentTable table(fake.files(), 4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 500; ++i) {
        const auto segment = table.Add(Identity(1 + (i * 7 + static_cast<uint64_t>(t)) % 20), "a", true);
        std::shared_ptr<ReadFile> file;
        if (segment->retired) continue;
        CHECK(table.OpenFile(*segment, &file).ok() && file != nullptr);
        table.Directory(*segment);
        if (i % 50 == 0) table.Retire(segment->id);
        if (i % 50 == 25) table.Forget(segment->id);
        if (i % 50 == 40) table.Move(segment->id, "a", false);
        table.All();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
