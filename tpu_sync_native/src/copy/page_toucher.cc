#include "copy/page_toucher.h"

#include <sys/mman.h>

#include <algorithm>

namespace tpu_sync_native {
namespace {

constexpr uintptr_t kPageBytes = 4096;
// Since Linux 5.14. Tables made by a read serve a write as well: shared memory needs no note of it.
constexpr int kMadvPopulateRead = 22;

}  // namespace

PageToucher::PageToucher(uint8_t* arena, uint64_t bytes)
    : arena_(arena),
      bytes_(bytes),
      touched_(std::make_unique<std::atomic<bool>[]>((bytes + kGranuleBytes - 1) / kGranuleBytes)) {}

void PageToucher::TouchGranule(uint64_t granule) {
  const auto arena = reinterpret_cast<uintptr_t>(arena_);
  const uint64_t begin = granule * kGranuleBytes;
  const uint64_t end = std::min(begin + kGranuleBytes, bytes_);
  const uintptr_t first_page = (arena + begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uintptr_t pages_end = (arena + end) / kPageBytes * kPageBytes;
  // A kernel that cannot do it leaves the faults to the copy, which is slower and just as right.
  if (first_page < pages_end) {
    madvise(reinterpret_cast<void*>(first_page), pages_end - first_page, kMadvPopulateRead);
  }
  touched_[granule].store(true, std::memory_order_relaxed);
}

}  // namespace tpu_sync_native
