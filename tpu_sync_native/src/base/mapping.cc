#include "base/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "base/align.h"
#include "base/huge_pages.h"

namespace tpu_sync_native {

uint64_t FileBytes(int fd, std::string_view what) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    throw std::system_error(errno, std::generic_category(), std::string(what) + ": fstat");
  }
  return static_cast<uint64_t>(status.st_size);
}

namespace {

// A file's huge pages are mapped as such only where address and offset agree in their low bits.
void* MapAligned(int fd, uint64_t bytes, int protection) {
  const uint64_t room_bytes = bytes + kHugePageBytes;
  constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const room = mmap(nullptr, room_bytes, PROT_NONE, kNothing, -1, 0);
  if (room == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(room);
  const uint64_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  void* const address = mmap(begin + before, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (address == MAP_FAILED) {
    const int error = errno;
    munmap(room, room_bytes);
    errno = error;
    return MAP_FAILED;
  }
  constexpr uint64_t kPageBytes = 4096;
  const uint64_t used = before + RoundUp(bytes, kPageBytes);
  if (before > 0) munmap(begin, before);
  if (used < room_bytes) munmap(begin + used, room_bytes - used);
  return address;
}

}  // namespace

Mapping::Mapping(int fd, uint64_t bytes, Access access, std::string_view what) {
  const uint64_t file_bytes = FileBytes(fd, what);
  if (bytes == 0 || file_bytes < bytes) {
    throw std::invalid_argument(std::string(what) + ": the file has " + std::to_string(file_bytes) +
                                " bytes, " + std::to_string(bytes) + " are needed");
  }
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const address = bytes < kHugePageBytes ? mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0)
                                               : MapAligned(fd, bytes, protection);
  if (address == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), std::string(what) + ": mmap");
  }
  data_ = static_cast<std::byte*>(address);
  bytes_ = bytes;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void ResizeFile(int fd, uint64_t bytes, std::string_view what) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot size " + std::string(what) + " to " + std::to_string(bytes) + " bytes");
  }
}

}  // namespace tpu_sync_native
