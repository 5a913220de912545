#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "check.h"
#include "copy/page_toucher.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kPage = 4096;

// Shared memory whose pages are there, mapped anew: as an engine meets the arena.
class FreshMap {
 public:
  explicit FreshMap(uint64_t bytes) : bytes_(bytes), fd_(memfd_create("touch", MFD_CLOEXEC)) {
    CHECK(ftruncate(fd_, static_cast<off_t>(bytes)) == 0);
    uint8_t* const populated = Map();
    std::memset(populated, 7, bytes);
    CHECK(munmap(populated, bytes) == 0);
    data_ = Map();
  }
  ~FreshMap() {
    munmap(data_, bytes_);
    close(fd_);
  }
  uint8_t* data() const { return data_; }

 private:
  uint8_t* Map() const {
    void* const address = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    CHECK(address != MAP_FAILED);
    return static_cast<uint8_t*>(address);
  }

  uint64_t bytes_;
  int fd_;
  uint8_t* data_ = nullptr;
};

// Pages of the range that this process's page tables hold: bit 63 of an entry of pagemap.
uint64_t PagesMapped(const uint8_t* data, uint64_t bytes) {
  const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0);
  uint64_t mapped = 0;
  for (uint64_t page = reinterpret_cast<uintptr_t>(data) / kPage; bytes > 0; ++page, bytes -= kPage) {
    uint64_t entry = 0;
    CHECK(pread(fd, &entry, sizeof entry, static_cast<off_t>(page * sizeof entry)) == sizeof entry);
    mapped += entry >> 63;
  }
  close(fd);
  return mapped;
}

TEST(WhatWasAskedForIsMapped) {
  const FreshMap map(8 * kMib);
  PageToucher pages(map.data(), 8 * kMib);
  CHECK(PagesMapped(map.data(), 8 * kMib) == 0);
  pages.Touch(kMib, 2 * kMib);  // granules 0 and 1
  CHECK(PagesMapped(map.data(), 4 * kMib) == 4 * kMib / kPage);
  CHECK(PagesMapped(map.data() + 4 * kMib, 4 * kMib) < 64);  // nobody asked for these
}

TEST(TheLastGranuleMayBeShort) {
  const uint64_t bytes = 3 * kMib + 3 * kPage;
  const FreshMap map(bytes);
  PageToucher pages(map.data(), bytes);
  pages.Touch(3 * kMib, 3 * kPage);
  CHECK(PagesMapped(map.data() + 2 * kMib, kMib + 3 * kPage) == kMib / kPage + 3);
}

TEST(AnArenaNeedNotStartAtAPage) {
  const FreshMap map(4 * kMib);
  PageToucher pages(map.data() + 100, 2 * kMib);
  pages.Touch(0, 2 * kMib);
  PageToucher tiny(map.data() + 100, 200);
  tiny.Touch(0, 200);
  PageToucher none(nullptr, 0);
  none.Touch(0, 0);
  CHECK(map.data()[100] == 7);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
