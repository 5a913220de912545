#include <cstring>
#include <limits>

#include "index/index_writer.h"
#include "index/probe.h"
#include "store_fixture.h"

namespace tpu_sync_native::testing {
namespace {

MetaGeometry SmallGeometry() {
  return {.data_bytes = 64 * 4096,
          .slab_bytes = 16 * 4096,
          .slots_max = 64,
          .namespaces_max = 4,
          .bucket_count = DefaultBucketCount(64)};
}

// A writer with one namespace open and a reader on a mapping of its own.
struct IndexFixture {
  explicit IndexFixture(const MetaGeometry& geometry = SmallGeometry())
      : writer(file.fd(), geometry, {7, {}}) {
    mapping = Mapping(file.fd(), geometry.meta_bytes(), Mapping::Access::kReadWrite, "meta");
    reader = std::make_unique<IndexReader>(mapping.data(), mapping.bytes());
    writer.OpenNamespace(0, "0123456789abcdef", 4096);
  }
  HashedKey Key(const std::string& bytes) const {
    HashedKey key;
    CHECK(MakeKey(writer.view(), 0, bytes, &key));
    return key;
  }
  void Put(const std::string& bytes, uint32_t slot) {
    const HashedKey key = Key(bytes);
    writer.Reserve(slot, slot * 4096, OwnerWord(0, writer.view().ns(0).epoch), key);
    CHECK(writer.Insert(key, slot));
    writer.SetState(slot, SlotState::kCommitted);
  }
  uint32_t Hits(const Keys& keys, uint32_t ns = 0) const { return reader->LongestPrefix(ns, keys.batch()); }
  SlotRecord& Record(uint32_t slot) { return const_cast<SlotRecord&>(reader->view().slot(slot)); }

