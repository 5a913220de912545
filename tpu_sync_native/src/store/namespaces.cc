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
    return known->second;
  }
  if (bytes == 0 || bytes > slots.slab_bytes()) {
    throw std::invalid_argument("chunk_bytes must be between 1 and a slab's size, " +
                                std::to_string(slots.slab_bytes()) + ", not " + std::to_string(bytes));
  }
  if (namespaces.size() >= options.namespaces_max) {
    throw std::invalid_argument("no more than namespaces_max = " + std::to_string(options.namespaces_max) +
                                " namespaces");
  }
  const uint32_t ns = AddNamespace(id, bytes, /*epoch=*/1);
  index.OpenNamespace(ns, id, bytes);
  return ns;
}

uint32_t Store::Impl::AddNamespace(std::string_view id, uint64_t bytes, uint32_t epoch) {
  const auto ns = static_cast<uint32_t>(namespaces.size());
  const ClassId size_class = slots.ClassFor(RoundUp(bytes, kPayloadUnit));
  while (classes.size() <= size_class) classes.push_back({.policy = make_policy.make()});
  namespaces.push_back(
      {.id = std::string(id), .chunk_bytes = bytes, .size_class = size_class, .epoch = epoch});
  namespace_by_id.emplace(id, ns);
  return ns;
}

uint64_t Store::Impl::ClearNamespace(uint32_t ns) {
  if (ns >= namespaces.size()) throw std::invalid_argument("no namespace has index " + std::to_string(ns));
  NamespaceEntry& space = namespaces[ns];
  const uint64_t chunks = space.chunks;
  space.epoch = index.RaiseEpoch(ns);  // one store: from here on no reader takes one of them for a hit
  space.chunks = 0;
  stale_slots += chunks;
  counters.cleared += chunks;
  chunk_bytes -= chunks * space.chunk_bytes;
  index.SetEpochBelow(ns, EpochBelow(ns) | kUnconfirmedClear);  // though there be no tier: one may come
  if (lower != nullptr) lower.load()->Cleared(ns);
  return chunks;
}

uint64_t Store::Impl::EpochBelow(uint32_t ns) const {
  return index.view().ns(ns).epoch_below.load(std::memory_order_relaxed);
}

void Store::Impl::NoteEpochsBelow() {
  if (lower == nullptr) return;
  for (uint32_t ns = 0; ns < namespaces.size(); ++ns) {
    const uint64_t word = lower.load()->EpochWord(ns);
    if (word != 0 && word != EpochBelow(ns)) index.SetEpochBelow(ns, word);
  }
}

}  // namespace tpu_sync_native
