// Page tables ahead of the copy.
//
// The daemon has the arena's memory populated, but every process that maps it still takes a page fault per
// page at its first access: more CPU time than the copy itself. One madvise for a whole granule costs a sixth
// of that (benchmarks/README.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tpu_sync_native {

// Thread-safe. Touches each granule of the arena once, when it is first asked for.
class PageToucher {
 public:
  PageToucher(uint8_t* arena, uint64_t bytes);
  // Before the first access to [offset, offset + bytes).
  void Touch(uint64_t offset, uint64_t bytes) {
    for (uint64_t granule = offset / kGranuleBytes; granule * kGranuleBytes < offset + bytes; ++granule) {
      if (!touched_[granule].load(std::memory_order_relaxed)) TouchGranule(granule);
    }
  }

 private:
  static constexpr uint64_t kGranuleBytes = uint64_t{2} << 20;
  void TouchGranule(uint64_t granule);

  uint8_t* const arena_;
  const uint64_t bytes_;
  const std::unique_ptr<std::atomic<bool>[]> touched_;
};

}  // namespace tpu_sync_native
