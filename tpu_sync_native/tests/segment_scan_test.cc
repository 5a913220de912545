#include <cerrno>
#include <memory>
#include <string>

#include "check.h"
#include "fake_files.h"
#include "segment/scan.h"
#include "segment_fixture.h"

namespace tpu_sync_native::testing {
namespace {

bool Has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

void CheckEntries(const std::vector<IndexEntry>& found, const std::vector<IndexEntry>& wanted) {
  CHECK(found.size() == wanted.size());
  for (size_t i = 0; i < found.size(); ++i) CHECK(SameEntry(found[i], wanted[i]));
}

TEST(FindsEveryRecord) {
  Random random(1);
  // Chunks below, at and above units; records far enough apart that headers are read one by one; payloads
  // longer than the scan's window.
  for (const uint64_t chunk_bytes : {1ull, 4095ull, 4096ull, 4097ull, 300'000ull, 9'000'000ull}) {
    const MadeSegment segment = RandomSegment(random, chunk_bytes, chunk_bytes > 1'000'000 ? 3 : 12);
    for (const bool check_payloads : {false, true}) {
      std::vector<Found> found;
      const ScanResult result = Scan(segment.file, check_payloads, &found);
      CHECK(result.stopped.empty());
      CHECK(result.identity == segment.identity);
      CHECK(result.valid_bytes == segment.file.size() && result.file_bytes == segment.file.size());
      CheckEntries(result.entries, segment.entries);
      CHECK(found.size() == segment.entries.size());
    }
  }
}

TEST(EncodedRecordsAreAsLongAsTheySay) {
  MadeSegment segment(MakeIdentity(100'000));
  segment.Add(std::string(16, 'a'), std::string(5000, 'x'), Codec::kLz4);
  segment.Add(std::string(64, 'b'), std::string(100'000, 'y'));
  segment.Add(std::string(32, 'c'), std::string(1, 'z'), Codec::kLz4Shuffle4);
  const ScanResult result = Scan(segment.file, true);
  CHECK(result.stopped.empty());
  CheckEntries(result.entries, segment.entries);
}

TEST(AnEmptySegmentIsSound) {
  const MadeSegment segment(MakeIdentity(4096));
  const ScanResult result = Scan(segment.file, true);
  CHECK(result.stopped.empty() && result.entries.empty() && result.valid_bytes == kStorageUnit);
}

// Wherever the file ends: what lies whole before it is found, and the rest is named.
TEST(TruncationAtEvery512Bytes) {
  Random random(2);
  const MadeSegment segment = RandomSegment(random, 6000, 4);
  for (uint64_t bytes = 0; bytes <= segment.file.size(); bytes += 512) {
    const std::string file = segment.file.substr(0, bytes);
    for (const bool check_payloads : {false, true}) {
      const ScanResult result = Scan(file, check_payloads);
      CHECK(result.file_bytes == bytes);
      size_t whole = 0;
      uint64_t end = bytes < kStorageUnit ? 0 : kStorageUnit;
      for (const IndexEntry& entry : segment.entries) {
        const uint64_t entry_end = entry.offset + (1 + entry.stored_units) * kStorageUnit;
        if (entry_end > bytes) break;
        ++whole;
        end = entry_end;
      }
      CHECK(result.entries.size() == whole);
      CHECK(result.valid_bytes == end);
      CHECK(result.stopped.empty() == (end == bytes && bytes != 0));
    }
  }
}

TEST(EveryBitOfARecordHeaderIsSeenAndTheOthersAreFound) {
  Random random(3);
  MadeSegment segment = RandomSegment(random, 4096, 3);
  const uint64_t start = segment.entries[1].offset;
  for (uint64_t byte = start; byte < start + kStorageUnit; ++byte) {
    const auto mask = static_cast<char>(1 << (byte % 8));
    segment.file[byte] = static_cast<char>(segment.file[byte] ^ mask);
    const ScanResult stopped = Scan(segment.file, true);
    CHECK(stopped.entries.size() == 1 && stopped.valid_bytes == start);
    CHECK(Has(stopped.stopped, "at " + std::to_string(start) + ": record header: "));
    std::vector<Found> found;
    const ScanResult all = Scan(segment.file, true, &found);
    CHECK(all.entries.size() == 2 && all.valid_bytes == start);
    CHECK(SameEntry(all.entries[1], segment.entries[2]));
    CHECK(found.size() == 3);
    CHECK(found[1].entry.offset == start && !found[1].why.empty());
    segment.file[byte] = static_cast<char>(segment.file[byte] ^ mask);
  }
}

TEST(FlipsInPayloadsAreSeen) {
  Random random(4);
  MadeSegment segment = RandomSegment(random, 10'000, 5);
  for (int i = 0; i < 300; ++i) {
    const size_t record = random() % 5;
    const uint64_t at = segment.entries[record].offset + kStorageUnit + random() % 10'000;
    const auto mask = static_cast<char>(1 << (random() % 8));
    segment.file[at] = static_cast<char>(segment.file[at] ^ mask);
    std::vector<Found> found;
    const ScanResult result = Scan(segment.file, true, &found);
    CHECK(found.size() == 5 && result.entries.size() == 4);
    CHECK(Has(found[record].why, "checksum of the payload is 0x"));
    CHECK(KeyOf(found[record].entry) == KeyOf(segment.entries[record]));
    CHECK(result.valid_bytes == segment.entries[record].offset);
    CHECK(Scan(segment.file, true).entries.size() == record);
    CHECK(Scan(segment.file, false).entries.size() == 5);  // headers alone do not say
    segment.file[at] = static_cast<char>(segment.file[at] ^ mask);
  }
}

TEST(StrangersRecordsDoNotCount) {
  Random random(5);
  const MadeSegment other = RandomSegment(random, 4096, 2);
  MadeSegment segment(MakeIdentity(4096, /*number=*/8));
  segment.Add(std::string(16, 'a'), std::string(4096, 'a'));
  // A record of another segment, whole and sound, copied in at the very place where it stood there.
  segment.file += other.file.substr(other.entries[1].offset, 8192);
  CHECK(segment.file.size() == other.file.size());
  const ScanResult result = Scan(segment.file, true);
  CHECK(result.entries.size() == 1);
  CHECK(Has(result.stopped, "segment is 7; 8 is wanted"));
  // And one of this very segment, at another place.
  segment.file.resize(segment.entries[0].offset + 8192);
  segment.file += segment.file.substr(segment.entries[0].offset, 8192);
  CHECK(Has(Scan(segment.file, true).stopped, "offset is 4096; 12288 is wanted"));
}

TEST(WhatIsNoSegment) {
  Random random(6);
  for (const std::string& bytes :
       {std::string(), std::string(100, 'x'), std::string(4096, '\0'), RandomBytes(random, 50'000)}) {
    const ScanResult result = Scan(bytes, true);
    CHECK(Has(result.stopped, "segment header"));
    CHECK(result.entries.empty() && result.valid_bytes == 0 && result.file_bytes == bytes.size());
  }
}

TEST(ErrorsOfTheMediumAreErrors) {
  Random random(7);
  auto memory = std::make_shared<MemoryFiles>();
  const MadeSegment segment = RandomSegment(random, 400'000, 4);
  memory->Put("a.kvs", segment.file);
  ScanResult result;
  CHECK(ScanSegment(*memory, "b.kvs", true, &result).not_found());
  FileHooks hooks;
  int reads = 0;
  hooks.before = [&](const FileCall& call) {
    FileVerdict verdict;
    if (call.op == kOpRead && ++reads == 3) verdict.error = {EIO};
    return verdict;
  };
  HookedFiles files(memory, std::move(hooks));
  const IoError error = ScanSegment(files, "a.kvs", false, &result);
  CHECK(error.code == EIO);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
