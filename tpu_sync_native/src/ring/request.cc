#include "ring/request.h"

#include <cstring>

namespace tpu_sync_native {

ReadOutcome RequestReader::Read(const RingMap& ring, uint64_t head) {
  const uint64_t available = ring.header().request_tail.load(std::memory_order_seq_cst) - head;
  if (available == 0) return ReadOutcome::kEmpty;
  if (available > kRequestAreaBytes || available % kRecordUnit != 0) return ReadOutcome::kLie;

  const uint64_t offset = head % kRequestAreaBytes;
  const std::byte* const record = ring.requests() + offset;
  std::memcpy(&header_, record, sizeof(header_));
  const uint64_t bytes = header_.record_bytes;
  const uint64_t until_end = kRequestAreaBytes - offset;
  if (bytes < kRecordUnit || bytes % kRecordUnit != 0 || bytes > available || bytes > until_end) {
    return ReadOutcome::kLie;
  }
  const std::byte* const body = record + sizeof(RequestHeader);
  const uint64_t body_bytes = bytes - sizeof(RequestHeader);
  switch (op()) {
    case Op::kSkip:
      return bytes == until_end ? ReadOutcome::kSkipped : ReadOutcome::kLie;
    case Op::kLease:
    case Op::kReserve:
    case Op::kTouch:
    case Op::kRenew:
    case Op::kPrefetch:
      return ReadKeys(body, body_bytes);
    case Op::kCommit:
      return ReadKeep(body, body_bytes);
    case Op::kPing:
    case Op::kRelease:
    case Op::kAbort:
    case Op::kDrained:
      return ReadOutcome::kRequest;
  }
  return ReadOutcome::kLie;
}

ReadOutcome RequestReader::ReadKeys(const std::byte* body, uint64_t body_bytes) {
  const uint64_t count = header_.key_count;
  const uint64_t offsets_bytes = (count + 1) * sizeof(uint32_t);
  if (count > kRingKeysMax || offsets_bytes > body_bytes) return ReadOutcome::kLie;
  // Copied first and checked after, both tables: the client may still be writing to the shared ones.
  offsets_.resize(count + 1);
  std::memcpy(offsets_.data(), body, offsets_bytes);
  if (offsets_[0] != 0) return ReadOutcome::kLie;
  for (uint64_t i = 0; i < count; ++i) {
    if (offsets_[i + 1] < offsets_[i]) return ReadOutcome::kLie;
  }
  const uint64_t key_bytes = offsets_[count];
  if (key_bytes > body_bytes - offsets_bytes) return ReadOutcome::kLie;
  body_.resize(key_bytes);
  if (key_bytes != 0) std::memcpy(body_.data(), body + offsets_bytes, key_bytes);
  return ReadOutcome::kRequest;
}

ReadOutcome RequestReader::ReadKeep(const std::byte* body, uint64_t body_bytes) {
  const uint64_t keep_bytes = header_.keep_bytes;
  if (keep_bytes > body_bytes || keep_bytes > kRingKeysMax) return ReadOutcome::kLie;
  body_.resize(keep_bytes);
  if (keep_bytes != 0) std::memcpy(body_.data(), body, keep_bytes);
  return ReadOutcome::kRequest;
}

}  // namespace tpu_sync_native
