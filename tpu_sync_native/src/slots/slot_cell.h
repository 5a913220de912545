// What the daemon alone knows of a slot: 12 bytes, since there is one for every slot of the index.
#pragma once

#include <cstdint>

#include "tpu_sync_native/meta_layout.h"

namespace tpu_sync_native {

struct SlotCell {
  // Links of the one list the slot is in: its slab's free list (next only) or a policy's queue.
  uint32_t prev;
  uint32_t next;
  uint16_t pins;  // read leases on it, and demotes of it
  SlotState state;
  uint8_t policy;  // the policy's own bits

  bool evictable() const { return state == SlotState::kCommitted && pins == 0; }
};
static_assert(sizeof(SlotCell) == 12);

inline constexpr uint16_t kPinsMax = UINT16_MAX;

// A doubly linked queue of slots; front is the most recent. Borrows the cells.
class SlotQueue {
 public:
  explicit SlotQueue(SlotCell* cells) : cells_(cells) {}

  uint32_t front() const { return front_; }
  uint32_t back() const { return back_; }
  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void PushFront(uint32_t slot) {
    SlotCell& cell = cells_[slot];
    cell.prev = kNoSlot;
    cell.next = front_;
    (front_ == kNoSlot ? back_ : cells_[front_].prev) = slot;
    front_ = slot;
    ++size_;
  }
  void Remove(uint32_t slot) {
    const SlotCell& cell = cells_[slot];
    (cell.prev == kNoSlot ? front_ : cells_[cell.prev].next) = cell.next;
    (cell.next == kNoSlot ? back_ : cells_[cell.next].prev) = cell.prev;
    --size_;
  }
  void MoveToFront(uint32_t slot) {
    if (front_ == slot) return;
    Remove(slot);
    PushFront(slot);
  }

 private:
  SlotCell* cells_;
  uint32_t front_ = kNoSlot;
  uint32_t back_ = kNoSlot;
  uint32_t size_ = 0;
};

}  // namespace tpu_sync_native
