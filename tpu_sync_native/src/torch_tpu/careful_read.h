// Reads of addresses that may not be mapped: the kernel is asked to read them, and says no instead of
// faulting.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>

namespace tpu_sync_native::torch_tpu {

class CarefulReader {
 public:
  CarefulReader() {
    if (pipe2(ends_, O_CLOEXEC) != 0) ends_[0] = ends_[1] = -1;
  }
  ~CarefulReader() {
    if (ends_[0] < 0) return;
    close(ends_[0]);
    close(ends_[1]);
  }
  CarefulReader(const CarefulReader&) = delete;
  CarefulReader& operator=(const CarefulReader&) = delete;

  // False where nothing is mapped, and where the process has no descriptors left.
  bool Read(const char* address, uint64_t* value) {
    return write(ends_[1], address, sizeof(*value)) == sizeof(*value) &&
           read(ends_[0], value, sizeof(*value)) == sizeof(*value);
  }

 private:
  int ends_[2];
};

}  // namespace tpu_sync_native::torch_tpu
