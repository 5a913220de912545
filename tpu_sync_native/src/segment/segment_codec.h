// Encoding and checking of everything in layout.h; pure functions on bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "segment/layout.h"
#include "segment/names.h"
#include "segment/seal.h"

namespace tpu_sync_native {

// What a structure must belong to; a difference is a mismatch, named in words by the checks below.
struct SegmentIdentity {
  uint8_t namespace_id[16] = {};
  uint8_t host_id[16] = {};
  uint64_t number = 0;  // from 1
  uint64_t epoch = 0;
  uint64_t chunk_bytes = 0;

  bool operator==(const SegmentIdentity&) const = default;
};

// Each fills one unit (kStorageUnit bytes) at `out`.
void EncodeSegmentHeader(const SegmentIdentity& identity, uint8_t* out);
// sealer and seal: of a record that is sealed; false when its tag cannot be made.
bool EncodeRecordHeader(const SegmentIdentity& identity, uint64_t offset, std::string_view key, Codec codec,
                        uint64_t stored_bytes, uint32_t payload_crc, uint8_t* out,
                        const Sealer* sealer = nullptr, const PayloadSeal* seal = nullptr);
// What an index says of a record.
IndexEntry MakeIndexEntry(uint64_t offset, std::string_view key, Codec codec, uint64_t stored_bytes,
                          uint32_t payload_crc);
// Sorts them; of two records of one key the later stays.
std::string EncodeIndex(const SegmentIdentity& identity, uint64_t segment_bytes, bool sealed,
                        std::vector<IndexEntry> entries);
std::string EncodeLease(const LeaseFile& lease);  // magic, version and crc are filled in

inline std::string_view KeyOf(const IndexEntry& entry) {
  return {reinterpret_cast<const char*>(entry.key), entry.key_bytes};
}
inline std::string_view KeyOf(const RecordHeader& header) {
  return {reinterpret_cast<const char*>(header.key), header.key_bytes};
}

// Each returns "" or what is wrong, in words; the outputs then say nothing. `bytes` is all there is; more of
// it than the structure is ignored for the two headers, and a fault for the files.
std::string DecodeSegmentHeader(std::span<const uint8_t> bytes, SegmentIdentity* identity);
// Checks a header alone: magic, version, crc, lengths, and that it is of `identity` and stands at `offset`.
std::string CheckRecordHeader(std::span<const uint8_t> unit, const SegmentIdentity& identity, uint64_t offset,
                              RecordHeader* header);
std::string DecodeIndex(std::string_view file, SegmentIdentity* identity, uint64_t* segment_bytes,
                        bool* sealed, std::vector<IndexEntry>* entries);
std::string DecodeLease(std::string_view file, LeaseFile* lease);

}  // namespace tpu_sync_native
