// Sizes the store takes when none are given. Control path: these throw nothing; the store checks what it
// gets.
#pragma once

#include <cstdint>

namespace tpu_sync_native {

// dram / 64 in steps of 2 MiB, between 2 MiB and 1 GiB.
uint64_t DefaultSlabBytes(uint64_t dram_bytes);
// One for every 16 KiB of the arena.
uint32_t DefaultSlotsMax(uint64_t dram_bytes);
// Two cells for every slot: with eight cells a bucket, both buckets of a key are all but never full.
uint32_t DefaultBucketCount(uint32_t slots_max);

// Size of the metadata file of a store with these sizes.
uint64_t MetaBytes(uint64_t dram_bytes, uint64_t slab_bytes, uint32_t slots_max, uint32_t namespaces_max);

}  // namespace tpu_sync_native
