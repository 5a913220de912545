// The catalog alone: against a map, full, swept, read while it changes, and as a file that lies.
#include "catalog/catalog.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mapping.h"
#include "check.h"
#include "store_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint8_t kNamespace[16] = {1, 2, 3};

CatalogKey Key(uint64_t number) { return MakeCatalogKey(kNamespace, KeyOf(number)); }

// A place from which the number can be told.
Where Place(uint32_t segment, uint64_t number) { return {segment, number * 4096, (number % 100 + 1) * 4096}; }

struct Table {
  explicit Table(uint64_t records_max) : catalog(file.fd(), records_max, 7), map(Map()) {}
  Mapping Map() const {
    return Mapping(file.fd(), FileBytes(file.fd(), "catalog"), Mapping::Access::kRead, "catalog");
  }
  CatalogReader Reader() const { return {reinterpret_cast<const uint8_t*>(map.data()), map.bytes()}; }

  MemFile file{"catalog"};
  Catalog catalog;
  Mapping map;
};

TEST(PlacesArePackedWhole) {
  const Where limits[] = {
      {1, 0, 0}, {1, 4096, 4096}, {kSegmentsMax, ((uint64_t{1} << 28) - 1) * 4096, 65535ull * 4096}};
  for (const Where& where : limits) {
    const uint64_t word = PackWhere(where);
    CHECK(word != 0);
    const Where again = UnpackWhere(word);
    CHECK(again.segment == where.segment && again.offset == where.offset);
    CHECK(again.stored_bytes == where.stored_bytes);
  }
  const Where too_large[] = {{0, 4096, 4096}, {kSegmentsMax + 1, 0, 4096},  {1, 1, 4096},
                             {1, 4096, 1},    {1, uint64_t{1} << 40, 4096}, {1, 0, 65536ull * 4096}};
  for (const Where& where : too_large) CHECK(PackWhere(where) == 0);
}

TEST(KeysOfWrongLengthAreNeverFound) {
  Table table(100);
  for (const uint32_t bytes : {0u, 15u, 65u}) {
    const CatalogKey key = MakeCatalogKey(kNamespace, std::string(bytes, 'k'));
    CHECK(key.tag == 0);
    CHECK(table.catalog.Add(key, Place(1, 1)) == Catalog::Added::kFull);
    CHECK(table.catalog.Find(key) == 0 && !table.Reader().Has(key));
  }
  for (uint32_t bytes = 16; bytes <= 64; ++bytes) {
    CHECK(table.catalog.Add(MakeCatalogKey(kNamespace, std::string(bytes, 'k')), Place(1, bytes)) ==
          Catalog::Added::kNew);
  }
  for (uint32_t bytes = 16; bytes <= 64; ++bytes) {  // a length is part of the key
    CHECK(table.catalog.Find(MakeCatalogKey(kNamespace, std::string(bytes, 'k'))) ==
          PackWhere(Place(1, bytes)));
  }
  constexpr uint8_t kOther[16] = {1, 2, 4};
  CHECK(MakeCatalogKey(kOther, KeyOf(1)).tag != Key(1).tag);
}

TEST(FirstPlaceStaysUntilItsSegmentIsDead) {
  Table table(100);
  Catalog& catalog = table.catalog;
  CHECK(catalog.Add(Key(1), Place(1, 10)) == Catalog::Added::kNew);
  CHECK(catalog.Add(Key(1), Place(2, 20)) == Catalog::Added::kKnown);
  CHECK(catalog.Find(Key(1)) == PackWhere(Place(1, 10)));
  catalog.Remove(Key(1), Place(2, 20));  // says something else
  CHECK(catalog.records() == 1);

  catalog.MarkDead(1);
  CHECK(catalog.Find(Key(1)) == PackWhere(Place(1, 10)));              // still there to be copied forward
  CHECK(catalog.Add(Key(2), Place(1, 11)) == Catalog::Added::kKnown);  // takes no more
  CHECK(catalog.Find(Key(2)) == 0);
  CHECK(catalog.Add(Key(1), Place(2, 20)) == Catalog::Added::kNew);
  CHECK(catalog.Find(Key(1)) == PackWhere(Place(2, 20)));
  CHECK(catalog.records() == 1);

  uint64_t removed = 0;
  for (uint64_t cursor = catalog.Sweep(1, 0, 3, &removed); cursor != 0;) {
    cursor = catalog.Sweep(1, cursor, 3, &removed);
  }
  CHECK(removed == 0 && catalog.records() == 1);
  CHECK(catalog.Add(Key(2), Place(1, 11)) == Catalog::Added::kNew);  // the number is used again
  catalog.Remove(Key(1), Place(2, 20));
  CHECK(catalog.Find(Key(1)) == 0 && catalog.records() == 1);
}

TEST(UsesAreRemembered) {
  Table table(100);
  table.catalog.Touch(Key(1), 5);
  CHECK(table.catalog.LastUse(Key(1)) == 0);
  table.catalog.Add(Key(1), Place(1, 1));
  CHECK(table.catalog.LastUse(Key(1)) == 0);
  table.catalog.Touch(Key(1), 5);
  CHECK(table.catalog.LastUse(Key(1)) == 5);
  table.catalog.Remove(Key(1), Place(1, 1));
  table.catalog.Add(Key(1), Place(1, 1));
  CHECK(table.catalog.LastUse(Key(1)) == 0);  // the new record's, not the old one's
}

