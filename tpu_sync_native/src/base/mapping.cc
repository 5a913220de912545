#include "base/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace tpu_sync_native {

Mapping::Mapping(int fd, uint64_t bytes, bool writable) : bytes_(bytes) {
  void* address = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "cannot map " + std::to_string(bytes) + " bytes");
  }
  data_ = static_cast<std::byte*>(address);
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

void ResizeFile(int fd, uint64_t bytes, const char* what) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    throw std::system_error(errno, std::generic_category(),
                            std::string("cannot size ") + what + " to " + std::to_string(bytes) + " bytes");
  }
}

}  // namespace tpu_sync_native
