// Ways to move bytes in plain memory.
#pragma once

#include <cstdint>

namespace tpu_sync_native {

// memcpy: the target ends in the cache.
void CopyCached(void* target, const void* source, uint64_t bytes);

// Around the cache, with the widest stores this CPU has: a large copy saves reading the target's lines and
// keeps the caches for the engine's own work. Any alignment, any length. Other threads may see the bytes
// only after NonTemporalFence() in this thread.
void CopyNonTemporal(void* target, const void* source, uint64_t bytes);
void NonTemporalFence();

// "avx512", "avx2", "sse2" or "memcpy": what CopyNonTemporal uses here.
const char* NonTemporalKernelName();

}  // namespace tpu_sync_native
