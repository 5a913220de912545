#include "fs/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string_view>
#include <utility>

#include "fs/io_plan.h"
#include "fs/uring.h"

namespace tpu_sync_native {
namespace {

// One system call moves at most some 2 GiB; nothing here is that large.
constexpr uint64_t kPlainPieceBytes = 256 << 20;

void LeaveDirect(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) fcntl(fd, F_SETFL, flags & ~O_DIRECT);
}

// Moves `parts` from or to `offset`.
IoError Move(int fd, bool write, uint64_t offset, std::span<const IoVec> parts, bool direct, bool ring) {
  uint64_t bytes = 0;
  for (const IoVec& part : parts) {
    if (part.bytes > static_cast<uint64_t>(INT64_MAX) - bytes) return {EINVAL};
    bytes += part.bytes;
  }
  if (offset > static_cast<uint64_t>(INT64_MAX) - bytes) return {write ? EFBIG : IoError::kShort};
  const uint64_t unit = direct ? kDirectUnit : 1;
  Uring* const own_ring = ring && bytes > Uring::kPieceBytes ? Uring::OfThisThread() : nullptr;
  IoPlan plan = PlanIo(offset, parts, unit, own_ring != nullptr ? Uring::kPieceBytes : kPlainPieceBytes);
  if (own_ring != nullptr) return own_ring->Run(fd, write, plan, unit);
  for (const IoPiece& piece : plan.pieces) {
    const IoError error = write ? WritePiece(fd, plan, piece, unit) : ReadPiece(fd, plan, piece, unit);
    if (!error.ok()) return error;
  }
  return {};
}

class PosixReader final : public ReadFile {
 public:
  PosixReader(UniqueFd fd, const PosixIo& io) : fd_(std::move(fd)), ring_(io.ring_reads), direct_(io.direct) {
    // Neighbours are read by whoever wants them, in one call: guessing ahead is waste.
    if (!io.direct) posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM);
  }

  IoError Read(uint64_t offset, std::span<const IoVec> parts) override {
    const bool direct = direct_.load(std::memory_order_relaxed);
    IoError error = Move(fd_.get(), false, offset, parts, direct, ring_);
    if (error.code != EINVAL || !direct) return error;
    // This file system wants more of O_DIRECT than the probe asked for.
    LeaveDirect(fd_.get());
    direct_.store(false, std::memory_order_relaxed);
    return Move(fd_.get(), false, offset, parts, false, ring_);
  }

  IoError Size(uint64_t* bytes) override {
    struct stat about {};
    if (fstat(fd_.get(), &about) != 0) return {errno};
    *bytes = static_cast<uint64_t>(about.st_size);
    return {};
  }

 private:
  const UniqueFd fd_;
  const bool ring_;
  std::atomic<bool> direct_;
};

class PosixAppender final : public AppendFile {
 public:
  PosixAppender(UniqueFd fd, UniqueFd directory, uint64_t bytes_expected, const PosixIo& io)
      : fd_(std::move(fd)), directory_(std::move(directory)), ring_(io.ring_writes), direct_(io.direct) {
    // Beside the file's size, so that readers see no zeros. Not supported, or no room for all: then without.
    reserved_ = bytes_expected != 0 && bytes_expected <= static_cast<uint64_t>(INT64_MAX) &&
                fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes_expected)) == 0;
  }

  ~PosixAppender() override {
    struct stat about {};
    if (fd_ && reserved_ && fstat(fd_.get(), &about) == 0) GiveBack(static_cast<uint64_t>(about.st_size));
  }

  IoError Append(std::span<const IoVec> parts) override {
    if (!fd_) return {EBADF};
    uint64_t bytes = 0;
    for (const IoVec& part : parts) bytes += part.bytes;
    IoError error;
    if (direct_ && bytes % kDirectUnit != 0) {
      // The end will lie within a unit, where O_DIRECT cannot go on: from here on without.
      StopDirect();
    }
    error = Move(fd_.get(), true, end_, parts, direct_, ring_);
    if (error.code == EINVAL && direct_) {
      StopDirect();
      error = Move(fd_.get(), true, end_, parts, false, ring_);
    }
    if (!error.ok()) return error;
    // Let the medium begin, so that Sync does not find all the work undone.
    if (!direct_) {
      sync_file_range(fd_.get(), static_cast<off_t>(end_), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
    }
    end_ += bytes;
    return {};
  }

  IoError Sync() override {
    if (!fd_) return {EBADF};
    while (fdatasync(fd_.get()) != 0) {
      if (errno != EINTR) return {errno};
    }
    // The arena holds these bytes; the page cache need not.
    if (!direct_) posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
    if (!directory_) return {};
    const IoError error = SyncDirectory(directory_.get());
    if (error.ok()) directory_ = UniqueFd();
    return error;
  }

  IoError Close() override {
    if (!fd_) return {EBADF};
    if (reserved_) GiveBack(end_);
    reserved_ = false;
    const int fd = fd_.Release();
    // EINTR: the descriptor is gone all the same.
    return close(fd) == 0 || errno == EINTR ? IoError{} : IoError{errno};
  }

 private:
  void StopDirect() {
    LeaveDirect(fd_.get());
    direct_ = false;
  }
  // Where it fails, the blocks stay with the file until it is deleted.
  void GiveBack(uint64_t end) {
    if (ftruncate(fd_.get(), static_cast<off_t>(end)) != 0) reserved_ = false;
  }

  UniqueFd fd_;
  UniqueFd directory_;
  const bool ring_;
  bool direct_;
  bool reserved_;
  uint64_t end_ = 0;
};

}  // namespace

std::unique_ptr<ReadFile> MakePosixReader(UniqueFd fd, const PosixIo& io) {
  return std::make_unique<PosixReader>(std::move(fd), io);
}

std::unique_ptr<AppendFile> MakePosixAppender(UniqueFd fd, UniqueFd directory, uint64_t bytes_expected,
                                              const PosixIo& io) {
  return std::make_unique<PosixAppender>(std::move(fd), std::move(directory), bytes_expected, io);
}

IoError ReadWhole(int fd, uint64_t bytes_max, std::string* data) {
  struct stat about {};
  if (fstat(fd, &about) != 0) return {errno};
  if (static_cast<uint64_t>(about.st_size) > bytes_max) return {EFBIG};
  data->resize(static_cast<size_t>(about.st_size));
  size_t got = 0;
  for (;;) {
    // One byte more than there should be, to see the end.
    if (got == data->size()) {
      if (got >= bytes_max + 1) return {EFBIG};
      data->resize(got + 1);
    }
    const ssize_t moved = pread(fd, data->data() + got, data->size() - got, static_cast<off_t>(got));
    if (moved < 0) {
      if (errno == EINTR) continue;
      return {errno};
    }
    if (moved == 0) break;
    got += static_cast<size_t>(moved);
  }
  if (got > bytes_max) return {EFBIG};
  data->resize(got);
  return {};
}

IoError WriteWhole(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t moved = write(fd, data.data(), data.size());
    if (moved < 0) {
      if (errno == EINTR) continue;
      return {errno};
    }
    data.remove_prefix(static_cast<size_t>(moved));
  }
  return {};
}

}  // namespace tpu_sync_native
