#include "slots/slot_table.h"

#include <algorithm>
#include <cassert>

namespace tpu_sync_native {

SlotTable::SlotTable(uint32_t slots_max, uint32_t slab_count, uint64_t slab_bytes)
    : slab_bytes_(slab_bytes),
      slots_per_slab_(slots_max / slab_count),
      per_slab_inverse_(UINT64_MAX / slots_per_slab_ + 1),
      cells_(slots_max),
      slabs_(slab_count),
      free_slabs_(slab_count) {
  assert(slots_per_slab_ > 0);
}

ClassId SlotTable::ClassFor(uint64_t slot_bytes) {
  for (ClassId i = 0; i < classes_.size(); ++i) {
    if (classes_[i].shared && classes_[i].slot_bytes == slot_bytes) return i;
  }
  classes_.push_back({.slot_bytes = slot_bytes});
  return static_cast<ClassId>(classes_.size() - 1);
}

ClassId SlotTable::AddOwnClass(uint64_t slot_bytes) {
  classes_.push_back({.slot_bytes = slot_bytes, .shared = false});
  return static_cast<ClassId>(classes_.size() - 1);
}

uint64_t SlotTable::offset_of(uint32_t slot) const {
  const uint32_t slab = slab_of(slot);
  const uint64_t slot_bytes = classes_[slabs_[slab].size_class].slot_bytes;
  return slab * slab_bytes_ + (slot - first_slot(slab)) * slot_bytes;
}

uint32_t SlotTable::Take(ClassId size_class) {
  SizeClass& owner = classes_[size_class];
  const uint32_t index = owner.offered_head;
  if (index == kNone) return kNoSlot;
  Slab& slab = slabs_[index];
  uint32_t slot = slab.free_head;
  if (slot != kNoSlot) {
    slab.free_head = cells_[slot].next;
  } else {
    slot = first_slot(index) + slab.fresh++;
  }
  ++slab.used;
  ++slab.busy;
  ++owner.used;
  if (slab.used == slab.slots) Withdraw(index);
  SlotCell& cell = cells_[slot];
  cell = {.prev = kNoSlot, .next = kNoSlot, .pins = 0, .state = SlotState::kFree, .policy = 0};
  SetState(cell, SlotState::kReserved);
  return slot;
}

uint32_t SlotTable::NextFreeSlab(uint32_t usable_slabs) {
  if (free_slabs_ == 0) return kNone;
  const uint32_t end = std::min(usable_slabs, static_cast<uint32_t>(slabs_.size()));
  while (free_from_ < end && slabs_[free_from_].size_class != kNone) ++free_from_;
  return free_from_ < end ? free_from_ : kNone;
}

uint32_t SlotTable::SlotsPerSlab(ClassId size_class) const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(slots_per_slab_, slab_bytes_ / classes_[size_class].slot_bytes));
}

uint32_t SlotTable::AddSlab(ClassId size_class, uint32_t usable_slabs) {
  const uint32_t index = NextFreeSlab(usable_slabs);
  if (index == kNone) return kNone;
  ++free_from_;
  SizeClass& owner = classes_[size_class];
  Slab& slab = slabs_[index];
  slab = {};
  slab.size_class = size_class;
  slab.slots = SlotsPerSlab(size_class);
  --free_slabs_;
  ++owner.slabs;
  owner.slots += slab.slots;
  Offer(index);
  return index;
}

void SlotTable::RestoreSlab(uint32_t index, ClassId size_class, std::span<const SlotState> states) {
  Slab& slab = slabs_[index];
  assert(slab.size_class == kNone);
  SizeClass& owner = classes_[size_class];
  slab = {};
  slab.size_class = size_class;
  slab.slots = SlotsPerSlab(size_class);
  --free_slabs_;
  ++owner.slabs;
  owner.slots += slab.slots;
  const auto end = std::min(slab.slots, static_cast<uint32_t>(states.size()));
  for (uint32_t i = end; i-- > 0;) {  // so that the lowest free one is taken first
    const uint32_t slot = first_slot(index) + i;
    if (states[i] == SlotState::kFree) {
      if (slab.fresh == 0) continue;  // none above it is in use
      cells_[slot].next = slab.free_head;
      slab.free_head = slot;
      continue;
    }
    if (slab.fresh == 0) slab.fresh = i + 1;
    cells_[slot] = {.prev = kNoSlot, .next = kNoSlot, .pins = 0, .state = SlotState::kFree, .policy = 0};
    SetState(cells_[slot], states[i]);
    ++slab.used;
    ++owner.used;
    owner.quarantined += states[i] == SlotState::kQuarantined;
    if (states[i] != SlotState::kCommitted) ++slab.busy;
  }
  assert(slab.used > 0);
  if (slab.used < slab.slots) Offer(index);
}