TEST(AsAMap) {
  constexpr uint64_t kRecordsMax = 4000;
  Table table(kRecordsMax);
  Catalog& catalog = table.catalog;
  const CatalogReader reader = table.Reader();
  std::unordered_map<uint64_t, Where> model;
  std::mt19937_64 random(4711);
  uint64_t full = 0;
  for (int step = 0; step < 200'000; ++step) {
    const uint64_t number = random() % (2 * kRecordsMax);
    const auto segment = static_cast<uint32_t>(random() % 20 + 1);
    const auto known = model.find(number);
    switch (random() % 8) {
      case 0:
        if (known != model.end()) {
          catalog.Remove(Key(number), known->second);
          model.erase(known);
        }
        break;
      case 1:
        if (random() % 500 == 0) {
          uint64_t removed = 0, expected = 0;
          for (uint64_t cursor = 0;;) {
            cursor = catalog.Sweep(segment, cursor, random() % 2000 + 1, &removed);
            if (cursor == 0) break;
            // Moving goes on between the steps.
            full += catalog.Add(Key(kRecordsMax * 3), Place(21, 1)) == Catalog::Added::kFull;
            catalog.Remove(Key(kRecordsMax * 3), Place(21, 1));
          }
          std::erase_if(model,
                        [&](const auto& item) { return item.second.segment == segment && ++expected; });
          CHECK(removed == expected);
        }
        break;
      default: {
        const Where where = Place(segment, number);
        const Catalog::Added added = catalog.Add(Key(number), where);
        CHECK((added == Catalog::Added::kKnown) == (known != model.end()));
        if (added == Catalog::Added::kNew) model[number] = where;
        full += added == Catalog::Added::kFull;
      }
    }
    const uint64_t asked = random() % (2 * kRecordsMax);
    const auto found = model.find(asked);
    CHECK(catalog.Find(Key(asked)) == (found == model.end() ? 0 : PackWhere(found->second)));
    CHECK(reader.Find(Key(asked)) == catalog.Find(Key(asked)));
    CHECK(reader.Has(Key(asked)) == (found != model.end()));
    CHECK(catalog.records() == model.size());
  }
  CHECK(full > 0 && catalog.refused_full() == full);
  for (const auto& [number, where] : model) CHECK(catalog.Find(Key(number)) == PackWhere(where));
}

TEST(HoldsWhatItWasMadeFor) {
  constexpr uint64_t kRecordsMax = 1'000'000;
  Table table(kRecordsMax);
  Catalog& catalog = table.catalog;
  uint64_t refused = 0;
  for (uint64_t number = 0; number < kRecordsMax; ++number) {
    refused += catalog.Add(Key(number), Place(1, number)) != Catalog::Added::kNew;
  }
  const double bytes_per_record = static_cast<double>(catalog.memory_bytes()) / kRecordsMax;
  std::fprintf(stderr, "catalog: %.2f bytes a record, %llu of %llu refused\n", bytes_per_record,
               static_cast<unsigned long long>(refused), static_cast<unsigned long long>(kRecordsMax));
  CHECK(bytes_per_record <= 24);
  CHECK(refused <= kRecordsMax / 1000);
  CHECK(catalog.records() == kRecordsMax - refused);
  uint64_t lost = 0, false_hits = 0;
  for (uint64_t number = 0; number < kRecordsMax; ++number) {
    lost += catalog.Find(Key(number)) != PackWhere(Place(1, number));
    false_hits += catalog.Find(Key(kRecordsMax + number)) != 0;
  }
  CHECK(lost == refused);
  CHECK(false_hits == 0);  // 8 tags of 64 bits a key: one in 2^61
  CHECK(catalog.Add(Key(2 * kRecordsMax), Place(1, 1)) == Catalog::Added::kFull || refused > 0);
}

// Readers meet every kind of change and never see a place that is not the key's.
TEST(ReadWhileItChanges) {
  constexpr uint64_t kNumbers = 3000;
  Table table(2000);  // smaller than the numbers: cells move all the time
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> hits{0};
  std::vector<std::thread> readers;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    readers.emplace_back([&, seed] {
      const CatalogReader reader = table.Reader();
      std::mt19937_64 random(seed);
      while (!stop.load()) {
        const uint64_t number = random() % kNumbers;
        reader.Prefetch(Key(number));
        const uint64_t word = seed == 0 ? table.catalog.Find(Key(number)) : reader.Find(Key(number));
        if (word == 0) continue;
        hits.fetch_add(1);
        const Where where = UnpackWhere(word);
        CHECK(where.offset == number * 4096 && where.stored_bytes == (number % 100 + 1) * 4096);
        table.catalog.Touch(Key(number), 1);
      }
    });
  }
  std::mt19937_64 random(99);
  for (int step = 0; step < 100'000 || hits.load() < 1000; ++step) {
    const uint64_t number = random() % kNumbers;
    const auto segment = static_cast<uint32_t>(random() % 4 + 1);
    if (random() % 4 == 0) table.catalog.Remove(Key(number), Place(segment, number));
    table.catalog.Add(Key(number), Place(segment, number));
    if (step % 5000 == 0) table.catalog.MarkDead(segment);
    if (step % 5000 == 2500) {
      for (uint64_t cursor = 0; (cursor = table.catalog.Sweep(segment, cursor, 100, nullptr)) != 0;) {
      }
    }
    if (step % 1000 == 0) table.catalog.SetServing(step % 2000 == 0);
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
}