  MemFile file{"meta"};
  IndexWriter writer;
  Mapping mapping;
  std::unique_ptr<IndexReader> reader;
};

}  // namespace

TEST(KeysOfEveryLengthAreFoundAndComparedInFull) {
  IndexFixture index;
  uint32_t slot = 0;
  for (uint32_t bytes = kKeyBytesMin; bytes <= kKeyBytesMax; ++bytes) index.Put(KeyOf(1, bytes), slot++);
  for (uint32_t bytes = kKeyBytesMin; bytes <= kKeyBytesMax; ++bytes) {
    CHECK(index.Hits(Range(1, 1, bytes)) == 1);
    for (uint32_t i = 0; i < bytes; ++i) {  // one changed byte is another key
      std::string other = KeyOf(1, bytes);
      other[i] = static_cast<char>(other[i] ^ 1);
      Keys keys;
      keys.Add(other);
      CHECK(index.Hits(keys) == 0);
    }
  }
}

TEST(APrefixEndsAtTheFirstMiss) {
  IndexFixture index;
  for (uint32_t i = 0; i < 40; ++i) index.Put(KeyOf(i), i);
  CHECK(index.Hits(Range(0, 40)) == 40);
  CHECK(index.Hits(Range(0, 41)) == 40);
  CHECK(index.Hits(Keys()) == 0);
  index.writer.SetState(17, SlotState::kReserved);
  CHECK(index.Hits(Range(0, 40)) == 17);
  SlotRef refs[40];
  CHECK(index.reader->LeadingHits(0, Range(0, 40).batch(), refs) == 17);
  for (uint32_t i = 0; i < 17; ++i)
    CHECK(refs[i].slot == i && refs[i].offset == i * 4096 && refs[i].generation == 1);
}

TEST(WrongLengthsNamespacesAndEpochsAreMisses) {
  IndexFixture index;
  index.Put(KeyOf(0), 0);
  for (const uint32_t bytes : {8u, 15u, 65u, 1000u}) {
    Keys keys = Range(0, 1);
    keys.Add(std::string(bytes, 'x'));
    CHECK(index.Hits(keys) == 1);
  }
  for (const uint32_t ns : {1u, 4u, 1000u, kNoSlot}) CHECK(index.Hits(Range(0, 1), ns) == 0);
  index.writer.SetEpoch(0, 2);
  CHECK(index.Hits(Range(0, 1)) == 0);
}

TEST(RemovedKeysAreGoneAndTheGenerationTells) {
  IndexFixture index;
  index.Put(KeyOf(0), 5);
  CHECK(index.reader->Unchanged(5, 1));
  CHECK(!index.reader->Unchanged(5, 2) && !index.reader->Unchanged(6, 0) && !index.reader->Unchanged(64, 0));
  CHECK(index.writer.Remove(index.Key(KeyOf(0)), 5));
  CHECK(!index.writer.Remove(index.Key(KeyOf(0)), 5));
  index.writer.Free(5);
  CHECK(index.Hits(Range(0, 1)) == 0);
  CHECK(!index.reader->Unchanged(5, 1) && !index.reader->Unchanged(5, 2));
  index.Put(KeyOf(1), 5);
  CHECK(index.reader->Unchanged(5, 3));
}

TEST(AHalfMadeRecordIsAMissNotAWait) {
  IndexFixture index;
  index.Put(KeyOf(0), 0);
  index.Record(0).seq.fetch_add(1);  // a writer killed in the middle
  CHECK(index.Hits(Range(0, 1)) == 0);
  index.Record(0).seq.fetch_add(1);
  CHECK(index.Hits(Range(0, 1)) == 1);
}

TEST(GarbageIsAMiss) {
  IndexFixture index;
  index.Put(KeyOf(0), 0);
  const uint64_t place = index.Record(0).place;
  for (const uint64_t bad :
       {PlaceWord(64 * 4096, SlotState::kCommitted, 32),  // beyond the payload
        PlaceWord(uint64_t{UINT32_MAX} * 4096, SlotState::kCommitted, 32),
        PlaceWord(0, SlotState::kCommitted, 31), PlaceWord(0, static_cast<SlotState>(9), 32)}) {
    index.Record(0).place = bad;
    CHECK(index.Hits(Range(0, 1)) == 0);
  }
  index.Record(0).place = place;
  CHECK(index.Hits(Range(0, 1)) == 1);
  for (uint32_t b = 0; b < index.reader->view().bucket_count(); ++b) {
    auto& bucket = const_cast<Bucket&>(index.reader->view().bucket(b));
    for (auto& slot : bucket.slots) slot = UINT32_MAX - 1;
  }
  CHECK(index.Hits(Range(0, 1)) == 0);
}

TEST(TheHeaderIsCheckedFieldByField) {
  const MetaGeometry geometry = SmallGeometry();
  IndexFixture index(geometry);
  std::vector<std::byte> copy(geometry.meta_bytes() + 4096);
  std::byte* aligned = copy.data() + (4096 - reinterpret_cast<uintptr_t>(copy.data()) % 4096) % 4096;
  const auto refused = [&](auto change, const char* field) {
    std::memcpy(aligned, index.mapping.data(), sizeof(MetaHeader));
    change(*reinterpret_cast<MetaHeader*>(aligned));
    CHECK_THROWS(IndexReader(aligned, geometry.meta_bytes()), field);
  };
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max() - 4095;
  refused([](MetaHeader& h) { h.magic ^= 1; }, "magic");
  refused([](MetaHeader& h) { h.version = kMetaVersion + 1; }, "version");
  refused([](MetaHeader& h) { h.meta_bytes -= 4096; }, "meta_bytes");
  refused([](MetaHeader& h) { h.slots_max = kNoSlot; }, "slots_max");
  refused([](MetaHeader& h) { h.slots_max = 1 << 30; }, "slots_offset");
  refused([](MetaHeader& h) { h.bucket_count = 0; }, "bucket_count");
  refused([](MetaHeader& h) { h.bucket_count = kNoSlot; }, "buckets_offset");
  refused([](MetaHeader& h) { h.namespaces_max = 1 << 20; }, "namespaces_offset");
  refused([](MetaHeader& h) { h.buckets_offset = kHuge; }, "buckets_offset");
  refused([](MetaHeader& h) { h.slots_offset += 8; }, "slots_offset");
  refused([](MetaHeader& h) { h.key_tails_offset = 0; }, "key_tails_offset");
  refused([](MetaHeader& h) { h.data_bytes = 5; }, "data_bytes");
  CHECK_THROWS(IndexReader(aligned, 100), "file size");
}

TEST(APrefixEndsAtItsFirstMissWhereverThatStandsInAGroup) {
  IndexFixture index;
  constexpr uint32_t kKeys = 56;
  for (uint32_t i = 0; i < kKeys; ++i) index.Put(KeyOf(i), i);
  for (uint32_t count = 0; count <= kKeys; ++count) CHECK(index.Hits(Range(0, count)) == count);
  for (uint32_t hole = 0; hole < kKeys; ++hole) {
    for (const uint32_t bytes : {32u, kKeyBytesMin - 1}) {  // an absent key, one that is no key
      Keys keys;
      for (uint32_t i = 0; i < kKeys; ++i) keys.Add(i == hole ? KeyOf(1000, bytes) : KeyOf(i));
      CHECK(index.Hits(keys) == hole);
    }
  }
}

TEST(RecordsAreReadAndWrittenWhileTheirPagesAreMerged) {
  constexpr uint32_t kSlots = 1 << 17;  // 8 MiB of records, 2 MiB of buckets
  MetaGeometry geometry{.data_bytes = uint64_t{kSlots} * 4096,
                        .slab_bytes = 4096,
                        .slots_max = kSlots,
                        .namespaces_max = 1,
                        .bucket_count = DefaultBucketCount(kSlots)};
  IndexFixture index(geometry);
  CHECK(reinterpret_cast<uintptr_t>(index.mapping.data()) % kHugePageBytes == 0);
  for (uint32_t i = 0; i < kSlots; ++i) {
    if (i % 1024 == 0) CHECK(index.writer.CommitRecords(i, 1024));
    index.Put(KeyOf(i), i);
    CHECK(index.Hits(Range(i / 2, 1)) == 1);
  }
  for (uint32_t i = 0; i < kSlots; i += 1024) CHECK(index.Hits(Range(i, 1024)) == 1024);
}

TEST(EveryCellOfBothBucketsIsUsedBeforeItIsFull) {
  MetaGeometry geometry = SmallGeometry();
  geometry.bucket_count = 1;
  IndexFixture index(geometry);
  for (uint32_t i = 0; i < kBucketCells; ++i) index.Put(KeyOf(i), i);
  CHECK(!index.writer.Insert(index.Key(KeyOf(99)), 20));
  CHECK(index.Hits(Range(0, kBucketCells)) == kBucketCells);
}

TEST(TwoChoicesFillHalfTheCellsWithoutARefusal) {
  // The default load: as many keys as slots, two cells for each.
  constexpr uint32_t kSlots = 1 << 18;
  MetaGeometry geometry{.data_bytes = uint64_t{kSlots} * 4096,
                        .slab_bytes = 4096,
                        .slots_max = kSlots,
                        .namespaces_max = 1,
                        .bucket_count = DefaultBucketCount(kSlots)};
  IndexFixture index(geometry);
  uint32_t first_bucket = 0;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const HashedKey key = index.Key(KeyOf(i));
    CHECK(index.writer.Insert(key, i));
    for (const auto& slot : index.writer.view().bucket(key.buckets[0]).slots) first_bucket += slot == i;
  }
  CHECK(first_bucket > kSlots / 10 * 8);  // most lookups need one bucket
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
