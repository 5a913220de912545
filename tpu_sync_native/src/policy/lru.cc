#include "policy/lru.h"

#include <algorithm>

namespace tpu_sync_native {

uint32_t LruPolicy::TakeVictims(uint32_t wanted, uint32_t* looks, uint32_t* victims) {
  uint32_t taken = 0;
  // No slot is looked at twice, however many are in use.
  uint32_t left = std::min(*looks, queue_.size());
  for (; left > 0 && taken < wanted; --left, --*looks) {
    const uint32_t slot = queue_.back();
    if (!cells_[slot].evictable()) {  // in use: as good as touched now, and out of the next scan's way
      queue_.MoveToFront(slot);
      continue;
    }
    __builtin_prefetch(&cells_[cells_[slot].prev == kNoSlot ? slot : cells_[slot].prev]);
    queue_.Remove(slot);
    victims[taken++] = slot;
  }
  return taken;
}

}  // namespace tpu_sync_native
