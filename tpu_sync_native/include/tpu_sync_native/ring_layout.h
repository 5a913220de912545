// One session's ring, as bytes: a memfd that the daemon makes, sizes, seals and initialises, and that one
// engine process maps.
//
//   offset          what
//   0               RingHeader      4096 bytes: sizes, counters, futex words
//   4096            request area    kRequestAreaBytes: a stream of records, written by the client
//   + request area  reply area      kReplyAreaBytes: the one reply that is outstanding, written by the server
//
// Requests: `request_tail` and `request_head` count bytes and never go back; a byte's place is its count
// modulo the area. A record is contiguous and a multiple of 64 bytes long. One that does not fit before the
// area's end is preceded by a record of kSkip, which stretches to the end. A client that finds the ring empty
// skips to the start as well, so a quiet session touches few pages and stays in the cache.
//
//   client  writes the record, then stores request_tail; a resting server is woken by the doorbell
//   server  loads request_tail, copies the record, then stores request_head
//
// Replies: a session has at most one call in flight (posted requests get no reply), so the reply area holds
// one reply: ReplyHeader, slots, grants. The server writes it, then stores the request's sequence number in
// `reply_sequence`. A client that has given up on a call never looks at its reply: the session is lost by
// then.
//
// Sleeping: each side announces that it is about to sleep in a flag, looks once more, and sleeps on a futex
// word; the other side stores its news first and looks at the flag after. All four accesses are sequentially
// consistent.
//
// Waking costs the waker several microseconds, so posted requests avoid it: a server that has served
// something lately only naps (it looks again within kNapMs by itself), and of what is posted to one that
// sleeps (kSleepMs at most) only a commit wakes it, for others may be waiting to read that chunk, and a
// prefetch, which is good only if it begins at once. A call always wakes it.
//
// Trust: the server believes nothing in here. Counters, lengths and ids are read once, checked, and used from
// private memory; a ring that lies is closed (`server_closed`) and never looked at again. The memfd is sealed
// against shrinking, so no client can make the daemon fault.
#pragma once

#include <atomic>
#include <cstdint>

#include "tpu_sync_native/meta_layout.h"

namespace tpu_sync_native {

inline constexpr uint64_t kRingMagic = 0x31474e525454564bULL;  // "KVTTRNG1"
inline constexpr uint32_t kRingVersion = 1;
inline constexpr uint32_t kRecordUnit = 64;
inline constexpr uint32_t kRingKeysMax = 65536;
inline constexpr uint64_t kRingHeaderBytes = 4096;
inline constexpr uint64_t kRequestAreaBytes = 10u << 20;
inline constexpr uint64_t kReplyAreaBytes = 2u << 20;
inline constexpr uint64_t kRingBytes = kRingHeaderBytes + kRequestAreaBytes + kReplyAreaBytes;
inline constexpr uint64_t kDoorbellBytes = 4096;  // its first word is the futex, its value means nothing

struct RingHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t request_bytes;
  uint64_t reply_bytes;
  uint8_t pad0[32];
  // Written by the client.
  alignas(64) std::atomic<uint64_t> request_tail;
  alignas(64) std::atomic<uint32_t> client_sleeping;  // 1: for a reply, 2: for space
  // Written by the server.
  alignas(64) std::atomic<uint64_t> request_head;
  std::atomic<uint32_t> server_closed;  // 1: the ring is not served any more
  alignas(64) std::atomic<uint64_t> reply_sequence;
  std::atomic<uint32_t> client_futex;  // the client sleeps on it; raised to wake it
  // A ServerRest, set by the server before it rests; made kAwake by the client that wakes it.
  alignas(64) std::atomic<uint32_t> server_rest;
};
static_assert(sizeof(RingHeader) <= kRingHeaderBytes);

inline constexpr uint64_t kNapMs = 1;
inline constexpr uint64_t kSleepMs = 40;

enum ServerRest : uint32_t { kAwake = 0, kNapping = 1, kSleeping = 2 };

enum class Op : uint8_t {
  kSkip = 0,  // no request: go on at the start of the area
  kPing = 1,
  kLease = 2,
  kReserve = 3,
  kRelease = 4,
  kCommit = 5,
  kAbort = 6,
  kTouch = 7,
  kDrained = 8,
  kRenew = 9,
  kPrefetch = 10,
};

struct RequestHeader {
  uint32_t record_bytes;  // the whole record, a multiple of kRecordUnit
  uint8_t op;
  uint8_t wants_reply;  // 0: posted
  uint16_t reserved;
  uint64_t sequence;  // the session's own, from 1; what reply_sequence answers with
  uint64_t lease;     // release, commit, abort
  uint32_t ns;        // lease, reserve, touch, renew, prefetch
  uint32_t key_count;
  uint32_t keep_bytes;  // commit: bytes of the keep bitmap
  uint8_t pad[28];
};
static_assert(sizeof(RequestHeader) == kRecordUnit);
// After it: lease, reserve, touch, renew, prefetch: uint32_t offsets[key_count + 1] into the key bytes, then
// the key bytes;
//           commit: the keep bitmap.

inline constexpr uint64_t kRecordBytesMax = (sizeof(RequestHeader) + (kRingKeysMax + 1) * 4ull +
                                             kRingKeysMax * uint64_t{kKeyBytesMax} + kRecordUnit - 1) /
                                            kRecordUnit * kRecordUnit;

struct ReplyHeader {
  uint64_t sequence;
  uint64_t lease;
  uint32_t slot_count;
  uint32_t grant_count;
  uint8_t outcome;  // Outcome
  uint8_t pad[39];
};
static_assert(sizeof(ReplyHeader) == 64);
// After it: SlotRef[slot_count] (16 bytes each), then one byte for each of grant_count

static_assert(kRequestAreaBytes >=
              2 * kRecordBytesMax);  // an empty ring takes any record, wherever it stands
static_assert(kReplyAreaBytes >= sizeof(ReplyHeader) + kRingKeysMax * (16ull + 1));

}  // namespace tpu_sync_native
