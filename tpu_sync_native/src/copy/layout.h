// Where a block's bytes lie on the device and in a slot, and the runs that a batch of blocks makes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "copy/backend.h"
#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native {

// Consecutive blocks at consecutive places of one chunk. Its bytes are counted region after region, which is
// their order in the slot.
struct BlockRun {
  uint32_t layout = 0;  // index into the job's layouts
  uint32_t chunk = 0;   // ordinal in the job
  uint32_t first_in_chunk = 0;
  uint32_t count = 0;
  uint64_t first_block = 0;
  uint64_t begin = 0;  // of the job's bytes, where this run starts
};

// The parts of a device address where capabilities.buffers is set.
inline uint64_t BufferOrdinal(uint64_t device) { return device >> kDeviceBufferShift; }
inline uint64_t BufferOffset(uint64_t device) { return device & ((uint64_t{1} << kDeviceBufferShift) - 1); }
// Whether the extent lies in its buffer.
inline bool InBuffer(const CopyExtent& extent, const CopyHold& buffers) {
  const uint64_t bytes = buffers.BufferBytes(BufferOrdinal(extent.device));
  return extent.bytes <= bytes && BufferOffset(extent.device) <= bytes - extent.bytes;
}

// Extents in order; neighbours on both sides become one.
class ExtentList {
 public:
  explicit ExtentList(size_t capacity) { extents_.reserve(capacity); }
  void Add(uint64_t device, uint8_t* arena, uint64_t bytes);
  bool full() const { return extents_.size() == extents_.capacity(); }
  bool empty() const { return extents_.empty(); }
  void clear() { extents_.clear(); }
  std::span<const CopyExtent> view() const { return extents_; }

 private:
  std::vector<CopyExtent> extents_;
};

// Validated geometry; immutable, so that threads share it without locks.
class CopyLayout {
 public:
  // Throws std::invalid_argument naming what does not fit the backend or an arena of arena_bytes.
  CopyLayout(CopyLayoutSpec spec, const CopyCapabilities& capabilities, uint64_t arena_bytes);

  // With capabilities.buffers: what is wrong with these buffers for this layout; empty when every block lies
  // in them.
  std::string MisfitOf(const CopyHold& buffers) const;

  uint64_t num_blocks() const { return spec_.num_blocks; }
  uint32_t blocks_per_chunk() const { return spec_.blocks_per_chunk; }
  uint64_t block_bytes() const { return block_bytes_; }
  uint64_t chunk_bytes() const { return block_bytes_ * spec_.blocks_per_chunk; }
  uint64_t chunk_offset() const { return spec_.chunk_offset; }

  // Calls sink(device address, arena offset, bytes) for the bytes [begin, end) of a run (counted from the
  // run's own start), in order. chunk_arena_offset is where the run's slot starts in the arena.
  template <typename Sink>
  void ForEachExtent(const BlockRun& run, uint64_t chunk_arena_offset, uint64_t begin, uint64_t end,
                     Sink&& sink) const {
    uint64_t region_begin = 0;   // in the run's bytes
    uint64_t region_offset = 0;  // in the slot
    for (const CopyRegion& region : spec_.regions) {
      const uint64_t region_end = region_begin + run.count * region.page_bytes;
      if (begin < region_end && end > region_begin) {
        const uint64_t from = (begin > region_begin ? begin : region_begin) - region_begin;
        const uint64_t to = (end < region_end ? end : region_end) - region_begin;
        const uint64_t arena =
            chunk_arena_offset + spec_.chunk_offset + region_offset + run.first_in_chunk * region.page_bytes;
        const uint64_t device = region.address + run.first_block * region.stride_bytes;
        if (region.stride_bytes == region.page_bytes) {
          sink(device + from, arena + from, to - from);
        } else {
          ForEachPage(region, device, arena, from, to, sink);
        }
      }
      if (end <= region_end) return;
      region_begin = region_end;
      region_offset += region.page_bytes * spec_.blocks_per_chunk;
    }
  }

 private:
  template <typename Sink>
  static void ForEachPage(const CopyRegion& region, uint64_t device, uint64_t arena, uint64_t from,
                          uint64_t to, Sink&& sink) {
    while (from < to) {
      const uint64_t block = from / region.page_bytes;
      const uint64_t in_page = from % region.page_bytes;
      const uint64_t bytes = std::min(region.page_bytes - in_page, to - from);
      sink(device + block * region.stride_bytes + in_page, arena + from, bytes);
      from += bytes;
    }
  }

  CopyLayoutSpec spec_;
  uint64_t block_bytes_ = 0;
};

}  // namespace tpu_sync_native
