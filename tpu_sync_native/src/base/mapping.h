// A shared mapping of a whole file, unmapped with its owner.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tpu_sync_native {

class Mapping {
 public:
  Mapping() = default;
  // Maps the first `bytes` of `fd`, shared. Throws std::system_error.
  Mapping(int fd, uint64_t bytes, bool writable);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Sets the file's size. Throws std::system_error naming `what`.
void ResizeFile(int fd, uint64_t bytes, const char* what);

}  // namespace tpu_sync_native
