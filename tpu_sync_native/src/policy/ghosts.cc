#include "policy/ghosts.h"

namespace tpu_sync_native {

// The table's cell takes the fingerprint's high bits, the entry its low ones.
void Ghosts::Add(uint32_t fingerprint) {
  table_[CellOf(fingerprint)] = (Mark(fingerprint) & 0xffff) | uint32_t{now()} << 16;
  ++evictions_;
}

bool Ghosts::TakeRecent(uint32_t fingerprint, uint32_t evictions_max) {
  uint32_t& entry = table_[CellOf(fingerprint)];
  if (entry == 0 || (entry & 0xffff) != (Mark(fingerprint) & 0xffff)) return false;
  const auto age = static_cast<uint16_t>(now() - (entry >> 16));
  if (uint64_t{age} * step_ > evictions_max) return false;
  entry = 0;
  return true;
}

}  // namespace tpu_sync_native