void SlotTable::Commit(uint32_t slot) {
  SetState(cells_[slot], SlotState::kCommitted);
  if (cells_[slot].pins == 0) --slabs_[slab_of(slot)].busy;
}

void SlotTable::Promote(uint32_t slot) { SetState(cells_[slot], SlotState::kPromoting); }

void SlotTable::Quarantine(uint32_t slot) {
  SetState(cells_[slot], SlotState::kQuarantined);
  ++classes_[class_of(slot)].quarantined;
}

void SlotTable::Free(uint32_t slot) {
  SlotCell& cell = cells_[slot];
  assert(cell.pins == 0 && cell.state != SlotState::kFree);
  const uint32_t index = slab_of(slot);
  Slab& slab = slabs_[index];
  if (cell.state != SlotState::kCommitted) --slab.busy;
  if (cell.state == SlotState::kQuarantined) --classes_[slab.size_class].quarantined;
  SetState(cell, SlotState::kFree);
  cell.next = slab.free_head;
  slab.free_head = slot;
  --slab.used;
  --classes_[slab.size_class].used;
  if (slab.used == 0) {
    ReturnSlab(index);
  } else if (!slab.offered && !slab.leaving) {
    Offer(index);
  }
}

bool SlotTable::Pin(uint32_t slot) {
  SlotCell& cell = cells_[slot];
  assert(cell.state == SlotState::kCommitted || cell.state == SlotState::kPromoting);
  if (cell.pins == kPinsMax) return false;
  if (cell.pins++ == 0) {
    if (cell.state == SlotState::kCommitted) ++slabs_[slab_of(slot)].busy;
    ++pinned_;
  }
  return true;
}

void SlotTable::Unpin(uint32_t slot) {
  SlotCell& cell = cells_[slot];
  assert(cell.pins > 0);
  if (--cell.pins == 0) {
    if (cell.state == SlotState::kCommitted) --slabs_[slab_of(slot)].busy;
    --pinned_;
  }
}

void SlotTable::SetLeaving(uint32_t index, bool leaving) {
  Slab& slab = slabs_[index];
  if (slab.leaving == leaving) return;
  slab.leaving = leaving;
  if (leaving) {
    if (slab.offered) Withdraw(index);
  } else if (slab.used < slab.slots) {
    Offer(index);
  }
}

void SlotTable::Offer(uint32_t index) {
  Slab& slab = slabs_[index];
  SizeClass& owner = classes_[slab.size_class];
  slab.offered = true;
  slab.prev = kNone;
  slab.next = owner.offered_head;
  if (slab.next != kNone) slabs_[slab.next].prev = index;
  owner.offered_head = index;
}

void SlotTable::Withdraw(uint32_t index) {
  Slab& slab = slabs_[index];
  SizeClass& owner = classes_[slab.size_class];
  slab.offered = false;
  (slab.prev == kNone ? owner.offered_head : slabs_[slab.prev].next) = slab.next;
  if (slab.next != kNone) slabs_[slab.next].prev = slab.prev;
}

void SlotTable::ReturnSlab(uint32_t index) {
  Slab& slab = slabs_[index];
  if (slab.offered) Withdraw(index);
  --classes_[slab.size_class].slabs;
  classes_[slab.size_class].slots -= slab.slots;
  slab = {};
  ++free_slabs_;
  free_from_ = std::min(free_from_, index);
}

void SlotTable::SetState(SlotCell& cell, SlotState state) {
  --counts_[static_cast<uint8_t>(cell.state)];
  cell.state = state;
  ++counts_[static_cast<uint8_t>(state)];
}

}  // namespace tpu_sync_native
