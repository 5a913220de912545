// S3-FIFO (Yang et al., SOSP 2023): a small queue that new chunks must survive, a main queue for those that
// were asked for again, and ghosts of what the small queue let go. One pass over many chunks, or a working
// set larger than the class, leaves the main queue alone.
#pragma once

#include <memory>

#include "policy/eviction_policy.h"
#include "policy/ghosts.h"

namespace tpu_sync_native {

class S3FifoPolicy final : public EvictionPolicy {
 public:
  // `ghosts` may be shared by the classes of one store.
  S3FifoPolicy(SlotCell* cells, std::shared_ptr<Ghosts> ghosts)
      : cells_(cells), ghosts_(std::move(ghosts)), small_(cells), main_(cells) {}

  void Insert(uint32_t slot, uint32_t fingerprint) override;
  void Touch(uint32_t slot) override;
  void Renew(uint32_t slot) override { QueueOf(slot).MoveToFront(slot); }
  void Remove(uint32_t slot) override { QueueOf(slot).Remove(slot); }
  uint32_t TakeVictims(uint32_t wanted, uint32_t* looks, uint32_t* victims) override;
  void Evicted(uint32_t slot, uint32_t fingerprint) override;
  uint32_t Coldest() const override;
  uint32_t Warmer(uint32_t slot) const override;
  uint32_t size() const override { return small_.size() + main_.size(); }

 private:
  // What a look at the end of a queue came to.
  enum class Look : uint8_t {
    kVictim,   // taken out
    kMoved,    // asked for since: it stays, with one use less
    kBlocked,  // in use by someone
  };

  SlotQueue& QueueOf(uint32_t slot);
  // `spare_used`: whether a chunk that was asked for since stays.
  Look LookAtSmall(bool spare_used, uint32_t* victim);
  Look LookAtMain(bool spare_used, uint32_t* victim);

  SlotCell* cells_;
  std::shared_ptr<Ghosts> ghosts_;
  SlotQueue small_;
  SlotQueue main_;
};

}  // namespace tpu_sync_native
