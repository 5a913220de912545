// Segments on shared storage, as bytes. docs/formats/segment.md draws them and says what a reader does with
// each mismatch. All integers are little-endian; every structure is padded with zeros to its size.
//
//   seg-<n>.kvs   SegmentHeader (4096)  RecordHeader (4096) payload (to a multiple of 4096)  RecordHeader ...
//   seg-<n>.idx   IndexHeader (4096)    IndexEntry (96) x count, sorted by key      published when sealed
//   tail.idx      the same for the open segment, published anew as it grows
//   lease         LeaseFile (256)       heartbeat of the host
//
// Nothing here is trusted: decoding checks every field against the file's size and against each other.
#pragma once

#include <cstdint>

namespace tpu_sync_native {

inline constexpr uint32_t kStorageVersion = 1;
inline constexpr uint64_t kStorageUnit = 4096;
inline constexpr uint64_t kSegmentMagic = 0x31304745'5354564bULL;  // "KVTSEG01"
inline constexpr uint64_t kRecordMagic = 0x31304345'5254564bULL;   // "KVTREC01"
inline constexpr uint64_t kIndexMagic = 0x31305844'4954564bULL;    // "KVTIDX01"
inline constexpr uint64_t kLeaseMagic = 0x31305341'454c564bULL;    // "KVLEAS01"
inline constexpr uint32_t kStoredKeyBytesMin = 16;
inline constexpr uint32_t kStoredKeyBytesMax = 64;
// What a catalog cell can name: 16 bits of payload units, 28 bits of offset units.
inline constexpr uint64_t kStoredChunkBytesMax = 0xffff * kStorageUnit;
inline constexpr uint64_t kStoredSegmentBytesMax = kStorageUnit << 28;

// What was done to a payload: nothing, lz4, or lz4 after a byte shuffle of items of so many bytes.
enum class Codec : uint32_t { kRaw = 0, kLz4 = 1, kLz4Shuffle2 = 2, kLz4Shuffle4 = 4 };

// What keeps a record from being written or changed by others: nothing, a keyed tag, or that and encryption
// (segment/seal.h).
enum class Seal : uint32_t { kNone = 0, kMac = 1, kEncrypt = 2 };
inline constexpr uint32_t kSealSaltBytes = 32, kSealTagBytes = 16, kSealHeaderTagBytes = 32;

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_crc;  // CRC32C of the 4096 bytes with this field 0
  uint8_t namespace_id[16];
  uint8_t host_id[16];  // who wrote it first; adoption moves the file, not this
  uint64_t number;
  uint64_t epoch;  // of the namespace on this root
  uint64_t chunk_bytes;
};

struct RecordHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_crc;  // CRC32C of the first kRecordHeaderBytes with this field 0
  uint8_t namespace_id[16];
  uint8_t host_id[16];
  uint64_t segment;
  uint64_t epoch;
  uint64_t offset;        // of this header in its file: a record that was moved is not valid
  uint64_t chunk_bytes;   // of the chunk
  uint64_t stored_bytes;  // of the payload in the file; chunk_bytes when raw
  uint32_t payload_crc;   // CRC32C of the stored bytes
  uint32_t codec;
  uint32_t key_bytes;
  uint32_t seal;
  uint8_t key[kStoredKeyBytesMax];
  uint8_t salt[kSealSaltBytes];  // of the record's key; this and the tags are zeros without a seal
  uint8_t payload_tag[kSealTagBytes];
  uint8_t header_tag[kSealHeaderTagBytes];
  uint64_t reserved;
};
inline constexpr uint64_t kRecordHeaderBytes =
    256;  // what the checksum covers; the rest of the unit is zeros
static_assert(sizeof(RecordHeader) == kRecordHeaderBytes);

struct IndexHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_crc;  // CRC32C of the 4096 bytes with this field 0
  uint8_t namespace_id[16];
  uint8_t host_id[16];
  uint64_t segment;
  uint64_t epoch;
  uint64_t chunk_bytes;
  uint64_t segment_bytes;  // of the .kvs when this was written
  uint64_t count;
  uint32_t entries_crc;  // CRC32C of all entries
  uint32_t sealed;       // 1: the segment will not grow
};

struct IndexEntry {
  uint8_t key[kStoredKeyBytesMax];
  uint64_t offset;  // of the record header
  uint32_t key_bytes;
  uint32_t stored_units;  // payload on disk, in kStorageUnit
  uint32_t codec;
  uint32_t payload_crc;
  uint64_t reserved;
};
static_assert(sizeof(IndexEntry) == 96);

struct LeaseFile {
  uint64_t magic;
  uint32_t version;
  uint32_t crc;  // CRC32C of the 256 bytes with this field 0
  uint8_t host_id[16];
  uint64_t boot_id;
  uint64_t counter;  // moves while the host lives; compared with itself only
  uint64_t bytes;    // of all its segments in this namespace, the open one at its full size
  uint64_t changes;  // moves when an index, a tail or a file of its own or adopted directories changed:
                     // others look
  uint32_t leaving;  // 1: the host has stopped in order; it may be adopted at once
};
inline constexpr uint64_t kLeaseBytes = 256;

inline constexpr uint64_t RoundToUnit(uint64_t bytes) {
  return (bytes + kStorageUnit - 1) / kStorageUnit * kStorageUnit;
}

}  // namespace tpu_sync_native
