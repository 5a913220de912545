#include "store/defaults.h"

#include <algorithm>

#include "base/align.h"
#include "index/meta_view.h"

namespace tpu_sync_native {

uint64_t DefaultSlabBytes(uint64_t dram_bytes) {
  constexpr uint64_t kMiB = 1ull << 20;
  return std::clamp<uint64_t>(RoundDown(dram_bytes / 64, 2 * kMiB), 2 * kMiB, 1024 * kMiB);
}

uint32_t DefaultSlotsMax(uint64_t dram_bytes) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(dram_bytes >> 14, 1, kNoSlot - 1));
}

uint32_t DefaultBucketCount(uint32_t slots_max) {
  // Not rounded up to a power of two: that would cost up to 16 bytes a chunk more.
  return std::max<uint32_t>(2, static_cast<uint32_t>(DivideUp(slots_max, kBucketCells / 2)));
}

uint64_t MetaBytes(uint64_t dram_bytes, uint64_t slab_bytes, uint32_t slots_max, uint32_t namespaces_max) {
  return MetaGeometry{dram_bytes, slab_bytes, slots_max, namespaces_max, DefaultBucketCount(slots_max)}
      .meta_bytes();
}

}  // namespace tpu_sync_native
