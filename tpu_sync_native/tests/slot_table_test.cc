#include "slots/slot_table.h"

#include <set>

#include "check.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kSlabBytes = 64 * 4096;

// 4 slabs of at most 32 slots each.
SlotTable SmallTable() { return SlotTable(128, 4, kSlabBytes); }

}  // namespace

TEST(SlotsOfASlabFollowOneAnother) {
  SlotTable table = SmallTable();
  const ClassId size_class = table.ClassFor(4 * 4096);
  CHECK(table.ClassFor(4 * 4096) == size_class && table.ClassFor(8192) != size_class);
  CHECK(table.Take(size_class) == kNoSlot);
  CHECK(table.AddSlab(size_class, 4) == 0);
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t slot = table.Take(size_class);
    CHECK(slot == i && table.offset_of(slot) == i * 4 * 4096);
  }
  CHECK(table.Take(size_class) == kNoSlot);
  CHECK(table.AddSlab(size_class, 4) == 1);
  CHECK(table.Take(size_class) == 32 && table.offset_of(32) == kSlabBytes);
}

TEST(AClassHasAtMostASlabsShareOfTheIndex) {
  SlotTable table = SmallTable();
  const ClassId size_class = table.ClassFor(4096);  // 64 would fit into a slab, 32 have a record
  table.AddSlab(size_class, 4);
  CHECK(table.slabs()[0].slots == 32);
}

TEST(OnlyPopulatedSlabsAreGiven) {
  SlotTable table = SmallTable();
  const ClassId size_class = table.ClassFor(4096);
  CHECK(table.AddSlab(size_class, 0) == kNone);
  CHECK(table.AddSlab(size_class, 1) == 0 && table.AddSlab(size_class, 1) == kNone);
  CHECK(table.AddSlab(size_class, 9) == 1);
}

TEST(AnEmptySlabIsFreeForAnyClass) {
  SlotTable table = SmallTable();
  const ClassId small = table.ClassFor(4096);
  const ClassId large = table.ClassFor(kSlabBytes);
  table.AddSlab(small, 1);
  std::set<uint32_t> taken;
  for (uint32_t i = 0; i < 32; ++i) taken.insert(table.Take(small));
  CHECK(taken.size() == 32 && table.AddSlab(large, 1) == kNone);
  for (const uint32_t slot : taken) table.Free(slot);
  CHECK(table.free_slabs() == 4 && table.Take(small) == kNoSlot);
  CHECK(table.AddSlab(large, 1) == 0 && table.Take(large) == 0 && table.Take(large) == kNoSlot);
}

TEST(FreedSlotsAreTakenAgain) {
  SlotTable table = SmallTable();
  const ClassId size_class = table.ClassFor(4096);
  table.AddSlab(size_class, 1);
  for (uint32_t i = 0; i < 32; ++i) table.Take(size_class);
  table.Free(7);
  table.Free(9);
  CHECK(table.Take(size_class) == 9 && table.Take(size_class) == 7 && table.Take(size_class) == kNoSlot);
}

TEST(BusyCountsWhatCannotBeEvicted) {
  SlotTable table = SmallTable();
  const ClassId size_class = table.ClassFor(4096);
  table.AddSlab(size_class, 1);
  const uint32_t a = table.Take(size_class);
  const uint32_t b = table.Take(size_class);
  CHECK(table.slabs()[0].busy == 2);
  table.Commit(a);
  CHECK(table.slabs()[0].busy == 1 && table.cell(a).evictable() && !table.cell(b).evictable());
  CHECK(table.Pin(a) && table.Pin(a));
  CHECK(table.slabs()[0].busy == 2 && table.pinned() == 1 && !table.cell(a).evictable());
  table.Unpin(a);
  CHECK(table.pinned() == 1);
  table.Unpin(a);
  CHECK(table.slabs()[0].busy == 1 && table.pinned() == 0);
  table.Quarantine(b);
  CHECK(table.slabs()[0].busy == 1 && table.count(SlotState::kQuarantined) == 1);
  table.Free(b);
  CHECK(table.slabs()[0].busy == 0 && table.slabs()[0].used == 1);
}

TEST(PinsDoNotOverflow) {
  SlotTable table = SmallTable();
  const ClassId size_class = table.ClassFor(4096);
  table.AddSlab(size_class, 1);
  const uint32_t slot = table.Take(size_class);
  table.Commit(slot);
  for (uint32_t i = 0; i < kPinsMax; ++i) CHECK(table.Pin(slot));
  CHECK(!table.Pin(slot));
  for (uint32_t i = 0; i < kPinsMax; ++i) table.Unpin(slot);
  CHECK(table.cell(slot).evictable());
}

TEST(ALeavingSlabOffersNothing) {
  SlotTable table = SmallTable();
  const ClassId size_class = table.ClassFor(4096);
  table.AddSlab(size_class, 1);
  const uint32_t a = table.Take(size_class);
  const uint32_t b = table.Take(size_class);
  table.SetLeaving(0, true);
  CHECK(table.Take(size_class) == kNoSlot);
  table.Free(a);
  CHECK(table.Take(size_class) == kNoSlot && table.free_slabs() == 3);
  table.SetLeaving(0, false);
  CHECK(table.Take(size_class) == a);
  table.SetLeaving(0, true);
  table.Free(a);
  table.Free(b);
  CHECK(table.free_slabs() == 4 && !table.slabs()[0].leaving);
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
