// Finding one key in the shared tables; shared by the lock-free reader and the writer.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/spin.h"
#include "index/key.h"
#include "index/meta_view.h"

namespace tpu_sync_native {

// The packed words of a SlotRecord.
constexpr uint64_t PlaceWord(uint64_t offset, SlotState state, uint32_t key_bytes, uint32_t lease = 0) {
  return offset / kPayloadUnit | uint64_t{static_cast<uint8_t>(state)} << 32 | uint64_t{key_bytes} << 40 |
         uint64_t{lease} << 48;
}
constexpr uint64_t PlaceOffset(uint64_t place) { return (place & 0xffffffffu) * kPayloadUnit; }
constexpr SlotState PlaceState(uint64_t place) { return static_cast<SlotState>(place >> 32 & 0xff); }
constexpr uint32_t PlaceKeyBytes(uint64_t place) { return static_cast<uint32_t>(place >> 40 & 0xff); }
constexpr uint32_t PlaceLease(uint64_t place) { return static_cast<uint32_t>(place >> 48); }
constexpr uint64_t OwnerWord(uint32_t ns, uint32_t epoch) { return ns | uint64_t{epoch} << 32; }

// Cells of a bucket whose tag matches: bit 15 of every 16-bit lane, four cells a word.
struct TagMatches {
  uint64_t half[2];
  bool any() const { return (half[0] | half[1]) != 0; }
};

inline TagMatches MatchTags(const Bucket& bucket, uint16_t tag) {
  constexpr uint64_t kLow = 0x7fff7fff7fff7fff;
  const uint64_t pattern = uint64_t{tag} * 0x0001000100010001;
  TagMatches matches;
  // Four tags are read as one word. A lane is written by one store, so it is seen whole.
  const auto* words = reinterpret_cast<const uint64_t*>(bucket.tags);
  for (int i = 0; i < 2; ++i) {
    const uint64_t lanes = __atomic_load_n(words + i, __ATOMIC_ACQUIRE) ^ pattern;
    matches.half[i] = ~(((lanes & kLow) + kLow) | lanes | kLow);  // a lane of zeros: its top bit
  }
  return matches;
}

// Calls visit(slot) for every matching cell until it returns true; returns whether one did.
template <typename Visit>
inline bool ForMatches(const Bucket& bucket, const TagMatches& matches, Visit visit) {
  for (int half = 0; half < 2; ++half) {
    for (uint64_t left = matches.half[half]; left != 0; left &= left - 1) {
      const int cell = half * 4 + std::countr_zero(left) / 16;
      if (visit(bucket.slots[cell].load(std::memory_order_acquire))) return true;
    }
  }
  return false;
}

// What a slot record said at one moment.
struct SlotSnapshot {
  uint32_t generation;
  uint64_t place;
};

// Whether the slot holds `key` of `owner` now; reads by the protocol of meta_layout.h. A record that changes
// under the reader kSeqRetriesMax times, or that a dead writer left half-made, does not match.
inline bool ReadIfKey(const MetaView& view, uint32_t slot, const HashedKey& key, uint64_t owner,
                      SlotSnapshot* snapshot) {
  constexpr auto kAcquire = std::memory_order_acquire;
  const SlotRecord& record = view.slot(slot);
  for (uint32_t attempt = 0; attempt < kSeqRetriesMax; ++attempt) {
    const uint32_t seq = record.seq.load(kAcquire);
    if (seq & 1) {
      SpinPause();
      continue;
    }
    snapshot->generation = record.generation.load(kAcquire);
    snapshot->place = record.place.load(kAcquire);
    // A mismatch needs no second look: a half-made record is one that is not yet, or no more, readable. The
    // length comes first: a slot that never held a long key may have no memory behind its tail.
    if (PlaceKeyBytes(snapshot->place) != key.bytes) return false;
    uint64_t difference = record.owner.load(kAcquire) ^ owner;
    for (uint32_t i = 0; i < kInlineWords; ++i) difference |= record.key[i].load(kAcquire) ^ key.words[i];
    if (key.bytes > kKeyBytesInline) {
      const KeyTail& tail = view.key_tail(slot);
      for (uint32_t i = 0; i < 3; ++i) difference |= tail.key[i].load(kAcquire) ^ key.words[kInlineWords + i];
    }
    if (difference != 0) return false;
    if (record.seq.load(std::memory_order_relaxed) == seq) return true;
  }
  return false;
}

// The first slot that a tag of this bucket names for the key; kNoSlot when none does.
inline uint32_t NamedSlot(const Bucket& bucket, uint16_t tag) {
  uint32_t named = kNoSlot;
  ForMatches(bucket, MatchTags(bucket, tag), [&](uint32_t slot) {
    named = slot;
    return true;
  });
  return named;
}

// Finds the slot that holds `key`, in any state but free; kNoSlot when there is none.
inline uint32_t FindKey(const MetaView& view, const HashedKey& key, uint64_t owner, SlotSnapshot* snapshot) {
  uint32_t found = kNoSlot;
  for (const uint32_t index : key.buckets) {
    const Bucket& bucket = view.bucket(index);
    const bool hit = ForMatches(bucket, MatchTags(bucket, key.tag), [&](uint32_t slot) {
      if (slot >= view.slots_max() || !ReadIfKey(view, slot, key, owner, snapshot)) return false;
      if (PlaceState(snapshot->place) == SlotState::kFree) return false;
      found = slot;
      return true;
    });
    if (hit) break;
  }
  return found;
}

// The same, looking at slot `named` first: nearly always that is the one, and its record is in the cache.
inline uint32_t FindKey(const MetaView& view, const HashedKey& key, uint64_t owner, uint32_t named,
                        SlotSnapshot* snapshot) {
  if (named < view.slots_max() && ReadIfKey(view, named, key, owner, snapshot) &&
      PlaceState(snapshot->place) != SlotState::kFree) [[likely]] {
    return named;
  }
  return FindKey(view, key, owner, snapshot);
}

inline constexpr uint32_t kProbeGroup = 16;                // keys that take one step together
inline constexpr uint32_t kProbeWindow = 4 * kProbeGroup;  // keys under way at once; a power of two

// Takes `count` keys through four steps in a pipeline of groups, so that their cache misses overlap: make(i)
// hashes key i and returns it (null ends the batch before i); its first bucket names a slot, or else its
// second one does; visit(i, key, named) looks at the record (false ends the batch at i). Each step asks for
// the memory of the next. Returns how many visits were true. A key lives for kProbeWindow makes.
template <typename Make, typename Visit>
inline uint32_t ProbeKeys(const MetaView& view, uint32_t count, Make make, Visit visit) {
  struct {
    const HashedKey* key;
    uint32_t named;
  } window[kProbeWindow];
  const auto each = [&](uint32_t begin, auto step) {
    // Before its first group, a step's `begin` has wrapped to a large number.
    const uint32_t end = begin < count ? std::min(begin + kProbeGroup, count) : begin;
    for (uint32_t i = begin; i < end; ++i) {
      if (!step(i, window[i % kProbeWindow])) return i;
    }
    return end;
  };
  const auto name = [&](auto& probe, uint32_t which) {
    probe.named = NamedSlot(view.bucket(probe.key->buckets[which]), probe.key->tag);
    if (probe.named < view.slots_max()) __builtin_prefetch(&view.slot(probe.named));
  };
  for (uint32_t begin = 0; begin < count + 3 * kProbeGroup; begin += kProbeGroup) {
    const uint32_t made = each(begin, [&](uint32_t i, auto& probe) {
      probe.key = make(i);
      if (probe.key == nullptr) return false;
      __builtin_prefetch(&view.bucket(probe.key->buckets[0]));
      return true;
    });
    if (made < std::min(begin + kProbeGroup, count)) count = made;
    each(begin - kProbeGroup, [&](uint32_t, auto& probe) {
      name(probe, 0);
      if (probe.named == kNoSlot) __builtin_prefetch(&view.bucket(probe.key->buckets[1]));
      return true;
    });
    each(begin - 2 * kProbeGroup, [&](uint32_t, auto& probe) {
      if (probe.named == kNoSlot) name(probe, 1);
      return true;
    });
    const uint32_t third = begin - 3 * kProbeGroup;
    const uint32_t seen =
        each(third, [&](uint32_t i, auto& probe) { return visit(i, *probe.key, probe.named); });
    if (third < count && seen < std::min(third + kProbeGroup, count)) return seen;
  }
  return count;
}

}  // namespace tpu_sync_native
