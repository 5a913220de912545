#include "fs/io_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace tpu_sync_native {
namespace {

struct FreeBytes {
  void operator()(uint8_t* bytes) const { std::free(bytes); }
};

// Null when there is no memory.
uint8_t* BounceOfThisThread() {
  thread_local const std::unique_ptr<uint8_t, FreeBytes> buffer(
      static_cast<uint8_t*>(std::aligned_alloc(kDirectUnit, kBounceBytes)));
  return buffer.get();
}

uint64_t RoundDown(uint64_t value, uint64_t unit) { return value - value % unit; }
uint64_t RoundUp(uint64_t value, uint64_t unit) { return RoundDown(value + unit - 1, unit); }

// What is left of `vectors` when their first `bytes` are done; changes them.
std::span<iovec> Advance(std::span<iovec> vectors, uint64_t bytes) {
  while (!vectors.empty()) {
    iovec& front = vectors.front();
    const uint64_t step = std::min<uint64_t>(bytes, front.iov_len);
    front.iov_base = static_cast<uint8_t*>(front.iov_base) + step;
    front.iov_len -= step;
    bytes -= step;
    if (front.iov_len != 0) break;
    vectors = vectors.subspan(1);
  }
  return vectors;
}

// Fills `vectors` from the file, or empties them into the file.
template <bool kWrite>
IoError Transfer(int fd, uint64_t offset, std::span<iovec> vectors, uint64_t unit) {
  while (!vectors.empty()) {
    const int count = static_cast<int>(std::min<size_t>(vectors.size(), IOV_MAX));
    const ssize_t moved = kWrite ? pwritev(fd, vectors.data(), count, static_cast<off_t>(offset))
                                 : preadv(fd, vectors.data(), count, static_cast<off_t>(offset));
    if (moved < 0) {
      if (errno == EINTR) continue;
      return {errno};
    }
    if (moved == 0) return {kWrite ? EIO : IoError::kShort};
    offset += static_cast<uint64_t>(moved);
    vectors = Advance(vectors, static_cast<uint64_t>(moved));
    // O_DIRECT stops within a unit only where the file ends; going on from there would be EINVAL.
    if (!kWrite && !vectors.empty() && offset % unit != 0) return {IoError::kShort};
  }
  return {};
}

}  // namespace

IoPlan PlanIo(uint64_t offset, std::span<const IoVec> parts, uint64_t unit, uint64_t piece_bytes_max) {
  IoPlan plan;
  for (const IoVec& part : parts) {
    auto* data = static_cast<uint8_t*>(part.data);
    uint64_t left = part.bytes;
    while (left != 0) {
      const bool aligned =
          offset % unit == 0 && reinterpret_cast<uintptr_t>(data) % unit == 0 && left >= unit;
      IoPiece* piece = plan.pieces.empty() ? nullptr : &plan.pieces.back();
      const uint64_t end_max = piece == nullptr ? 0
                               : aligned        ? piece->offset + piece_bytes_max
                                                : RoundDown(piece->offset, unit) + kBounceBytes;
      if (piece == nullptr || piece->bounced == aligned || offset >= end_max ||
          (aligned && piece->count >= IOV_MAX)) {
        plan.pieces.push_back({offset, 0, static_cast<uint32_t>(plan.vectors.size()), 0, !aligned});
        continue;  // with this piece as the last one
      }
      uint64_t take = std::min(aligned ? RoundDown(left, unit) : left, end_max - offset);
      // Offset and address out of step with the unit by as much: in step again at the next one.
      const uint64_t astray = offset % unit;
      if (astray != 0 && reinterpret_cast<uintptr_t>(data) % unit == astray)
        take = std::min(take, unit - astray);
      plan.vectors.push_back({data, take});
      piece->bytes += take;
      ++piece->count;
      offset += take;
      data += take;
      left -= take;
    }
  }
  return plan;
}

IoError ReadPiece(int fd, IoPlan& plan, const IoPiece& piece, uint64_t unit, uint64_t skip) {
  const std::span<iovec> vectors = std::span(plan.vectors).subspan(piece.first, piece.count);
  if (!piece.bounced) return Transfer<false>(fd, piece.offset + skip, Advance(vectors, skip), unit);
  uint8_t* const bounce = BounceOfThisThread();
  if (bounce == nullptr) return {ENOMEM};
  const uint64_t begin = RoundDown(piece.offset, unit);
  const uint64_t end = RoundUp(piece.offset + piece.bytes, unit);
  iovec whole{bounce, end - begin};
  const IoError error = Transfer<false>(fd, begin, {&whole, 1}, unit);
  // The file may end within the last unit: that is short only if wanted bytes are missing.
  const uint64_t got = end - begin - whole.iov_len;
  if (!error.ok() && error.code != IoError::kShort) return error;
  if (begin + got < piece.offset + piece.bytes) return {IoError::kShort};
  const uint8_t* from = bounce + (piece.offset - begin);
  for (const iovec& vector : vectors) {
    std::memcpy(vector.iov_base, from, vector.iov_len);
    from += vector.iov_len;
  }
  return {};
}

IoError WritePiece(int fd, IoPlan& plan, const IoPiece& piece, uint64_t unit, uint64_t skip) {
  const std::span<iovec> vectors = std::span(plan.vectors).subspan(piece.first, piece.count);
  if (!piece.bounced) return Transfer<true>(fd, piece.offset + skip, Advance(vectors, skip), unit);
  uint8_t* const bounce = BounceOfThisThread();
  if (bounce == nullptr) return {ENOMEM};
  uint8_t* to = bounce;
  for (const iovec& vector : vectors) {
    std::memcpy(to, vector.iov_base, vector.iov_len);
    to += vector.iov_len;
  }
  iovec whole{bounce, piece.bytes};
  return Transfer<true>(fd, piece.offset, {&whole, 1}, unit);
}

}  // namespace tpu_sync_native
