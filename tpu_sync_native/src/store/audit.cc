// Every invariant of docs/protocol.md, checked from scratch against what the store keeps as it goes.

#include <algorithm>
#include <array>
#include <unordered_set>

#include "index/probe.h"
#include "store/store_impl.h"

namespace tpu_sync_native {
namespace {

constexpr size_t kFindingsMax = 100;  // a broken store breaks everywhere: enough to see what it is

}  // namespace

// What a walk over all slots must agree with, collected from leases and quarantines first.
struct Expected {
  std::unordered_map<uint32_t, uint32_t> pins;  // of read leases and demotes
  std::unordered_set<uint32_t> reserved;
  std::unordered_set<uint32_t> quarantined;
};

class Auditor {
 public:
  explicit Auditor(const Store::Impl& store) : store_(store) {}

  std::vector<std::string> Run() {
    CollectHolders();
    for (uint32_t i = 0; i < store_.slots.slabs().size(); ++i) CheckSlab(i);
    CheckClasses();
    CheckBuckets();
    CheckTotals();
    return std::move(findings_);
  }

 private:
  void Require(bool holds, const std::string& what) {
    if (!holds && findings_.size() < kFindingsMax) findings_.push_back(what);
  }
  void Equal(uint64_t kept, uint64_t counted, const std::string& what) {
    Require(kept == counted,
            what + ": kept as " + std::to_string(kept) + ", counted " + std::to_string(counted));
  }

  void CollectHolders();
  // What the next daemon would read about a slot of a write lease.
  void CheckRow(LeaseId lease, uint32_t row, uint32_t slot) {
    const MetaView& view = store_.index.view();
    const std::string name = "write lease " + std::to_string(lease);
    if (row == 0 || row > view.leases_max()) return Require(false, name + " has no row");
    Equal(lease, view.lease(row - 1).lease.load(std::memory_order_relaxed), name + " in its row");
    const uint64_t place = view.slot(slot).place.load(std::memory_order_relaxed);
    Equal(row, PlaceLease(place), "row that slot " + std::to_string(slot) + " names");
  }
  void CheckSlab(uint32_t number);
  void CheckSlot(uint32_t slot, const Slab& slab);
  void CheckIndexed(uint32_t slot);
  void CheckClasses();
  void CheckBuckets();
  void CheckTotals();

