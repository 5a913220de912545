#include "policy/s3fifo.h"

#include <algorithm>

namespace tpu_sync_native {
namespace {

// SlotCell::policy: how often the chunk was asked for since it entered its queue, and which queue that is.
constexpr uint8_t kUses = 3;
constexpr uint8_t kInMain = 4;
constexpr uint32_t kSmallShare = 10;  // the small queue aims at a tenth of the class

}  // namespace

SlotQueue& S3FifoPolicy::QueueOf(uint32_t slot) { return cells_[slot].policy & kInMain ? main_ : small_; }

void S3FifoPolicy::Insert(uint32_t slot, uint32_t fingerprint) {
  const bool known = ghosts_->TakeRecent(fingerprint, std::max(size(), 1u));
  cells_[slot].policy = known ? kInMain : 0;
  QueueOf(slot).PushFront(slot);
}

void S3FifoPolicy::Touch(uint32_t slot) {
  uint8_t& policy = cells_[slot].policy;
  if ((policy & kUses) < kUses) ++policy;
}

uint32_t S3FifoPolicy::TakeVictims(uint32_t wanted, uint32_t* looks, uint32_t* victims) {
  uint32_t taken = 0;
  // Looks in a row that found a slot in use: once a queue is all in use, only the other one is left.
  uint32_t small_blocked = 0;
  uint32_t main_blocked = 0;
  // Where everything was asked for since, somebody has to go all the same, and before the looks run out.
  uint32_t spared = 4 * wanted + 64;
  for (; *looks > 0 && taken < wanted; --*looks) {
    const bool small_open = small_blocked < small_.size();
    const bool main_open = main_blocked < main_.size();
    if (!small_open && !main_open) break;
    const bool small_is_large = uint64_t{small_.size()} * kSmallShare > size();
    const bool from_small = small_open && (small_is_large || !main_open);
    uint32_t& blocked = from_small ? small_blocked : main_blocked;
    const Look look =
        from_small ? LookAtSmall(spared > 0, &victims[taken]) : LookAtMain(spared > 0, &victims[taken]);
    blocked = look == Look::kBlocked ? blocked + 1 : 0;
    if (look == Look::kVictim) ++taken;
    if (look == Look::kMoved) --spared;
    if (from_small && look == Look::kMoved) main_blocked = 0;  // what moved may be the one to go
  }
  return taken;
}

S3FifoPolicy::Look S3FifoPolicy::LookAtSmall(bool spare_used, uint32_t* victim) {
  const uint32_t slot = small_.back();
  SlotCell& cell = cells_[slot];
  if (spare_used && (cell.policy & kUses) > 0) {
    small_.Remove(slot);
    cell.policy = kInMain;
    main_.PushFront(slot);
    return Look::kMoved;
  }
  if (!cell.evictable()) {
    small_.MoveToFront(slot);
    return Look::kBlocked;
  }
  small_.Remove(slot);
  *victim = slot;
  return Look::kVictim;
}

S3FifoPolicy::Look S3FifoPolicy::LookAtMain(bool spare_used, uint32_t* victim) {
  const uint32_t slot = main_.back();
  SlotCell& cell = cells_[slot];
  if (spare_used && (cell.policy & kUses) > 0) {
    --cell.policy;
    main_.MoveToFront(slot);
    return Look::kMoved;
  }
  if (!cell.evictable()) {
    main_.MoveToFront(slot);
    return Look::kBlocked;
  }
  main_.Remove(slot);
  *victim = slot;
  return Look::kVictim;
}

void S3FifoPolicy::Evicted(uint32_t slot, uint32_t fingerprint) {
  if (!(cells_[slot].policy & kInMain)) ghosts_->Add(fingerprint);
}

uint32_t S3FifoPolicy::Coldest() const { return small_.empty() ? main_.back() : small_.back(); }

uint32_t S3FifoPolicy::Warmer(uint32_t slot) const {
  const SlotCell& cell = cells_[slot];
  if (cell.prev == kNoSlot && !(cell.policy & kInMain)) return main_.back();
  return cell.prev;
}

}  // namespace tpu_sync_native
