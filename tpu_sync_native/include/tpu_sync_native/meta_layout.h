// The shared metadata of one host, as bytes.
//
// The daemon is the only writer; engines map the file read-only and read it without locks.
//
//   offset                what
//   0                     MetaHeader          4096 bytes
//   namespaces_offset     NamespaceRecord     namespaces_max x 64 bytes
//   sessions_offset       SessionRow          sessions_max   x 64 bytes
//   leases_offset         WriteLeaseRow       leases_max     x 32 bytes
//   buckets_offset        Bucket              bucket_count   x 64 bytes
//   slots_offset          SlotRecord          slots_max      x 64 bytes
//   key_tails_offset      KeyTail             slots_max      x 24 bytes (touched by keys > 40 bytes only)
//   checksums_offset      ChecksumCell        slots_max      x 3 bytes (untouched where none are made)
//
// Every table starts at a multiple of 4096. All integers are little-endian. docs/formats/arena.md draws it.
//
// Reading a record (a sequence counter, no fences: each data load is an acquire, each data store a
// release, which x86 gives for nothing and ThreadSanitizer understands):
//
//   reader  s = seq.load(acquire); odd -> retry     writer  seq.store(s + 1, relaxed)
//           copy words, each load(acquire)                   words, each store(release)
//           seq.load(relaxed) != s -> retry                  seq.store(s + 2, release)
//
// A reader retries a bounded number of times (kSeqRetriesMax), then the chunk is a miss: a writer that
// was killed in the middle leaves an odd counter behind, and nobody may wait for it.
//
// A daemon that starts on the file of another one (same geometry, same boot of the host) takes what is sound
// of it, from the slot records alone: see src/store/restore.cc.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tpu_sync_native {

inline constexpr uint64_t kMetaMagic = 0x314154454d54564bULL;  // "KVTMETA1"
inline constexpr uint32_t kMetaVersion = 4;
inline constexpr uint32_t kNoSlot = 0xffffffffu;
inline constexpr uint32_t kKeyBytesMin = 16;
inline constexpr uint32_t kKeyBytesMax = 64;
inline constexpr uint32_t kKeyBytesInline = 40;
inline constexpr uint32_t kBucketCells = 8;
inline constexpr uint32_t kSeqRetriesMax = 64;
inline constexpr uint32_t kPayloadUnit = 4096;  // payload offsets and slot sizes are multiples of this
inline constexpr uint32_t kSessionRowsMax = 2048;
inline constexpr uint32_t kLeaseRowsMax = 8192;  // and no more than slots; a place word has 16 bits for one

// kPromoting: a chunk on its way from storage. It may be leased; it is readable once it is kCommitted under
// the same generation, and lost when the generation has changed.
enum class SlotState : uint8_t { kFree = 0, kReserved = 1, kCommitted = 2, kQuarantined = 3, kPromoting = 4 };

struct alignas(4096) MetaHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t namespaces_max;
  uint64_t data_bytes;  // size of the payload file
  uint64_t meta_bytes;  // size of this file
  uint64_t slab_bytes;
  uint32_t slots_max;
  uint32_t bucket_count;
  uint64_t namespaces_offset;
  uint64_t buckets_offset;
  uint64_t slots_offset;
  uint64_t key_tails_offset;
  uint64_t boot_id;      // random per daemon process; a client that sees another one has lost its session
  uint8_t arena_id[16];  // random per arena
  uint64_t sessions_offset;
  uint64_t leases_offset;
  uint32_t sessions_max;
  uint32_t leases_max;
  // Raised, and all waiters woken, whenever promotes have ended: a futex that readers with a chunk in
  // kPromoting sleep on (FUTEX_WAIT needs only read access).
  alignas(64) std::atomic<uint32_t> promotes_ended;
  // For the next daemon alone.
  alignas(64) std::atomic<uint64_t> last_lease;  // the highest numbers given out in the arena's life
  std::atomic<uint64_t> last_session;
  uint64_t restarts;      // how often it was taken over
  uint8_t host_boot[16];  // of the host's boot: what a file system kept over another one may be torn
  uint64_t checksums_offset;
};
static_assert(sizeof(MetaHeader) == 4096);
static_assert(offsetof(MetaHeader, sessions_offset) == 104 && offsetof(MetaHeader, leases_max) == 124);
static_assert(offsetof(MetaHeader, checksums_offset) == 232);
static_assert(offsetof(MetaHeader, promotes_ended) == 128 && offsetof(MetaHeader, last_lease) == 192);

