#pragma once

#include <cstdint>

namespace tpu_sync_native {

constexpr uint64_t DivideUp(uint64_t value, uint64_t by) { return value / by + (value % by != 0); }
constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) { return DivideUp(value, unit) * unit; }
constexpr uint64_t RoundDown(uint64_t value, uint64_t unit) { return value / unit * unit; }

}  // namespace tpu_sync_native
