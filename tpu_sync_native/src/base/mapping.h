// A shared mapping of a file, unmapped at the end of its life; aligned for huge pages where it is as large as
// one. Movable, not copyable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tpu_sync_native {

class Mapping {
 public:
  enum class Access { kRead, kReadWrite };

  Mapping() = default;
  // Maps the first `bytes` of `fd` (the descriptor may be closed afterwards). Throws std::invalid_argument
  // naming `what` when the file is shorter, std::system_error when the kernel refuses.
  Mapping(int fd, uint64_t bytes, Access access, std::string_view what);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Size of the file behind `fd`. Throws std::system_error naming `what`.
uint64_t FileBytes(int fd, std::string_view what);
// Sets it. Throws std::system_error naming `what`.
void ResizeFile(int fd, uint64_t bytes, std::string_view what);

}  // namespace tpu_sync_native
