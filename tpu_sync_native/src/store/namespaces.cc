// Namespaces, their epochs, and what is withheld.
//
// A chunk is of the epoch in which its slot was reserved, and readable while that is the namespace's present
// one. A clear makes the next epoch. So does withholding, which keeps the one before and may go back to it:
// its chunks are stale meanwhile, but not reclaimed (evicted they are, when their turn comes). Which one is
// the present one is all that the metadata says; a daemon that ends meanwhile has given them up.
#include <algorithm>
#include <stdexcept>

#include "base/align.h"
#include "store/store_impl.h"

namespace tpu_sync_native {

uint32_t Store::Impl::OpenNamespace(std::string_view id, uint64_t bytes) {
  if (id.size() != sizeof(NamespaceRecord::id)) {
    throw std::invalid_argument("a namespace id has 16 bytes, not " + std::to_string(id.size()));
  }
  if (const auto known = namespace_by_id.find(std::string(id)); known != namespace_by_id.end()) {
    const uint64_t known_bytes = namespaces[known->second].chunk_bytes;
    if (known_bytes != bytes) {
      throw std::invalid_argument("chunk_bytes of this namespace is " + std::to_string(known_bytes) +
                                  ", not " + std::to_string(bytes));
    }
    namespaces[known->second].used = true;
    return known->second;
  }
  if (bytes == 0 || bytes > slots.slab_bytes()) {
    throw std::invalid_argument("chunk_bytes must be between 1 and a slab's size, " +
                                std::to_string(slots.slab_bytes()) + ", not " + std::to_string(bytes));
  }
  if (namespaces.size() >= options.namespaces_max) {
    if (const uint32_t ns = ReplaceNamespace(id, bytes); ns != kNone) return ns;
    throw std::invalid_argument("no more than namespaces_max = " + std::to_string(options.namespaces_max) +
                                " namespaces");
  }
  const uint32_t ns = AddNamespace(id, bytes, /*epoch=*/1);
  namespaces[ns].used = true;
  index.OpenNamespace(ns, id, bytes);
  return ns;
}

NamespaceEntry Store::Impl::NewEntry(std::string_view id, uint64_t bytes, uint32_t epoch) {
  const ClassId size_class = slots.ClassFor(RoundUp(bytes, kPayloadUnit));
  FillClasses();
  return {.id = std::string(id),
          .chunk_bytes = bytes,
          .size_class = size_class,
          .shared_class = size_class,
          .epoch = epoch,
          .last_epoch = epoch};
}

uint32_t Store::Impl::AddNamespace(std::string_view id, uint64_t bytes, uint32_t epoch) {
  const auto ns = static_cast<uint32_t>(namespaces.size());
  namespaces.push_back(NewEntry(id, bytes, epoch));
  namespace_by_id.emplace(id, ns);
  return ns;
}

uint32_t Store::Impl::ReplaceNamespace(std::string_view id, uint64_t bytes) {
  const auto unused = std::find_if(namespaces.begin(), namespaces.end(),
                                   [](const NamespaceEntry& space) { return !space.used; });
  if (unused == namespaces.end()) return kNone;
  const auto ns = static_cast<uint32_t>(unused - namespaces.begin());
  SetFloor(ns, 0);
  namespace_by_id.erase(unused->id);
  const uint32_t epoch = unused->last_epoch + 1;  // whatever still names the row is of one before
  *unused = NewEntry(id, bytes, epoch == 0 ? 1 : epoch);
  unused->used = true;
  namespace_by_id.emplace(id, ns);
  index.ReplaceNamespace(ns, id, bytes, unused->epoch);
  return ns;
}

void Store::Impl::FillClasses() {
  while (classes.size() < slots.classes().size()) classes.push_back({.policy = make_policy.make()});
}

uint64_t Store::Impl::BeginEpoch(uint32_t ns) {
  NamespaceEntry& space = namespaces[ns];
  const uint64_t chunks = space.chunks;
  if (++space.last_epoch == 0) space.last_epoch = 1;
  space.epoch = space.last_epoch;
  index.SetEpoch(ns, space.epoch);  // one store: from here on no reader takes one of them for a hit
  space.chunks = 0;
  stale_slots += chunks;
  chunk_bytes -= chunks * space.chunk_bytes;
  return chunks;
}

uint64_t Store::Impl::ClearNamespace(uint32_t ns) {
  if (ns >= namespaces.size()) throw std::invalid_argument("no namespace has index " + std::to_string(ns));
  EndWithhold(ns, /*keep=*/false);
  // From the first of these stores on the next daemon finishes it, if this one comes to nothing more.
  index.SetClearingTo(ns, namespaces[ns].last_epoch + 1);
  index.SetEpochBelow(ns, EpochBelow(ns) | kUnconfirmedClear);  // though there be no tier: one may come
  const uint64_t chunks = BeginEpoch(ns);
  counters.cleared += chunks;
  if (lower != nullptr) lower.load()->Cleared(ns);
  return chunks;
}

void Store::Impl::WithholdNamespace(uint32_t ns) {
  if (ns >= namespaces.size()) throw std::invalid_argument("no namespace has index " + std::to_string(ns));
  NamespaceEntry& space = namespaces[ns];
  if (space.withheld) return;
  // Never noted: no tier below has ever been asked, so they are of the epoch before the first clear there.
  const uint64_t below = std::max<uint64_t>(EpochBelow(ns) & ~kUnconfirmedClear, 1);
  const uint32_t epoch = space.epoch;
  const uint64_t chunks = BeginEpoch(ns);
  withheld_slots += chunks;
  space.withheld = Withheld{epoch, chunks, below};
  // An engine that outlives this daemon, too, is of no epoch that is known.
  index.SetEpochBelow(ns, EpochBelow(ns) & kUnconfirmedClear);
}

void Store::Impl::EndWithhold(uint32_t ns, bool keep) {
  NamespaceEntry& space = namespaces[ns];
  if (!space.withheld) return;
  const Withheld withheld = *space.withheld;
  space.withheld.reset();
  withheld_slots -= withheld.chunks;
  // Both may be served, but under one epoch: the larger part is.
  if (keep && withheld.chunks >= space.chunks) {
    stale_slots = stale_slots + space.chunks - withheld.chunks;
    chunk_bytes = chunk_bytes + (withheld.chunks - space.chunks) * space.chunk_bytes;
    space.epoch = withheld.epoch;
    space.chunks = withheld.chunks;
    index.SetEpoch(ns, space.epoch);
  }
  settled.notify_all();
}

uint64_t Store::Impl::EpochBelow(uint32_t ns) const {
  return index.view().ns(ns).epoch_below.load(std::memory_order_relaxed);
}

void Store::Impl::NoteEpochsBelow() {
  if (lower == nullptr) return;
  for (uint32_t ns = 0; ns < namespaces.size(); ++ns) {
    const uint64_t word = lower.load()->EpochWord(ns);
    if (word == 0) {
      if (lower.load()->Refuses(ns)) EndWithhold(ns, /*keep=*/false);
      continue;
    }
    const auto& withheld = namespaces[ns].withheld;
    if (withheld) EndWithhold(ns, (word & ~kUnconfirmedClear) == withheld->epoch_below);
    if (word != EpochBelow(ns)) index.SetEpochBelow(ns, word);
  }
}

}  // namespace tpu_sync_native
