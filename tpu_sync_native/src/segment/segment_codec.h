// Encoding and checking of everything in layout.h; pure functions on bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "segment/layout.h"

namespace tpu_sync_native {

// What a structure must belong to; a difference is a mismatch, named in words by the checks below.
struct SegmentIdentity {
  uint8_t namespace_id[16] = {};
  uint8_t host_id[16] = {};
  uint64_t number = 0;
  uint64_t epoch = 0;
  uint64_t chunk_bytes = 0;
};

// Each fills one unit (kStorageUnit bytes) at `out`.
void EncodeSegmentHeader(const SegmentIdentity& identity, uint8_t* out);
void EncodeRecordHeader(const SegmentIdentity& identity, uint64_t offset, std::string_view key, Codec codec,
                        uint64_t stored_bytes, uint32_t payload_crc, uint8_t* out);
std::string EncodeIndex(const SegmentIdentity& identity, uint64_t segment_bytes, bool sealed,
                        std::vector<IndexEntry> entries);  // sorts them
std::string EncodeLease(const LeaseFile& lease);           // magic, version and crc are filled in

// Each returns "" or what is wrong, in words. `bytes` is all there is.
std::string DecodeSegmentHeader(std::span<const uint8_t> bytes, SegmentIdentity* identity);
// Checks a header alone: magic, version, crc, lengths, and that it is of `identity` and stands at `offset`.
std::string CheckRecordHeader(std::span<const uint8_t> unit, const SegmentIdentity& identity, uint64_t offset,
                              RecordHeader* header);
std::string DecodeIndex(std::string_view file, SegmentIdentity* identity, uint64_t* segment_bytes,
                        bool* sealed, std::vector<IndexEntry>* entries);
std::string DecodeLease(std::string_view file, LeaseFile* lease);

// Names below the root. Inverse functions return false for anything else, foreign files among them.
std::string HexId(const uint8_t id[16]);
std::string SegmentName(uint64_t number);  // "seg-0000000001.kvs"
std::string IndexName(uint64_t number);    // "seg-0000000001.idx"
bool ParseHexId(std::string_view name, uint8_t id[16]);
bool ParseSegmentName(std::string_view name, uint64_t* number);
bool ParseIndexName(std::string_view name, uint64_t* number);

}  // namespace tpu_sync_native