  const Store::Impl& store_;
  Expected expected_;
  std::vector<std::string> findings_;
  std::array<uint64_t, 5> states_{};  // by SlotState
  std::vector<uint64_t> used_of_class_ = std::vector<uint64_t>(store_.slots.classes().size());
  std::vector<uint64_t> chunks_of_ns_ = std::vector<uint64_t>(store_.namespaces.size());
  std::vector<uint64_t> withheld_of_ns_ = std::vector<uint64_t>(store_.namespaces.size());
  uint64_t stale_ = 0;
  uint64_t pinned_ = 0;
  uint64_t free_slabs_ = 0;
};

void Auditor::CollectHolders() {
  for (const auto& [id, lease] : store_.leases) {
    const std::string name = "lease " + std::to_string(id);
    const auto session = store_.sessions.find(lease.session);
    Require(session != store_.sessions.end() && !session->second.closed, name + " has no open session");
    Require(!lease.slots.empty(), name + " holds nothing");
    for (const uint32_t slot : lease.slots) {
      if (lease.kind == LeaseRecord::Kind::kRead) {
        ++expected_.pins[slot];
      } else {
        CheckRow(id, lease.row, slot);
        Require(expected_.reserved.insert(slot).second,
                "slot " + std::to_string(slot) + " is reserved by two leases");
      }
    }
  }
  for (const Quarantine& quarantine : store_.quarantines) {
    Require(!quarantine.writers.empty(), "a quarantine waits for nobody");
    for (const SessionId writer : quarantine.writers) {
      Require(store_.sessions.count(writer) == 1,
              "a quarantine waits for session " + std::to_string(writer) + ", which is gone");
    }
    for (const uint32_t slot : quarantine.slots) {
      CheckRow(quarantine.lease, quarantine.row, slot);
      expected_.quarantined.insert(slot);
    }
  }
  for (const auto& [slot, pins] : store_.demote_pins) {
    Require(pins > 0, "slot " + std::to_string(slot) + " is held by no demote, and listed");
    expected_.pins[slot] += pins;
  }
  for (const uint32_t slot : store_.late_slots) {
    const std::string name = "slot " + std::to_string(slot) + ", set aside for late reads,";
    Require(expected_.quarantined.insert(slot).second, name + " is in a quarantine as well");
  }
  for (const auto& [slot, lost] : store_.lost_promotes) {
    const std::string name = "lost promote into slot " + std::to_string(slot);
    Require(expected_.quarantined.insert(slot).second, name + " is in a quarantine as well");
    Require(lost.busy || store_.slots.cell(slot).pins > 0, name + " waits for nobody");
  }
}

void Auditor::CheckSlab(uint32_t number) {
  const Slab& slab = store_.slots.slabs()[number];
  const std::string name = "slab " + std::to_string(number);
  const uint32_t first = store_.slots.first_slot(number);
  if (slab.size_class == kNone) {
    ++free_slabs_;
    Require(slab.used == 0 && slab.busy == 0 && !slab.offered && !slab.leaving, name + " is free but in use");
  }
  uint32_t used = 0;
  uint32_t busy = 0;
  for (uint32_t i = 0; i < store_.slots.slots_per_slab(); ++i) {
    const SlotCell& cell = store_.slots.cell(first + i);
    ++states_[static_cast<uint8_t>(cell.state)];
    if (cell.state == SlotState::kFree) {
      Require(cell.pins == 0, "slot " + std::to_string(first + i) + " is free and pinned");
      continue;
    }
    Require(i < slab.fresh, name + " has a used slot beyond its fresh mark");
    ++used;
    busy += !cell.evictable();
    if (slab.size_class != kNone) CheckSlot(first + i, slab);
  }
  Equal(slab.used, used, name + " used");
  Equal(slab.busy, busy, name + " busy");
  if (slab.size_class == kNone) return;
  used_of_class_[slab.size_class] += used;
  Require(used > 0 || slab.leaving, name + " is empty and not given back");
  Require(slab.offered == (used < slab.slots && !slab.leaving), name + " is offered wrongly");
  uint32_t in_list = 0;
  for (uint32_t slot = slab.free_head; slot != kNoSlot && in_list <= slab.slots; ++in_list) {
    Require(store_.slots.cell(slot).state == SlotState::kFree, name + " lists a used slot as free");
    slot = store_.slots.cell(slot).next;
  }
  Equal(slab.fresh - used, in_list, name + " free list");
}

void Auditor::CheckSlot(uint32_t slot, const Slab& slab) {
  const std::string name = "slot " + std::to_string(slot);
  const SlotCell& cell = store_.slots.cell(slot);
  const SlotRecord& record = store_.index.view().slot(slot);
  const uint64_t place = record.place.load(std::memory_order_relaxed);
  Require((record.seq.load(std::memory_order_relaxed) & 1) == 0, name + " has an odd sequence counter");
  Require(PlaceState(place) == cell.state, name + " has another state in its record");
  Equal(PlaceOffset(place), store_.slots.offset_of(slot), name + " offset");
  Require(store_.slots.offset_of(slot) + store_.slots.classes()[slab.size_class].slot_bytes <=
              (store_.slots.slab_of(slot) + 1) * store_.slots.slab_bytes(),
          name + " reaches beyond its slab");

  const uint64_t owner = record.owner.load(std::memory_order_relaxed);
  const auto ns = static_cast<uint32_t>(owner);
  if (ns >= store_.namespaces.size()) {
    Require(false, name + " belongs to no namespace");
    return;
  }
  const NamespaceEntry& space = store_.namespaces[ns];
  Require(slab.size_class == space.shared_class || slab.size_class == space.own_class,
          name + " is in another size class");
  const auto pins = expected_.pins.find(slot);
  Equal(cell.pins, pins == expected_.pins.end() ? 0 : pins->second, name + " pins");
  pinned_ += cell.pins > 0;
  Require((cell.state == SlotState::kReserved) == (expected_.reserved.count(slot) == 1),
          name + ": reserved, and in a write lease, are not the same");
  Require((cell.state == SlotState::kQuarantined) == (expected_.quarantined.count(slot) == 1),
          name + ": quarantined, and in a quarantine, are not the same");
  const bool pinnable = cell.state == SlotState::kCommitted || cell.state == SlotState::kPromoting ||
                        store_.lost_promotes.count(slot) == 1;
  Require(cell.pins == 0 || pinnable, name + " is pinned in a state that no lease hands out");
  if (cell.state == SlotState::kCommitted) {
    ++(store_.Stale(owner) ? stale_ : chunks_of_ns_[ns]);
    if (store_.IsWithheld(owner)) ++withheld_of_ns_[ns];
  }
  if (cell.state != SlotState::kQuarantined) CheckIndexed(slot);
}

void Auditor::CheckIndexed(uint32_t slot) {
  HashedKey key;
  store_.index.KeyOf(slot, &key);
  int cells = 0;
  for (int i = 0; i < (key.buckets[0] == key.buckets[1] ? 1 : 2); ++i) {
    const Bucket& bucket = store_.index.view().bucket(key.buckets[i]);
    for (uint32_t cell = 0; cell < kBucketCells; ++cell) {
      cells += bucket.tags[cell].load(std::memory_order_relaxed) == key.tag &&
               bucket.slots[cell].load(std::memory_order_relaxed) == slot;
    }
  }
  Equal(store_.IsHidden(slot) ? 0 : 1, static_cast<uint64_t>(cells),
        "slot " + std::to_string(slot) + " cells in the index");
}

void Auditor::CheckClasses() {
  for (size_t i = 0; i < store_.slots.classes().size(); ++i) {
    const std::string name = "class of " + std::to_string(store_.slots.classes()[i].slot_bytes) + " bytes";
    Equal(store_.slots.classes()[i].used, used_of_class_[i], name + " used");
    Require(store_.classes[i].floor == 0 || !store_.slots.classes()[i].shared,
            name + ": shared, with a floor");
    // The policy's walk covers the reserved, promoting and committed slots of the class, each once.
    const EvictionPolicy& policy = *store_.classes[i].policy;
    uint64_t walked = 0;
    for (uint32_t slot = policy.Coldest(); slot != kNoSlot && walked <= policy.size(); ++walked) {
      const SlotState state = store_.slots.cell(slot).state;
      Require(store_.slots.class_of(slot) == i, name + ": its policy holds another class's slot");
      Require(state != SlotState::kFree && state != SlotState::kQuarantined,
              name + ": its policy holds slot " + std::to_string(slot) + ", which is not in use");
      slot = policy.Warmer(slot);
    }
    Equal(policy.size(), walked, name + " policy walk");
    uint64_t quarantined = 0;
    for (const uint32_t slot : expected_.quarantined) quarantined += store_.slots.class_of(slot) == i;
    Equal(policy.size() + quarantined, used_of_class_[i], name + " policy size");
    Equal(store_.slots.classes()[i].quarantined, quarantined, name + " quarantined");
  }
}

void Auditor::CheckBuckets() {
  uint64_t cells = 0;
  for (uint32_t i = 0; i < store_.index.view().bucket_count(); ++i) {
    for (const auto& tag : store_.index.view().bucket(i).tags)
      cells += tag.load(std::memory_order_relaxed) != 0;
  }
  const auto of = [this](SlotState state) { return states_[static_cast<uint8_t>(state)]; };
  Equal(cells + store_.checks.hidden_count,
        of(SlotState::kCommitted) + of(SlotState::kReserved) + of(SlotState::kPromoting),
        "cells of the index");
}

void Auditor::CheckTotals() {
  const auto of = [this](SlotState state) { return states_[static_cast<uint8_t>(state)]; };
  for (const SlotState state :
       {SlotState::kReserved, SlotState::kCommitted, SlotState::kQuarantined, SlotState::kPromoting}) {
    Equal(store_.slots.count(state), of(state), "slots in state " + std::to_string(static_cast<int>(state)));
  }
  Equal(expected_.reserved.size(), of(SlotState::kReserved), "slots of write leases");
  Equal(expected_.quarantined.size(), of(SlotState::kQuarantined), "slots of quarantines");
  Equal(expected_.pins.size(), pinned_, "slots of read leases and demotes");
  Equal(store_.slots.pinned(), pinned_, "pinned slots");
  Equal(store_.slots.free_slabs(), free_slabs_, "free slabs");
  Equal(store_.stale_slots, stale_, "stale slots");
  uint64_t bytes = 0, withheld = 0;
  for (size_t i = 0; i < chunks_of_ns_.size(); ++i) {
    const NamespaceEntry& space = store_.namespaces[i];
    Equal(space.chunks, chunks_of_ns_[i], "chunks of namespace " + std::to_string(i));
    Equal(space.withheld ? space.withheld->chunks : 0, withheld_of_ns_[i],
          "withheld chunks of namespace " + std::to_string(i));
    withheld += withheld_of_ns_[i];
    bytes += chunks_of_ns_[i] * store_.namespaces[i].chunk_bytes;
  }
  Equal(store_.withheld_slots, withheld, "withheld slots");
  Equal(store_.chunk_bytes, bytes, "bytes of chunks");
  Require(!store_.sessions.empty() || (store_.leases.empty() && store_.quarantines.empty()),
          "no session is left, but leases or quarantines are");
}

std::vector<std::string> Store::Impl::Audit() const { return Auditor(*this).Run(); }

}  // namespace tpu_sync_native
