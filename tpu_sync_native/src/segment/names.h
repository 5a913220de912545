// Names below the root. A name is what its number or id would be written as, to the letter, or it is foreign:
// inverse functions return false for everything else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "segment/layout.h"

namespace tpu_sync_native {

inline constexpr std::string_view kMarkerName = "kvtier.json";
inline constexpr std::string_view kVersionName = "v1";
inline constexpr std::string_view kMetaName = "meta.json";
inline constexpr std::string_view kHostsName = "hosts";
inline constexpr std::string_view kLeaseName = "lease";
inline constexpr std::string_view kTailName = "tail.idx";

std::string HexId(const uint8_t id[16]);  // 32 digits, lower case
bool ParseHexId(std::string_view name, uint8_t id[16]);

// Numbers count from 1 and have ten digits, more when they need more.
std::string SegmentName(uint64_t number);  // "seg-0000000001.kvs"
std::string IndexName(uint64_t number);    // "seg-0000000001.idx"
bool ParseSegmentName(std::string_view name, uint64_t* number);
bool ParseIndexName(std::string_view name, uint64_t* number);

std::string EpochName(uint64_t epoch);  // "epoch-1"
bool ParseEpochName(std::string_view name, uint64_t* epoch);

// A host's directory below hosts/: "<host>", or "<host>.adopt.<adopter>" once another host has taken it over.
// Its segments keep naming the host that wrote them.
struct HostDirectoryName {
  uint8_t host_id[16] = {};
  uint8_t adopter_id[16] = {};
  bool adopted = false;
};
std::string AdoptedName(const uint8_t host_id[16], const uint8_t adopter_id[16]);
bool ParseHostDirectory(std::string_view name, HostDirectoryName* parsed);

std::string NamespaceDirectory(const uint8_t namespace_id[16]);  // "v1/<namespace>"
std::string HostsDirectory(const uint8_t namespace_id[16]);      // "v1/<namespace>/hosts"

// The name of a codec in configuration: "raw", "lz4", "lz4-shuffle2", "lz4-shuffle4".
const char* CodecName(Codec codec);
bool ParseCodec(std::string_view name, Codec* codec);

}  // namespace tpu_sync_native
