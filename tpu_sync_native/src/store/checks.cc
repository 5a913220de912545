// Checksums of payloads in memory.
//
//   1  a commit, or the end of a promote, puts the slot into a bounded queue; beyond its bound a sweep over
//   all
//      slots finds what has none yet
//   2  within a second somebody else reads the payload, outside the mutex and without a pin. If the slot's
//   generation is still
//      the same afterwards, nobody was granted the slot meanwhile, and the word is kept with it
//   3  a restart takes chunks that have one out of the index, before anybody can ask. Each is read again; it
//      goes back into the index if it is as it was, and is dropped if not. Until then it is a miss
//
// Chunks that were committed shortly before a kill have none yet: they are served as they are, and get one.

#include <algorithm>

#include "index/probe.h"
#include "store/store_impl.h"

namespace tpu_sync_native {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kQueueMax = Checks::kQueueMax;
constexpr uint32_t kChecksAtOnce = 16;
constexpr uint32_t kSweepLooks = 4096;
constexpr size_t kDamagedMax = 64;  // more are counted, and not named
constexpr uint32_t kSampleShift = 28;

}  // namespace

bool Store::Impl::WantsChecksum(uint32_t slot, uint32_t generation) const {
  if (options.checksum != ChecksumPolicy::kSampled) return options.checksum == ChecksumPolicy::kAlways;
  constexpr uint32_t kOdd = 0x9e3779b1;
  return ((slot * kOdd ^ generation) * kOdd) >> kSampleShift == 0;
}

void Store::Impl::NoteForCheck(uint32_t slot) {
  if (options.checksum == ChecksumPolicy::kOff) return;
  if (!WantsChecksum(slot, index.view().slot(slot).generation.load(kRelaxed))) return;
  if (checks.queue.empty()) checks.queue.resize(kQueueMax);
  if (checks.queued == kQueueMax) {
    checks.sweep_left = options.slots_max;
  } else {
    checks.queue[(checks.queue_from + checks.queued++) % kQueueMax] = slot;
  }
  checks.fresh = true;
}

void Store::Impl::AddCheck(uint32_t slot, bool hidden, std::vector<ChunkCheck>* found) const {
  if (slots.cell(slot).state != SlotState::kCommitted) return;
  const SlotRecord& record = index.view().slot(slot);
  const uint64_t owner = record.owner.load(kRelaxed);
  const uint32_t generation = record.generation.load(kRelaxed);
  const uint32_t word = index.view().checksum(slot);
  if (IsGone(owner) || IsHidden(slot) != hidden || (word != 0) != hidden) return;
  if (!WantsChecksum(slot, generation)) return;
  found->push_back(
      {slot, generation, slots.offset_of(slot), namespaces[static_cast<uint32_t>(owner)].chunk_bytes, word});
}

bool Store::Impl::TakeChecks(std::vector<ChunkCheck>* found) {
  found->clear();
  while (!checks.unverified.empty() && found->size() < kChecksAtOnce) {
    AddCheck(checks.unverified.back(), /*hidden=*/true, found);
    checks.unverified.pop_back();
  }
  for (; checks.queued > 0 && found->size() < kChecksAtOnce; --checks.queued) {
    AddCheck(checks.queue[checks.queue_from], /*hidden=*/false, found);
    checks.queue_from = (checks.queue_from + 1) % kQueueMax;
  }
  uint32_t looks = kSweepLooks;
  for (; checks.sweep_left > 0 && looks > 0 && found->size() < kChecksAtOnce; --checks.sweep_left, --looks) {
    AddCheck(checks.sweep_at, /*hidden=*/false, found);
    checks.sweep_at = checks.sweep_at + 1 < options.slots_max ? checks.sweep_at + 1 : 0;
  }
  return !found->empty() || checks.sweep_left > 0;
}

void Store::Impl::EndChecks(std::span<const ChunkCheck> done) {
  for (const ChunkCheck& check : done) {
    if (check.slot >= options.slots_max || slots.cell(check.slot).state != SlotState::kCommitted) continue;
    if (index.view().slot(check.slot).generation.load(kRelaxed) != check.generation) continue;
    if (check.expected == 0) {
      index.SetChecksum(check.slot, check.found);
      ++counters.checksums;
    } else if (!IsHidden(check.slot)) {
      continue;
    } else if (check.found == check.expected) {
      ++counters.checksum_passes;
      Reveal(check.slot);
    } else {
      ++counters.checksum_failures;
      NoteDamaged(check.slot);
      EvictChunk(check.slot);
    }
  }
}

void Store::Impl::NoteDamaged(uint32_t slot) {
  if (checks.damaged.size() == kDamagedMax) return;
  HashedKey key;
  const uint64_t owner = index.KeyOf(slot, &key);
  std::string bytes(reinterpret_cast<const char*>(key.words), key.bytes);
  checks.damaged.push_back(
      {namespaces[static_cast<uint32_t>(owner)].id, std::move(bytes), slots.offset_of(slot)});
}

void Store::Impl::HideUnverified() {
  if (options.checksum == ChecksumPolicy::kOff) return;
  checks.sweep_left = options.slots_max;  // for those that have none
  for (uint32_t slab = 0; slab < slots.slabs().size(); ++slab) {
    const uint32_t first = slots.first_slot(slab);
    for (uint32_t slot = first; slot < first + slots.slabs()[slab].fresh; ++slot) {
      if (slots.cell(slot).state != SlotState::kCommitted) continue;
      if (index.view().checksum(slot) == 0) continue;
      if (!WantsChecksum(slot, index.view().slot(slot).generation.load(kRelaxed))) continue;
      HashedKey key;
      index.KeyOf(slot, &key);
      index.Remove(key, slot);
      checks.hidden.resize(options.slots_max);
      checks.hidden[slot] = true;
      checks.unverified.push_back(slot);
    }
  }
  checks.hidden_count = checks.unverified.size();
  std::reverse(checks.unverified.begin(), checks.unverified.end());  // the lowest first: a prefix's beginning
}

void Store::Impl::Unhide(uint32_t slot) {
  checks.hidden[slot] = false;
  if (--checks.hidden_count == 0) checks.hidden = {};
}

// Somebody may have stored the chunk anew meanwhile, or promoted it: that one stays.
void Store::Impl::Reveal(uint32_t slot) {
  Unhide(slot);
  HashedKey key;
  const uint64_t owner = index.KeyOf(slot, &key);
  SlotSnapshot snapshot;
  const bool alone = !IsGone(owner) && FindKey(index.view(), key, owner, &snapshot) == kNoSlot;
  if (alone &&
      (index.Insert(key, slot) || (MakeIndexRoom(key, slots.class_of(slot)) && index.Insert(key, slot))))
    return;
  EvictChunk(slot);
}

}  // namespace tpu_sync_native
