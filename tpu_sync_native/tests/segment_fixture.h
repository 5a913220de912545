// Segments as a writer makes them, for the tests of the format.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "memory_files.h"
#include "segment/scan.h"
#include "segment/segment_codec.h"

namespace tpu_sync_native::testing {

using Random = std::mt19937_64;

inline SegmentIdentity MakeIdentity(uint64_t chunk_bytes, uint64_t number = 7, uint64_t epoch = 3) {
  SegmentIdentity identity;
  for (int i = 0; i < 16; ++i) {
    identity.namespace_id[i] = static_cast<uint8_t>(0x10 + i);
    identity.host_id[i] = static_cast<uint8_t>(0xa0 + i);
  }
  identity.number = number;
  identity.epoch = epoch;
  identity.chunk_bytes = chunk_bytes;
  return identity;
}

inline std::string RandomBytes(Random& random, uint64_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

inline std::span<const uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

inline uint8_t* MutableBytes(std::string& text) { return reinterpret_cast<uint8_t*>(text.data()); }

// A segment in memory, grown record by record.
struct MadeSegment {
  SegmentIdentity identity;
  std::string file;
  std::vector<IndexEntry> entries;

  explicit MadeSegment(const SegmentIdentity& of) : identity(of), file(kStorageUnit, '\0') {
    EncodeSegmentHeader(identity, MutableBytes(file));
  }

  void Add(std::string_view key, std::string_view stored, Codec codec = Codec::kRaw) {
    const uint64_t offset = file.size();
    const uint32_t crc = Crc32c(0, stored.data(), stored.size());
    file.resize(offset + kStorageUnit);
    EncodeRecordHeader(identity, offset, key, codec, stored.size(), crc, MutableBytes(file) + offset);
    file.append(stored);
    file.resize(RoundToUnit(file.size()));
    entries.push_back(MakeIndexEntry(offset, key, codec, stored.size(), crc));
  }

  std::string Index(bool sealed) const { return EncodeIndex(identity, file.size(), sealed, entries); }
};

inline MadeSegment RandomSegment(Random& random, uint64_t chunk_bytes, int records) {
  MadeSegment segment(MakeIdentity(chunk_bytes));
  for (int i = 0; i < records; ++i) {
    const std::string key = RandomBytes(random, kStoredKeyBytesMin + random() % 49);
    segment.Add(key, RandomBytes(random, chunk_bytes));
  }
  return segment;
}

inline bool SameEntry(const IndexEntry& a, const IndexEntry& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

struct Found {
  IndexEntry entry;
  std::string why;
};

// Scans `bytes` as a file.
inline ScanResult Scan(const std::string& bytes, bool check_payloads, std::vector<Found>* found = nullptr) {
  MemoryFiles files;
  files.Put("seg-0000000007.kvs", bytes);
  ScanResult result;
  std::function<void(const IndexEntry&, const std::string&)> report;
  if (found != nullptr) {
    report = [found](const IndexEntry& entry, const std::string& why) { found->push_back({entry, why}); };
  }
  const IoError error = ScanSegment(files, "seg-0000000007.kvs", check_payloads, &result, report);
  if (!error.ok()) Fail(__FILE__, __LINE__, "ScanSegment", error.text());
  return result;
}

}  // namespace tpu_sync_native::testing
