// What a copy engine asks about slots, answered from the shared index of a session.
#pragma once

#include <atomic>
#include <memory>

#include "client/arena_map.h"
#include "client/session.h"
#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native {

// Keeps the maps alive, not the session: a copy engine may outlive it. What was ready under the lease can be
// copied all the same, but nothing is waited for once the session is lost.
class IndexGuard final : public SlotGuard {
 public:
  IndexGuard(std::shared_ptr<const ArenaMap> map, std::shared_ptr<const std::atomic<Lost>> lost)
      : map_(std::move(map)), lost_(std::move(lost)) {}

  bool Unchanged(uint32_t slot, uint32_t generation, CopyDirection direction) const override;
  uint64_t ChunkBytes(uint32_t slot, uint32_t generation, uint64_t offset) const override;
  Readiness ReadinessOf(uint32_t slot, uint32_t generation) const override;
  uint32_t Events() const override;
  void AwaitEvent(uint32_t seen, uint64_t deadline_ns) const override;
  void Interrupt() const override;
  bool Abandoned() const override;

 private:
  const std::shared_ptr<const ArenaMap> map_;
  const std::shared_ptr<const std::atomic<Lost>> lost_;
};

}  // namespace tpu_sync_native
