// What the parsers of the storage format are thrown at, and what must hold of every answer. The first byte of
// an input picks the parser, the rest is the file. Beside not reading or writing where it must not: what is
// accepted encodes to the very bytes it was decoded from, and lies where it says inside the file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "fuzz/driver.h"
#include "segment/payload_codec.h"
#include "segment/words.h"
#include "segment_fixture.h"

namespace tpu_sync_native::testing {

enum class Parser : uint8_t { kSegment = 0, kIndex = 1, kLease = 2, kRecord = 3, kPayload = 4 };
inline constexpr int kParsers = 5;

// What a seal adds takes a key to make: it is taken over into a header that was encoded without one.
inline void TakeSeal(const RecordHeader& from, std::string& unit) {
  RecordHeader made;
  std::memcpy(&made, unit.data(), sizeof(made));
  made.seal = from.seal;
  std::memcpy(made.salt, from.salt, sizeof(made.salt));
  std::memcpy(made.payload_tag, from.payload_tag, sizeof(made.payload_tag));
  std::memcpy(made.header_tag, from.header_tag, sizeof(made.header_tag));
  made.header_crc = 0;
  std::memcpy(unit.data(), &made, sizeof(made));
  FinishCrc(MutableBytes(unit), kRecordHeaderBytes);
}

inline void FuzzSegment(const std::string& file) {
  std::vector<Found> found;
  const ScanResult all = Scan(file, /*check_payloads=*/true, &found);
  const ScanResult stopped = Scan(file, /*check_payloads=*/true);
  const ScanResult headers = Scan(file, /*check_payloads=*/false);
  HOLDS(all.valid_bytes == stopped.valid_bytes && all.stopped == stopped.stopped);
  HOLDS(stopped.valid_bytes <= headers.valid_bytes && headers.valid_bytes <= file.size());
  HOLDS(found.size() >= all.entries.size() && all.entries.size() >= stopped.entries.size());
  uint64_t end = kStorageUnit;
  for (const IndexEntry& entry : all.entries) {
    HOLDS(entry.offset >= end);
    end = entry.offset + (1 + uint64_t{entry.stored_units}) * kStorageUnit;
    HOLDS(end <= file.size());
    RecordHeader header;
    const auto unit = AsBytes(file).subspan(entry.offset, kStorageUnit);
    HOLDS(CheckRecordHeader(unit, all.identity, entry.offset, &header).empty());
    std::string again(kStorageUnit, 'x');
    EncodeRecordHeader(all.identity, entry.offset, KeyOf(entry), static_cast<Codec>(entry.codec),
                       header.stored_bytes, entry.payload_crc, MutableBytes(again));
    TakeSeal(header, again);
    HOLDS(std::memcmp(again.data(), unit.data(), kStorageUnit) == 0);
  }
}

inline void FuzzIndex(const std::string& file) {
  SegmentIdentity identity;
  uint64_t segment_bytes = 0;
  bool sealed = false;
  std::vector<IndexEntry> entries;
  if (DecodeIndex(file, &identity, &segment_bytes, &sealed, &entries).empty()) {
    HOLDS(EncodeIndex(identity, segment_bytes, sealed, entries) == file);
    for (const IndexEntry& entry : entries) {
      HOLDS(entry.offset + (1 + uint64_t{entry.stored_units}) * kStorageUnit <= segment_bytes);
    }
  } else {
    HOLDS(entries.empty());
  }
}

inline void FuzzLease(const std::string& file) {
  LeaseFile lease;
  if (DecodeLease(file, &lease).empty()) HOLDS(EncodeLease(lease) == file);
}

inline void FuzzRecord(const std::string& file) {
  // Of whatever it says it is.
  if (file.size() < sizeof(RecordHeader)) return;
  RecordHeader says;
  std::memcpy(&says, file.data(), sizeof(says));
  SegmentIdentity identity;
  std::memcpy(identity.namespace_id, says.namespace_id, 16);
  std::memcpy(identity.host_id, says.host_id, 16);
  identity.number = says.segment;
  identity.epoch = says.epoch;
  identity.chunk_bytes = says.chunk_bytes;
  RecordHeader header;
  if (!CheckRecordHeader(AsBytes(file), identity, says.offset, &header).empty()) return;
  HOLDS(header.stored_bytes <= header.chunk_bytes);
  std::string again(kStorageUnit, 'x');
  EncodeRecordHeader(identity, header.offset, KeyOf(header), static_cast<Codec>(header.codec),
                     header.stored_bytes, header.payload_crc, MutableBytes(again));
  TakeSeal(header, again);
  HOLDS(file.compare(0, kStorageUnit, again) == 0);
}

// codec (1 byte), length to decode to (4 bytes), payload.
inline void FuzzPayload(const std::string& file) {
  if (file.size() < 5) return;
  uint32_t bytes = 0;
  std::memcpy(&bytes, file.data() + 1, sizeof(bytes));
  bytes %= 1 << 20;
  const auto codec = static_cast<Codec>(file[0] & 7);
  if (!CodecUnavailable(codec).empty()) return;
  const std::string source = file.substr(5);
  const std::unique_ptr<uint8_t[]> target(new uint8_t[bytes]);
  DecodePayload(codec, AsBytes(source).data(), source.size(), target.get(), bytes);
}

inline void FuzzOne(std::string_view input) {
  if (input.empty()) return;
  const std::string file(input.substr(1));
  switch (static_cast<Parser>(static_cast<uint8_t>(input[0]) % kParsers)) {
    case Parser::kSegment:
      return FuzzSegment(file);
    case Parser::kIndex:
      return FuzzIndex(file);
    case Parser::kLease:
      return FuzzLease(file);
    case Parser::kRecord:
      return FuzzRecord(file);
    case Parser::kPayload:
      return FuzzPayload(file);
  }
}

// Makes the checksums of what looks like a structure right, so that a change reaches the checks behind them.
inline void FixChecksums(std::string* input) {
  uint8_t* const file = MutableBytes(*input) + 1;
  const size_t bytes = input->size() - 1;
  for (size_t at = 0; at + kLeaseBytes <= bytes; at += kStorageUnit) {
    uint64_t magic = 0;
    std::memcpy(&magic, file + at, sizeof(magic));
    const bool whole = at + kStorageUnit <= bytes;
    if (magic == kIndexMagic && whole) {
      const uint32_t crc = Crc32c(0, file + at + kStorageUnit, bytes - at - kStorageUnit);
      std::memcpy(file + at + offsetof(IndexHeader, entries_crc), &crc, sizeof(crc));
    }
    if ((magic == kIndexMagic || magic == kSegmentMagic) && whole) FinishCrc(file + at, kStorageUnit);
    if (magic == kRecordMagic) FinishCrc(file + at, kRecordHeaderBytes);
    if (magic == kLeaseMagic) FinishCrc(file + at, kLeaseBytes);
  }
}

}  // namespace tpu_sync_native::testing
