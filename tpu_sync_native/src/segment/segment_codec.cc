// The headers of segments and records; indexes and leases are in index_codec.cc.
#include "segment/segment_codec.h"

#include <cassert>
#include <cstddef>
#include <cstring>

#include "segment/words.h"

namespace tpu_sync_native {
namespace {

static_assert(offsetof(SegmentHeader, header_crc) == kCrcOffset);
static_assert(offsetof(RecordHeader, header_crc) == kCrcOffset);

std::string CheckStoredBytes(const RecordHeader& header) {
  if (!IsCodec(header.codec)) return "codec is " + std::to_string(header.codec) + "; 0, 1, 2 and 4 are known";
  if (header.codec == static_cast<uint32_t>(Codec::kRaw)) {
    return Differs("stored_bytes", header.stored_bytes, header.chunk_bytes);
  }
  return Outside("stored_bytes", header.stored_bytes, 1, header.chunk_bytes);
}

std::string CheckSeal(const RecordHeader& header) {
  if (header.seal > static_cast<uint32_t>(Seal::kEncrypt)) {
    return "seal is " + std::to_string(header.seal) + "; 0, 1 and 2 are known";
  }
  if (header.seal != static_cast<uint32_t>(Seal::kNone)) return "";
  const bool none = AllZero(header.salt, sizeof(header.salt)) &&
                    AllZero(header.payload_tag, sizeof(header.payload_tag)) &&
                    AllZero(header.header_tag, sizeof(header.header_tag));
  return none ? "" : "it has tags and no seal";
}

}  // namespace

void EncodeSegmentHeader(const SegmentIdentity& identity, uint8_t* out) {
  SegmentHeader header{};
  header.magic = kSegmentMagic;
  header.version = kStorageVersion;
  std::memcpy(header.namespace_id, identity.namespace_id, 16);
  std::memcpy(header.host_id, identity.host_id, 16);
  header.number = identity.number;
  header.epoch = identity.epoch;
  header.chunk_bytes = identity.chunk_bytes;
  std::memset(out, 0, kStorageUnit);
  std::memcpy(out, &header, sizeof(header));
  FinishCrc(out, kStorageUnit);
}

std::string DecodeSegmentHeader(std::span<const uint8_t> bytes, SegmentIdentity* identity) {
  if (bytes.size() < kStorageUnit) {
    return "segment header has " + std::to_string(bytes.size()) + " bytes; " + std::to_string(kStorageUnit) +
           " are wanted";
  }
  SegmentHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::string wrong =
      FirstOf([&] { return CheckStart(bytes.data(), kStorageUnit, kSegmentMagic); },
              [&] { return header.number == 0 ? "number is 0; 1 is the first" : ""; },
              [&] { return Outside("chunk_bytes", header.chunk_bytes, 1, kStoredChunkBytesMax); },
              [&] { return CheckRest(bytes.data(), sizeof(header), kStorageUnit); });
  if (!wrong.empty()) return "segment header: " + wrong;
  std::memcpy(identity->namespace_id, header.namespace_id, 16);
  std::memcpy(identity->host_id, header.host_id, 16);
  identity->number = header.number;
  identity->epoch = header.epoch;
  identity->chunk_bytes = header.chunk_bytes;
  return "";
}

bool EncodeRecordHeader(const SegmentIdentity& identity, uint64_t offset, std::string_view key, Codec codec,
                        uint64_t stored_bytes, uint32_t payload_crc, uint8_t* out, const Sealer* sealer,
                        const PayloadSeal* seal) {
  assert(key.size() >= kStoredKeyBytesMin && key.size() <= kStoredKeyBytesMax);
  RecordHeader header{};
  header.magic = kRecordMagic;
  header.version = kStorageVersion;
  std::memcpy(header.namespace_id, identity.namespace_id, 16);
  std::memcpy(header.host_id, identity.host_id, 16);
  header.segment = identity.number;
  header.epoch = identity.epoch;
  header.offset = offset;
  header.chunk_bytes = identity.chunk_bytes;
  header.stored_bytes = stored_bytes;
  header.payload_crc = payload_crc;
  header.codec = static_cast<uint32_t>(codec);
  header.key_bytes = static_cast<uint32_t>(key.size());
  std::memcpy(header.key, key.data(), key.size());
  if (sealer != nullptr) {
    header.seal = static_cast<uint32_t>(sealer->seal());
    std::memcpy(header.salt, seal->salt, sizeof(header.salt));
    std::memcpy(header.payload_tag, seal->tag, sizeof(header.payload_tag));
    if (!sealer->SealHeader(&header)) return false;
  }
  std::memset(out, 0, kStorageUnit);
  std::memcpy(out, &header, sizeof(header));
  FinishCrc(out, kRecordHeaderBytes);
  return true;
}

std::string CheckRecordHeader(std::span<const uint8_t> unit, const SegmentIdentity& identity, uint64_t offset,
                              RecordHeader* header) {
  if (unit.size() < kStorageUnit) {
    return "record header has " + std::to_string(unit.size()) + " bytes; " + std::to_string(kStorageUnit) +
           " are wanted";
  }
  std::memcpy(header, unit.data(), sizeof(*header));
  const std::string wrong = FirstOf(
      [&] { return CheckStart(unit.data(), kRecordHeaderBytes, kRecordMagic); },
      [&] { return IdDiffers("namespace", header->namespace_id, identity.namespace_id); },
      [&] { return IdDiffers("host", header->host_id, identity.host_id); },
      [&] { return Differs("segment", header->segment, identity.number); },
      [&] { return Differs("epoch", header->epoch, identity.epoch); },
      [&] { return Differs("offset", header->offset, offset); },
      [&] { return Differs("chunk_bytes", header->chunk_bytes, identity.chunk_bytes); },
      [&] { return CheckStoredBytes(*header); }, [&] { return CheckKey(header->key, header->key_bytes); },
      [&] { return CheckSeal(*header); }, [&] { return Differs("reserved", header->reserved, 0); },
      [&] { return CheckRest(unit.data(), sizeof(RecordHeader), kStorageUnit); });
  return wrong.empty() ? "" : "record header: " + wrong;
}

}  // namespace tpu_sync_native
