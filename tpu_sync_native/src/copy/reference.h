// The plain copies that the engine is measured against: no queue, no guard, no pieces.
#pragma once

#include <cstdint>
#include <span>

namespace tpu_sync_native {

enum class ReferenceMethod : uint8_t { kMemcpy, kNonTemporal };

struct ReferenceTime {
  double wall_s;
  double cpu_s;  // of the copying threads together
};

// Copies (source, target, bytes) rows, row i on thread i % threads. Measured by the threads themselves, from
// the first that starts to the last that ends, once all stand ready: starting threads is not measured.
ReferenceTime CopyReference(std::span<const uint64_t> rows, ReferenceMethod method, int threads);

}  // namespace tpu_sync_native
