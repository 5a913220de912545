// Floors: what is left to a namespace, whatever the others ask for.
//
// A namespace with a floor has a size class of its own, so slabs of its own. A policy thus never meets
// another namespace's chunk, and the choice of a victim costs nothing more. What classes take from one
// another is a slab, and a class gives one only while as many of its slots as its floor stay in use; a class
// with less than its floor takes the coldest slab that may be given before it evicts anything of its own.
// One that takes several calls to be emptied is kept for it, for as long as it goes on asking. Above their
// floors classes share the arena by age, as they do without.
//
// Slots in quarantine hold nothing and can be given to nobody, so they count for no floor. What is withheld
// or not verified yet does: its owner may have it back, and evicts it first when it needs the room.
//
// The price: each floor may keep one slab that is in use in part, and what was stored before the floor was
// set stays where it is, among others' chunks.

#include <algorithm>
#include <stdexcept>

#include "store/store_impl.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kClaimMs = 10'000;  // whoever has not asked again by then wants it no more

}  // namespace

ClassId Store::Impl::OwnClass(NamespaceEntry* space) {
  if (space->own_class == kNone) {
    space->own_class = slots.AddOwnClass(slots.classes()[space->shared_class].slot_bytes);
    FillClasses();
  }
  return space->own_class;
}

uint32_t Store::Impl::SlotsFor(const NamespaceEntry& space, uint64_t bytes) const {
  const uint64_t wanted = bytes / space.chunk_bytes + (bytes % space.chunk_bytes != 0);
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, kNoSlot - 1));
}

uint64_t Store::Impl::SlabsFor(const NamespaceEntry& space, uint64_t bytes) const {
  const uint64_t per_slab = slots.SlotsPerSlab(space.shared_class);
  return (SlotsFor(space, bytes) + per_slab - 1) / per_slab;
}

void Store::Impl::SetFloor(uint32_t ns, uint64_t bytes) {
  if (ns >= namespaces.size()) throw std::invalid_argument("no namespace has index " + std::to_string(ns));
  uint64_t slabs = 0;
  for (uint32_t i = 0; i < namespaces.size(); ++i) {
    slabs += SlabsFor(namespaces[i], i == ns ? bytes : namespaces[i].floor_bytes);
  }
  if (bytes > 0 && slabs > slots.slabs().size()) {
    throw std::invalid_argument("a floor of " + std::to_string(bytes) +
                                " bytes does not fit: all floors need " + std::to_string(slabs) +
                                " slabs of " + std::to_string(slots.slab_bytes()) + " bytes, the arena has " +
                                std::to_string(slots.slabs().size()));
  }
  NamespaceEntry& space = namespaces[ns];
  space.floor_bytes = bytes;
  space.size_class = bytes > 0 ? OwnClass(&space) : space.shared_class;
  if (space.own_class != kNone) classes[space.own_class].floor = SlotsFor(space, bytes);
  index.SetFloor(ns, bytes);
}

uint32_t Store::Impl::Usable(ClassId size_class) const {
  return slots.classes()[size_class].used - slots.classes()[size_class].quarantined;
}

bool Store::Impl::BelowFloor(ClassId size_class) const {
  return Usable(size_class) < classes[size_class].floor;
}

void Store::Impl::Claim(ClassId size_class) {
  claimant = size_class;
  claimed_until_ms = SteadyMs() + kClaimMs;
}

bool Store::Impl::KeptForAnother(ClassId size_class) const {
  return claimant != kNone && claimant != size_class && BelowFloor(claimant) && slots.free_slabs() <= 1;
}

bool Store::Impl::MayGive(ClassId size_class, uint32_t count) const {
  const uint64_t kept = uint64_t{classes[size_class].floor} + count;
  return classes[size_class].floor == 0 || Usable(size_class) >= kept;
}

}  // namespace tpu_sync_native
