#include "copy/layout.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace tpu_sync_native {
namespace {

[[noreturn]] void Refuse(const std::string& what) { throw std::invalid_argument("layout: " + what); }

uint64_t AddChecked(uint64_t a, uint64_t b, const char* what) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) Refuse(std::string(what) + " is too large");
  return sum;
}

uint64_t MultiplyChecked(uint64_t a, uint64_t b, const char* what) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) Refuse(std::string(what) + " is too large");
  return product;
}

void CheckRegion(size_t index, const CopyRegion& region, uint64_t num_blocks,
                 const CopyCapabilities& capabilities) {
  const std::string name = "region " + std::to_string(index);
  if (region.page_bytes == 0) Refuse(name + " has pages of 0 bytes");
  if (region.stride_bytes < region.page_bytes) {
    Refuse(name + ": stride_bytes " + std::to_string(region.stride_bytes) + " is below page_bytes " +
           std::to_string(region.page_bytes));
  }
  if (region.address == 0 && capabilities.plain_memory) Refuse(name + " has no address");
  const uint64_t alignment = capabilities.alignment_bytes;
  if (region.address % alignment != 0 || region.stride_bytes % alignment != 0 ||
      region.page_bytes % alignment != 0) {
    Refuse(name + " is not aligned to " + std::to_string(alignment) + " bytes, which backend " +
           capabilities.name + " needs");
  }
  const uint64_t end = AddChecked(
      region.address, MultiplyChecked(num_blocks, region.stride_bytes, "num_blocks * stride_bytes"),
      "address + num_blocks * stride_bytes");
  if (capabilities.buffers && BufferOrdinal(end - 1) != BufferOrdinal(region.address)) {
    Refuse(name + " is larger than a buffer can be");
  }
}

}  // namespace

void ExtentList::Add(uint64_t device, uint8_t* arena, uint64_t bytes) {
  if (!extents_.empty()) {
    CopyExtent& last = extents_.back();
    if (last.device + last.bytes == device && last.arena + last.bytes == arena) {
      last.bytes += bytes;
      return;
    }
  }
  extents_.push_back({device, arena, bytes});
}

CopyLayout::CopyLayout(CopyLayoutSpec spec, const CopyCapabilities& capabilities, uint64_t arena_bytes)
    : spec_(std::move(spec)) {
  if (spec_.regions.empty()) Refuse("regions is empty");
  if (spec_.num_blocks == 0) Refuse("num_blocks is 0");
  if (spec_.blocks_per_chunk == 0) Refuse("blocks_per_chunk is 0");
  for (size_t i = 0; i < spec_.regions.size(); ++i) {
    CheckRegion(i, spec_.regions[i], spec_.num_blocks, capabilities);
    block_bytes_ = AddChecked(block_bytes_, spec_.regions[i].page_bytes, "a block");
  }
  const uint64_t part = MultiplyChecked(block_bytes_, spec_.blocks_per_chunk, "a chunk");
  if (AddChecked(spec_.chunk_offset, part, "chunk_offset") > arena_bytes) {
    Refuse("a chunk of " + std::to_string(part) + " bytes at chunk_offset " +
           std::to_string(spec_.chunk_offset) + " does not fit an arena of " + std::to_string(arena_bytes) +
           " bytes");
  }
}

std::string CopyLayout::MisfitOf(const CopyHold& buffers) const {
  for (size_t i = 0; i < spec_.regions.size(); ++i) {
    const CopyRegion& region = spec_.regions[i];
    const uint64_t extent = (spec_.num_blocks - 1) * region.stride_bytes + region.page_bytes;
    if (InBuffer({region.address, nullptr, extent}, buffers)) continue;
    const uint64_t ordinal = BufferOrdinal(region.address);
    return "region " + std::to_string(i) + " takes " + std::to_string(extent) + " bytes from offset " +
           std::to_string(BufferOffset(region.address)) + " of buffer " + std::to_string(ordinal) +
           ", which has " + std::to_string(buffers.BufferBytes(ordinal)) + " bytes";
  }
  return {};
}

}  // namespace tpu_sync_native