TEST(ServesWhenToldTo) {
  MemFile file("catalog");
  Mapping map;
  {
    Catalog catalog(file.fd(), 100, 7);
    map = Mapping(file.fd(), FileBytes(file.fd(), "catalog"), Mapping::Access::kRead, "catalog");
    const CatalogReader reader(reinterpret_cast<const uint8_t*>(map.data()), map.bytes());
    CHECK(!reader.serving() && reader.boot_id() == 7);
    catalog.SetServing(true);
    CHECK(reader.serving());
    catalog.SetServing(false);
    CHECK(!reader.serving());
    catalog.SetServing(true);
  }
  const CatalogReader after(reinterpret_cast<const uint8_t*>(map.data()), map.bytes());
  CHECK(!after.serving());  // the daemon's tier is gone
}

TEST(WithoutStorageNothingIsFound) {
  MemFile file("catalog");
  MakeEmptyCatalog(file.fd(), 7);
  const Mapping map(file.fd(), FileBytes(file.fd(), "catalog"), Mapping::Access::kRead, "catalog");
  const CatalogReader reader(reinterpret_cast<const uint8_t*>(map.data()), map.bytes());
  CHECK(!reader.serving() && reader.boot_id() == 7);
  reader.Prefetch(Key(1));
  CHECK(!reader.Has(Key(1)) && reader.Find(Key(1)) == 0);
  const CatalogReader none;
  none.Prefetch(Key(1));
  CHECK(!none.serving() && !none.Has(Key(1)) && none.Find(Key(1)) == 0 && none.boot_id() == 0);
}

TEST(NobodyShrinksOrWritesIt) {
  Table table(100);
  CHECK(ftruncate(table.file.fd(), 4096) != 0);
  CHECK(ftruncate(table.file.fd(), 1 << 30) != 0);
  const uint8_t byte = 1;
  CHECK(pwrite(table.file.fd(), &byte, 1, 4096) != 1);
  const std::string path = "/proc/self/fd/" + std::to_string(table.file.fd());
  const int again = open(path.c_str(), O_RDWR | O_CLOEXEC);
  CHECK(again < 0 || mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) == MAP_FAILED);
  if (again >= 0) close(again);
}

TEST(FilesThatLieAreRefused) {
  Table table(100);
  std::vector<uint8_t> bytes(table.map.bytes());
  // Aligned as a mapping is: the reader takes it for one.
  auto copy = std::unique_ptr<CatalogBucket[]>(new CatalogBucket[bytes.size() / sizeof(CatalogBucket)]);
  auto* const base = reinterpret_cast<uint8_t*>(copy.get());
  const auto with = [&](size_t offset, uint64_t value, size_t size) {
    std::memcpy(base, table.map.data(), bytes.size());
    std::memcpy(base + offset, &value, size);
  };
  with(offsetof(CatalogHeader, magic), 1, 8);
  CHECK_THROWS(CatalogReader(base, bytes.size()), "magic");
  with(offsetof(CatalogHeader, version), 2, 4);
  CHECK_THROWS(CatalogReader(base, bytes.size()), "version is 2");
  with(offsetof(CatalogHeader, bytes), 1 << 20, 8);
  CHECK_THROWS(CatalogReader(base, bytes.size()), "bytes");
  for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{0xffffffff}}) {
    with(offsetof(CatalogHeader, bucket_count), count, 4);
    CHECK_THROWS(CatalogReader(base, bytes.size()), "bucket_count");
  }
  with(0, kCatalogMagic, 8);
  CHECK_THROWS(CatalogReader(base, 4095), "file size");
  CHECK_THROWS(CatalogReader(base, bytes.size() - 64), "bytes");
  const CatalogReader whole(base, bytes.size());
  // A count that grows after the check moves no bound.
  with(offsetof(CatalogHeader, bucket_count), 0xffffffff, 4);
  for (uint64_t number = 0; number < 1000; ++number) CHECK(!whole.Has(Key(number)));
}

TEST(WhatCannotBeMadeSaysSo) {
  MemFile file("catalog");
  CHECK_THROWS(Catalog(file.fd(), 0, 7), "records_max is 0");
  CHECK_THROWS(Catalog(file.fd(), uint64_t{1} << 40, 7), "records_max");
  const int plain = memfd_create("plain", MFD_CLOEXEC);
  CHECK_THROWS(Catalog(plain, 100, 7), "MFD_ALLOW_SEALING");
  close(plain);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
