// The values every layer hands on: keys of a batch, and a slot as a lease hands it out.
#pragma once

#include <cstdint>
#include <string_view>

namespace tpu_sync_native {

// Keys of one batch: `count` keys, each `offsets[i+1] - offsets[i]` bytes of `bytes`. Borrowed for the call.
// The owner of the memory has checked that offsets[count] lies inside it; lengths are checked by the callee.
struct KeyBatch {
  const uint8_t* bytes = nullptr;
  const uint32_t* offsets = nullptr;  // count + 1 entries
  uint32_t count = 0;
  uint32_t length(uint32_t i) const { return offsets[i + 1] - offsets[i]; }
  std::string_view at(uint32_t i) const {
    return {reinterpret_cast<const char*>(bytes) + offsets[i], length(i)};
  }
};

// Everything a copy needs of one slot.
struct SlotRef {
  uint32_t slot;
  uint32_t generation;
  uint64_t offset;  // bytes into the payload file
};
static_assert(sizeof(SlotRef) == 16);

}  // namespace tpu_sync_native
