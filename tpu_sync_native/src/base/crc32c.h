// CRC32C (Castagnoli), with the CPU's own instruction where it has one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tpu_sync_native {

// Continues from `crc` (0 to start). The same value on every machine.
uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes);

// What Crc32c falls back to; for tests and for the figure beside it.
uint32_t Crc32cTable(uint32_t crc, const void* data, size_t bytes);
// "sse4.2", "armv8" or "table": what Crc32c runs on here.
const char* Crc32cKernel();

}  // namespace tpu_sync_native
