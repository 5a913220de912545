#include "arena/arena.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "tpu_sync_native/meta_layout.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace tpu_sync_native {
namespace {

// Small enough that stopping is prompt, large enough for huge pages.
constexpr uint64_t kStepBytes = 32ull << 20;

void CheckSize(const char* option, uint64_t bytes) {
  if (bytes == 0 || bytes % kPayloadUnit != 0) {
    throw std::invalid_argument(std::string(option) + " must be a positive multiple of " +
                                std::to_string(kPayloadUnit) + ", not " + std::to_string(bytes));
  }
}

int Duplicate(int fd) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) throw std::system_error(errno, std::generic_category(), "data_fd cannot be duplicated");
  return copy;
}

}  // namespace

Arena::Arena(int data_fd, uint64_t bytes, uint64_t slab_bytes) : bytes_(bytes), slab_bytes_(slab_bytes) {
  CheckSize("dram_bytes", bytes);
  CheckSize("slab_bytes", slab_bytes);
  if (slab_bytes > bytes) {
    throw std::invalid_argument("dram_bytes must hold at least one slab: " + std::to_string(bytes) +
                                " is less than slab_bytes " + std::to_string(slab_bytes));
  }
  ResizeFile(data_fd, bytes, "the arena");
  mapping_ = Mapping(data_fd, bytes, Mapping::Access::kReadWrite, "the arena");
  fd_ = Duplicate(data_fd);
  // Advice only: mounts without huge pages refuse it, and nothing depends on it.
  (void)madvise(mapping_.data(), bytes, MADV_HUGEPAGE);
}

Arena::~Arena() {
  StopPopulation();
  if (fd_ >= 0) close(fd_);
}

void Arena::StartPopulation() {
  std::lock_guard lock(mutex_);
  if (thread_.joinable()) return;
  stopping_ = false;
  thread_ = std::thread([this] { Populate(); });
}

void Arena::StopPopulation() {
  std::thread thread;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

void Arena::Populate() {
  uint64_t offset = populated_bytes();
  while (offset < bytes_ && !stopping_) {
    const uint64_t length = std::min(kStepBytes, bytes_ - offset);
    if (!PopulateStep(offset, length)) return;
    offset += length;
    populated_bytes_.store(offset, std::memory_order_release);
  }
}

bool Arena::PopulateStep(uint64_t offset, uint64_t length) {
  int error = 0;
  do {
    error = fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(length)) == 0 ? 0 : errno;
  } while (error == EINTR && !stopping_);
  // Reserved pages are still to be cleared, which would fall to the first engine that touches them; touching
  // also commits the pages of a file system that cannot reserve.
  const bool reserved = error == 0;
  if (reserved || error == EOPNOTSUPP) {
    error = madvise(mapping_.data() + offset, length, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    if (reserved && error == EINVAL) error = 0;  // before Linux 5.14 the engines clear them
  }
  if (error == 0) return true;
  if (error == EINTR) return false;  // stopped
  std::lock_guard lock(mutex_);
  error_ = "populated " + std::to_string(offset) + " of " + std::to_string(bytes_) +
           " bytes, then: " + std::generic_category().message(error);
  return false;
}

uint64_t Arena::MemoryEnd(uint64_t offset) const {
  const off_t hole = lseek(fd_, static_cast<off_t>(offset), SEEK_HOLE);
  return hole < 0 ? offset : std::min(bytes_, static_cast<uint64_t>(hole));
}

void Arena::CountPopulated() {
  struct statfs mount {};
  const bool sure = fstatfs(fd_, &mount) == 0 && mount.f_type == TMPFS_MAGIC;
  populated_bytes_.store(sure ? MemoryEnd(0) : 0, std::memory_order_release);
}

std::string Arena::population_error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace tpu_sync_native
