// Least recently used, tail first (by the order in which the contract hands over a request's chunks).
#pragma once

#include "policy/eviction_policy.h"

namespace tpu_sync_native {

class LruPolicy final : public EvictionPolicy {
 public:
  explicit LruPolicy(SlotCell* cells) : cells_(cells), queue_(cells) {}

  void Insert(uint32_t slot, uint32_t /*fingerprint*/) override { queue_.PushFront(slot); }
  void Touch(uint32_t slot) override { queue_.MoveToFront(slot); }
  void Renew(uint32_t slot) override { queue_.MoveToFront(slot); }
  void Remove(uint32_t slot) override { queue_.Remove(slot); }
  uint32_t TakeVictims(uint32_t wanted, uint32_t* looks, uint32_t* victims) override;
  void Evicted(uint32_t /*slot*/, uint32_t /*fingerprint*/) override {}
  uint32_t Coldest() const override { return queue_.back(); }
  uint32_t Warmer(uint32_t slot) const override { return cells_[slot].prev; }
  uint32_t size() const override { return queue_.size(); }

 private:
  SlotCell* cells_;
  SlotQueue queue_;
};

}  // namespace tpu_sync_native
