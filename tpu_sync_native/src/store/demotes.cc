// Pins of the lower tier: committed chunks that it copies, for as long as it reads their slots. They stand in
// nobody's way: a clear makes the chunk unreadable at once, and the slot is free with the last pin.

#include <cstring>

#include "index/probe.h"
#include "store/store_impl.h"

namespace tpu_sync_native {

std::vector<DemoteChunk> Store::Impl::PinForDemote(uint32_t ns, uint32_t epoch,
                                                   std::span<const uint32_t> wanted) {
  std::vector<DemoteChunk> chunks;
  if (ns >= namespaces.size() || namespaces[ns].epoch != epoch) return chunks;
  const uint64_t owner = OwnerWord(ns, epoch);
  chunks.reserve(wanted.size());
  for (const uint32_t slot : wanted) {
    if (slot >= options.slots_max || slots.cell(slot).state != SlotState::kCommitted) continue;
    HashedKey key;
    if (index.KeyOf(slot, &key) != owner || !slots.Pin(slot)) continue;
    ++demote_pins[slot];
    const uint32_t generation = index.view().slot(slot).generation.load(std::memory_order_relaxed);
    DemoteChunk chunk{};
    chunk.ref = {slot, generation, slots.offset_of(slot)};
    chunk.key_bytes = static_cast<uint8_t>(key.bytes);
    std::memcpy(chunk.key, key.words, key.bytes);
    chunks.push_back(chunk);
  }
  return chunks;
}

void Store::Impl::EndDemote(std::span<const DemoteChunk> chunks) {
  for (const DemoteChunk& chunk : chunks) {
    const auto pins = demote_pins.find(chunk.ref.slot);
    if (pins == demote_pins.end()) continue;
    if (--pins->second == 0) demote_pins.erase(pins);
    Unpin(chunk.ref.slot, Stale(index.view().slot(chunk.ref.slot).owner.load(std::memory_order_relaxed)));
  }
}

}  // namespace tpu_sync_native
