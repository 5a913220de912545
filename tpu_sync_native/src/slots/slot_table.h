// Slabs, size classes and the states of slots; knows nothing of keys or policies.
//
// A slab is free or belongs to one size class and is cut into that class's slots. Its slot numbers are a
// fixed range, so slab and payload offset follow from the number. A slab whose slots are all free goes back
// to the free slabs at once. A slab on its way out (leaving) offers no slot any more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/zeroed_array.h"
#include "slots/slot_cell.h"

namespace tpu_sync_native {

using ClassId = uint32_t;
inline constexpr uint32_t kNone = 0xffffffffu;

struct Slab {
  ClassId size_class = kNone;
  uint32_t slots = 0;  // the class's slots in it
  uint32_t fresh = 0;  // slots from this one on were never used since the slab joined the class
  uint32_t free_head = kNoSlot;
  uint32_t used = 0;      // not free
  uint32_t busy = 0;      // of these, not evictable: reserved, promoting, pinned or quarantined
  uint32_t prev = kNone;  // links of the class's list of slabs that have a free slot
  uint32_t next = kNone;
  bool offered = false;  // in that list
  bool leaving = false;
  uint64_t touched = 0;  // the store's tick when a chunk in it was last touched
};

struct SizeClass {
  uint64_t slot_bytes = 0;
  bool shared = true;
  uint32_t slabs = 0;
  uint32_t slots = 0;        // of its slabs
  uint32_t used = 0;         // of these, not free
  uint32_t quarantined = 0;  // of these
  uint32_t offered_head = kNone;
};

// Not thread-safe.
class SlotTable {
 public:
  SlotTable(uint32_t slots_max, uint32_t slab_count, uint64_t slab_bytes);

  // The shared class of this slot size, made if new. slot_bytes is at most the slab's.
  ClassId ClassFor(uint64_t slot_bytes);
  // Another class of this slot size, which ClassFor never gives: for one owner's chunks alone.
  ClassId AddOwnClass(uint64_t slot_bytes);

  // A free slot of the class, now reserved; kNoSlot when none of its slabs has one.
  uint32_t Take(ClassId size_class);
  // The slab that AddSlab would give; kNone when there is none.
  uint32_t NextFreeSlab(uint32_t usable_slabs);
  // Slots that a slab has in this class.
  uint32_t SlotsPerSlab(ClassId size_class) const;
  // Gives the lowest free slab below `usable_slabs` to the class; kNone when there is none.
  uint32_t AddSlab(ClassId size_class, uint32_t usable_slabs);
  void Commit(uint32_t slot);   // reserved or promoting -> committed
  void Promote(uint32_t slot);  // reserved -> promoting
  void Quarantine(uint32_t slot);
  void Free(uint32_t slot);
  // Pins a committed or promoting slot. False when it has kPinsMax pins.
  bool Pin(uint32_t slot);
  void Unpin(uint32_t slot);

  // Gives a free slab to the class with its first slots in these states, one of them at least not free; none
  // is pinned. For a restart.
  void RestoreSlab(uint32_t slab, ClassId size_class, std::span<const SlotState> states);

  // Undoes AddSlab while no slot was taken.
  void ReturnSlab(uint32_t slab);

  // The slab offers no slots from now on, and is freed with its last slot; or the contrary.
  void SetLeaving(uint32_t slab, bool leaving);
  void Touch(uint32_t slot, uint64_t tick) { slabs_[slab_of(slot)].touched = tick; }

  uint32_t slab_of(uint32_t slot) const {
    // slot / slots_per_slab_, exact for 32-bit numbers, without the division that every step would pay.
    if (slots_per_slab_ == 1) return slot;
    return static_cast<uint32_t>((static_cast<unsigned __int128>(per_slab_inverse_) * slot) >> 64);
  }
  uint32_t first_slot(uint32_t slab) const { return slab * slots_per_slab_; }
  uint32_t slots_per_slab() const { return slots_per_slab_; }
  uint64_t slab_bytes() const { return slab_bytes_; }
  uint64_t offset_of(uint32_t slot) const;
  ClassId class_of(uint32_t slot) const { return slabs_[slab_of(slot)].size_class; }

  SlotCell* cells() { return cells_.data(); }
  const SlotCell& cell(uint32_t slot) const { return cells_[slot]; }
  const std::vector<Slab>& slabs() const { return slabs_; }
  const std::vector<SizeClass>& classes() const { return classes_; }
  uint32_t free_slabs() const { return free_slabs_; }
  uint64_t count(SlotState state) const { return counts_[static_cast<uint8_t>(state)]; }
  uint64_t pinned() const { return pinned_; }

 private:
  void Offer(uint32_t slab);
  void Withdraw(uint32_t slab);
  void SetState(SlotCell& cell, SlotState state);

  const uint64_t slab_bytes_;
  const uint32_t slots_per_slab_;
  const uint64_t per_slab_inverse_;
  ZeroedArray<SlotCell> cells_;
  std::vector<Slab> slabs_;
  std::vector<SizeClass> classes_;
  uint32_t free_slabs_;
  uint32_t free_from_ = 0;   // no free slab lies below
  uint64_t counts_[5] = {};  // by SlotState
  uint64_t pinned_ = 0;
};

}  // namespace tpu_sync_native