// A namespace's chunks are those whose record carries its index and its present epoch, so clearing a
// namespace is one store to `epoch`; the stale slots are reclaimed in the background.
struct alignas(64) NamespaceRecord {
  std::atomic<uint32_t> epoch;  // 0: the record is unused
  // Which epoch the last clear was to make. Higher than `epoch`: that clear is not done, and its daemon is
  // gone.
  std::atomic<uint32_t> clearing_to;
  uint64_t chunk_bytes;
  uint8_t id[16];
  // The namespace's epoch in the tier below + 1, 0 while it is not known; kUnconfirmedClear beside it:
  // cleared since, and that tier has not confirmed it. An engine that outlives the daemon tells the next one.
  std::atomic<uint64_t> epoch_below;
  // Bytes of the arena that other namespaces leave to this one (Store::SetFloor); 0: none.
  std::atomic<uint64_t> floor_bytes;
  uint8_t pad[16];
};
static_assert(sizeof(NamespaceRecord) == 64);
inline constexpr uint64_t kUnconfirmedClear = uint64_t{1} << 63;

// A process that may write into slots: what a later daemon needs to know whether it still lives.
struct alignas(64) SessionRow {
  std::atomic<uint64_t> session;  // 0: the row is unused
  uint64_t boot_id;               // of the daemon that opened it
  uint64_t group;
  uint64_t start;  // when the process began, as /proc/PID/stat says it; 0 = unknown
  uint64_t space;  // in which PID namespace `pid` means something; 0 = unknown
  uint32_t pid;
  uint8_t pad[20];
};
static_assert(sizeof(SessionRow) == 64);

// A write lease that is out, or whose slots are quarantined. Its slots name it, so it is written before the
// first of them is reserved, and ends after the last.
struct alignas(32) WriteLeaseRow {
  std::atomic<uint64_t> lease;  // 0: the row is unused
  uint64_t session;
  uint64_t group;
  uint8_t pad[8];
};
static_assert(sizeof(WriteLeaseRow) == 32);

// Eight cells; a key may stand in either of two buckets. tag 0 is an empty cell. A cell is changed by
// single stores (slot first, then tag), so it needs no counter: a reader that meets a half-made cell
// finds another key in the slot record and goes on.
struct alignas(64) Bucket {
  std::atomic<uint16_t> tags[kBucketCells];
  std::atomic<uint32_t> slots[kBucketCells];
  uint8_t pad[16];
};
static_assert(sizeof(Bucket) == 64);

// Words are written and read whole (see the protocol above). `generation` is raised at reserve, before
// the first byte of the new chunk is written, and when a chunk is evicted; a load compares it after its copy.
// `lease` of a reserved or quarantined slot: its WriteLeaseRow + 1; else, and of lost promotes, 0.
struct alignas(64) SlotRecord {
  std::atomic<uint32_t> seq;
  std::atomic<uint32_t> generation;
  std::atomic<uint64_t>
      place;  // payload offset / kPayloadUnit (low 32), state (8), key bytes (8), lease (16)
  std::atomic<uint64_t> owner;   // namespace index (low 32), epoch (high 32)
  std::atomic<uint64_t> key[5];  // the first 40 bytes of the key, zero-padded
};
static_assert(sizeof(SlotRecord) == 64);

struct KeyTail {
  std::atomic<uint64_t> key[3];
};
static_assert(sizeof(KeyTail) == 24);

// Of a committed chunk's payload: 24 bits of its CRC32C (see ChecksumWord); 0: there is none. For the daemon
// and its tools alone. It is cleared before the slot is reserved anew.
struct ChecksumCell {
  std::atomic<uint8_t> bytes[3];
};
static_assert(sizeof(ChecksumCell) == 3);

// Mixed before it is cut: of the polynomial's remainder alone, 24 bits would not see every single flipped
// bit.
constexpr uint32_t ChecksumWord(uint32_t crc) {
  const uint32_t word = (crc * 0x9e3779b1u) >> 8;
  return word == 0 ? 1 : word;
}

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint16_t>::is_always_lock_free);

}  // namespace tpu_sync_native
