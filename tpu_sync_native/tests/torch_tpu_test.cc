// What leads from a tensor to its buffer, as far as it goes without torch_tpu; tests/device has the rest.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "check.h"
#include "torch_tpu/careful_read.h"
#include "torch_tpu/tensor_buffers.h"

namespace tpu_sync_native::testing {
namespace {

using torch_tpu::CarefulReader;
using torch_tpu::TensorBuffers;

TEST(ACarefulReadSeesWhatIsMappedAndOnlyThat) {
  CarefulReader reader;
  const uint64_t there = 0x0123456789abcdef;
  uint64_t value = 0;
  CHECK(reader.Read(reinterpret_cast<const char*>(&there), &value));
  CHECK(value == there);
  CHECK(!reader.Read(nullptr, &value));

  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const mapped = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED);
  CHECK(!reader.Read(static_cast<const char*>(mapped), &value));
  munmap(mapped, page);
  // Nothing of the refused reads is left in between.
  CHECK(reader.Read(reinterpret_cast<const char*>(&there), &value));
  CHECK(value == there);
}

TEST(ACarefulReaderLeavesNoDescriptorToAChild) {
  const auto inherited = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) {
      const int flags = fcntl(fd, F_GETFD);
      count += flags >= 0 && (flags & FD_CLOEXEC) == 0;
    }
    return count;
  };
  const int before = inherited();
  const CarefulReader reader;
  CHECK(inherited() == before);
}

TEST(LibrariesThatAreNotLoadedOrAreOthers) {
  CHECK_THROWS(TensorBuffers::Open("libm.so.6", "/nowhere/libtpu.so", {}, 0),
               "/nowhere/libtpu.so is not loaded");
  CHECK_THROWS(TensorBuffers::Open("libm.so.6", "libc.so.6", {}, 0), "has no GetPjrtApi");
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
