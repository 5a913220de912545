// The server's side of one record: from bytes that a client may change at any moment to a checked private
// copy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ring/ring_map.h"
#include "store/store.h"
#include "tpu_sync_native/ring_layout.h"

namespace tpu_sync_native {

static_assert(kRingKeysMax == kBatchKeysMax, "the ring must carry what the store takes");

enum class ReadOutcome {
  kEmpty,    // nothing to read
  kRequest,  // a request lies in the reader
  kSkipped,  // a record without a request
  kLie,      // counters, lengths or op cannot be true; the ring must be closed
};

// Reads the records of any ring; its buffers are reused. Not thread-safe.
class RequestReader {
 public:
  // Reads the record at `head` (the server's own counter), bounded by the shared tail, and sets
  // `record_bytes` to what head must be advanced by. Never reads outside the request area, whatever the
  // client writes meanwhile.
  ReadOutcome Read(const RingMap& ring, uint64_t head);

  uint64_t record_bytes() const { return header_.record_bytes; }
  const RequestHeader& header() const { return header_; }
  Op op() const { return static_cast<Op>(header_.op); }
  KeyBatch keys() const { return {body_.data(), offsets_.data(), header_.key_count}; }
  std::span<const uint8_t> keep() const { return {body_.data(), header_.keep_bytes}; }

 private:
  ReadOutcome ReadKeys(const std::byte* body, uint64_t body_bytes);
  ReadOutcome ReadKeep(const std::byte* body, uint64_t body_bytes);

  RequestHeader header_{};
  std::vector<uint32_t> offsets_;
  std::vector<uint8_t> body_;  // key bytes, or the keep bitmap
};

}  // namespace tpu_sync_native
