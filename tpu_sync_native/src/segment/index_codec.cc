// Index files and leases.
#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstring>

#include "segment/segment_codec.h"
#include "segment/words.h"

namespace tpu_sync_native {
namespace {

static_assert(offsetof(IndexHeader, header_crc) == kCrcOffset);
static_assert(offsetof(LeaseFile, crc) == kCrcOffset);
static_assert(sizeof(LeaseFile) <= kLeaseBytes);
constexpr size_t kLeaseFields = offsetof(LeaseFile, leaving) + sizeof(LeaseFile::leaving);

// The order of entries: by padded key, then by its length.
int CompareKeys(const IndexEntry& a, const IndexEntry& b) {
  const int order = std::memcmp(a.key, b.key, kStoredKeyBytesMax);
  if (order != 0) return order;
  return a.key_bytes < b.key_bytes ? -1 : a.key_bytes > b.key_bytes ? 1 : 0;
}

std::string CheckEntry(const IndexEntry& entry, uint64_t chunk_bytes, uint64_t segment_bytes) {
  const uint64_t units_max = RoundToUnit(chunk_bytes) / kStorageUnit;
  return FirstOf([&] { return CheckKey(entry.key, entry.key_bytes); },
                 [&] {
                   return IsCodec(entry.codec)
                              ? ""
                              : "codec is " + std::to_string(entry.codec) + "; 0, 1, 2 and 4 are known";
                 },
                 [&] {
                   const bool raw = entry.codec == static_cast<uint32_t>(Codec::kRaw);
                   return Outside("stored_units", entry.stored_units, raw ? units_max : 1, units_max);
                 },
                 [&] { return NotUnits("offset", entry.offset); },
                 [&] {
                   // Behind the segment's header, and with its payload inside the file. No sum here can
                   // overflow: stored_units has been compared with what a chunk may have.
                   const uint64_t record_bytes = (1 + uint64_t{entry.stored_units}) * kStorageUnit;
                   if (record_bytes + kStorageUnit > segment_bytes) {
                     return "a record of " + std::to_string(record_bytes) +
                            " bytes does not fit into segment_bytes " + std::to_string(segment_bytes);
                   }
                   return Outside("offset", entry.offset, kStorageUnit, segment_bytes - record_bytes);
                 },
                 [&] { return Differs("reserved", entry.reserved, 0); });
}

std::string CheckIndexHeader(const uint8_t* data, size_t file_bytes, const IndexHeader& header) {
  return FirstOf(
      [&] { return CheckStart(data, kStorageUnit, kIndexMagic); },
      [&] { return header.segment == 0 ? "segment is 0; 1 is the first" : ""; },
      [&] { return Outside("chunk_bytes", header.chunk_bytes, 1, kStoredChunkBytesMax); },
      [&] { return Outside("segment_bytes", header.segment_bytes, kStorageUnit, kStoredSegmentBytesMax); },
      [&] { return NotUnits("segment_bytes", header.segment_bytes); },
      [&] { return Outside("sealed", header.sealed, 0, 1); },
      [&] { return CheckRest(data, sizeof(header), kStorageUnit); },
      // A record has two units at least.
      [&] {
        return Outside("count", header.count, 0, (header.segment_bytes - kStorageUnit) / (2 * kStorageUnit));
      },
      [&] {
        return Differs("size of the file", file_bytes, kStorageUnit + header.count * sizeof(IndexEntry));
      },
      [&] {
        const uint32_t crc = Crc32c(0, data + kStorageUnit, file_bytes - kStorageUnit);
        return crc == header.entries_crc
                   ? ""
                   : Wrong("checksum of the entries", Hex(header.entries_crc), Hex(crc));
      });
}

}  // namespace

IndexEntry MakeIndexEntry(uint64_t offset, std::string_view key, Codec codec, uint64_t stored_bytes,
                          uint32_t payload_crc) {
  assert(key.size() >= kStoredKeyBytesMin && key.size() <= kStoredKeyBytesMax);
  IndexEntry entry{};
  std::memcpy(entry.key, key.data(), key.size());
  entry.offset = offset;
  entry.key_bytes = static_cast<uint32_t>(key.size());
  entry.stored_units = static_cast<uint32_t>(RoundToUnit(stored_bytes) / kStorageUnit);
  entry.codec = static_cast<uint32_t>(codec);
  entry.payload_crc = payload_crc;
  return entry;
}

std::string EncodeIndex(const SegmentIdentity& identity, uint64_t segment_bytes, bool sealed,
                        std::vector<IndexEntry> entries) {
  std::sort(entries.begin(), entries.end(), [](const IndexEntry& a, const IndexEntry& b) {
    const int order = CompareKeys(a, b);
    return order != 0 ? order < 0 : a.offset > b.offset;
  });
  entries.erase(std::unique(entries.begin(), entries.end(),
                            [](const IndexEntry& a, const IndexEntry& b) { return CompareKeys(a, b) == 0; }),
                entries.end());
  IndexHeader header{};
  header.magic = kIndexMagic;
  header.version = kStorageVersion;
  std::memcpy(header.namespace_id, identity.namespace_id, 16);
  std::memcpy(header.host_id, identity.host_id, 16);
  header.segment = identity.number;
  header.epoch = identity.epoch;
  header.chunk_bytes = identity.chunk_bytes;
  header.segment_bytes = segment_bytes;
  header.count = entries.size();
  header.entries_crc = Crc32c(0, entries.data(), entries.size() * sizeof(IndexEntry));
  header.sealed = sealed ? 1 : 0;
  std::string file(kStorageUnit + entries.size() * sizeof(IndexEntry), '\0');
  auto* const data = reinterpret_cast<uint8_t*>(file.data());
  std::memcpy(data, &header, sizeof(header));
  if (!entries.empty()) {
    std::memcpy(data + kStorageUnit, entries.data(), entries.size() * sizeof(IndexEntry));
  }
  FinishCrc(data, kStorageUnit);
  return file;
}

std::string DecodeIndex(std::string_view file, SegmentIdentity* identity, uint64_t* segment_bytes,
                        bool* sealed, std::vector<IndexEntry>* entries) {
  entries->clear();
  if (file.size() < kStorageUnit) {
    return "index has " + std::to_string(file.size()) + " bytes; " + std::to_string(kStorageUnit) +
           " at least are wanted";
  }
  const auto* const data = reinterpret_cast<const uint8_t*>(file.data());
  IndexHeader header;
  std::memcpy(&header, data, sizeof(header));
  std::string wrong = CheckIndexHeader(data, file.size(), header);
  if (!wrong.empty()) return "index header: " + wrong;
  entries->resize(header.count);
  if (header.count != 0) {
    std::memcpy(entries->data(), data + kStorageUnit, header.count * sizeof(IndexEntry));
  }
  for (size_t i = 0; i < entries->size() && wrong.empty(); ++i) {
    wrong = CheckEntry((*entries)[i], header.chunk_bytes, header.segment_bytes);
    if (wrong.empty() && i > 0 && CompareKeys((*entries)[i - 1], (*entries)[i]) >= 0) {
      wrong = "key is not above the one before it";
    }
    if (!wrong.empty()) wrong = "index entry " + std::to_string(i) + ": " + wrong;
  }
  if (!wrong.empty()) {
    entries->clear();
    return wrong;
  }
  std::memcpy(identity->namespace_id, header.namespace_id, 16);
  std::memcpy(identity->host_id, header.host_id, 16);
  identity->number = header.segment;
  identity->epoch = header.epoch;
  identity->chunk_bytes = header.chunk_bytes;
  *segment_bytes = header.segment_bytes;
  *sealed = header.sealed != 0;
  return "";
}

std::string EncodeLease(const LeaseFile& lease) {
  LeaseFile filled = lease;
  filled.magic = kLeaseMagic;
  filled.version = kStorageVersion;
  std::string file(kLeaseBytes, '\0');
  std::memcpy(file.data(), &filled, sizeof(filled));
  // The struct's own padding is not the caller's to set.
  std::memset(file.data() + kLeaseFields, 0, kLeaseBytes - kLeaseFields);
  FinishCrc(reinterpret_cast<uint8_t*>(file.data()), kLeaseBytes);
  return file;
}

std::string DecodeLease(std::string_view file, LeaseFile* lease) {
  if (file.size() != kLeaseBytes) {
    return "lease has " + std::to_string(file.size()) + " bytes; " + std::to_string(kLeaseBytes) +
           " are wanted";
  }
  const auto* const data = reinterpret_cast<const uint8_t*>(file.data());
  LeaseFile found;
  std::memcpy(&found, data, sizeof(found));
  const std::string wrong = FirstOf([&] { return CheckStart(data, kLeaseBytes, kLeaseMagic); },
                                    [&] { return Outside("leaving", found.leaving, 0, 1); },
                                    [&] { return CheckRest(data, kLeaseFields, kLeaseBytes); });
  if (!wrong.empty()) return "lease: " + wrong;
  *lease = found;
  return "";
}

}  // namespace tpu_sync_native
