#include "client/index_guard.h"

#include <climits>

#include "base/futex.h"

namespace tpu_sync_native {

bool IndexGuard::Unchanged(uint32_t slot, uint32_t generation, CopyDirection direction) const {
  if (!map_->SameBoot()) return false;
  const IndexReader& index = map_->index();
  // Of a slot whose chunk is still coming no byte counts, though its generation is the lease's.
  return direction == CopyDirection::kStore ? index.Writable(slot, generation)
                                            : index.ReadinessOf(slot, generation) == Readiness::kReady;
}

uint64_t IndexGuard::ChunkBytes(uint32_t slot, uint32_t generation, uint64_t offset) const {
  return map_->index().ChunkBytes(slot, generation, offset);
}

Readiness IndexGuard::ReadinessOf(uint32_t slot, uint32_t generation) const {
  return map_->index().ReadinessOf(slot, generation);
}

uint32_t IndexGuard::Events() const { return map_->index().promotes_ended(); }

void IndexGuard::AwaitEvent(uint32_t seen, uint64_t deadline_ns) const {
  map_->index().AwaitPromotes(seen, deadline_ns);
}

void IndexGuard::Interrupt() const { FutexWake(map_->header().promotes_ended, INT_MAX); }

bool IndexGuard::Abandoned() const {
  return lost_->load(std::memory_order_acquire) != Lost::kNo || !map_->SameBoot();
}

}  // namespace tpu_sync_native
