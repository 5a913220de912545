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
  // A slot is looked at once for each use it may have left and once more.
  uint64_t left = std::min<uint64_t>(*looks, uint64_t{size()} * (kUses + 2));
  for (; left > 0 && taken < wanted && size() > 0; --left, --*looks) {
    const bool small_is_large = uint64_t{small_.size()} * kSmallShare > size();
    const bool from_small = !small_.empty() && (small_is_large || main_.empty());
    if (from_small ? LookAtSmall(&victims[taken]) : LookAtMain(&victims[taken])) ++taken;
  }
  return taken;
}

bool S3FifoPolicy::LookAtSmall(uint32_t* victim) {
  const uint32_t slot = small_.back();
  SlotCell& cell = cells_[slot];
  small_.Remove(slot);
  if ((cell.policy & kUses) > 0) {
    cell.policy = kInMain;
    main_.PushFront(slot);
    return false;
  }
  if (!cell.evictable()) {
    small_.PushFront(slot);
    return false;
  }
  *victim = slot;
  return true;
}

bool S3FifoPolicy::LookAtMain(uint32_t* victim) {
  const uint32_t slot = main_.back();
  SlotCell& cell = cells_[slot];
  const bool used = (cell.policy & kUses) > 0;
  if (used) --cell.policy;
  if (used || !cell.evictable()) {
    main_.MoveToFront(slot);
    return false;
  }
  main_.Remove(slot);
  *victim = slot;
  return true;
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
