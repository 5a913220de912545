// Which chunk of a size class goes next. One instance for every class; policy/registry.h makes them by name.
#pragma once

#include <cstdint>
#include <string_view>

#include "slots/slot_cell.h"

namespace tpu_sync_native {

// A policy orders the slots it was given and has not given back; it uses their cells' links and `policy`
// byte. It never decides whether a slot may be evicted: SlotCell::evictable says so, and a slot that is not
// (its store is not committed, or someone loads it) is passed over and offered again later.
//
// The chunks of one request reach Insert, Touch and Renew last to first, so that the beginning of a prefix is
// the most recent of them: a prefix is useful only as far as it is whole, so its end must go first.
//
// Not thread-safe. No method allocates memory.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // The slot is new in the class. `fingerprint` is a hash of its key: the same chunk comes back with the
  // same.
  virtual void Insert(uint32_t slot, uint32_t fingerprint) = 0;
  // The chunk was asked for.
  virtual void Touch(uint32_t slot) = 0;
  // Chunks behind this one in its prefix are new: it becomes as young as if inserted now, so that the end
  // still goes first. Nobody asked for it.
  virtual void Renew(uint32_t slot) = 0;
  // The slot is freed for a reason other than TakeVictims.
  virtual void Remove(uint32_t slot) = 0;

  // Takes out up to `wanted` evictable slots, the one to go first at victims[0]; returns how many. Looks at
  // no more than *looks slots and lowers it by those it looked at: the bound on one call's work.
  virtual uint32_t TakeVictims(uint32_t wanted, uint32_t* looks, uint32_t* victims) = 0;
  // Told of each slot of TakeVictims before its cell is used otherwise.
  virtual void Evicted(uint32_t slot, uint32_t fingerprint) = 0;

  // Walks from the first to go: the first slot, the one after `slot`; kNoSlot at the end. Changes nothing.
  virtual uint32_t Coldest() const = 0;
  virtual uint32_t Warmer(uint32_t slot) const = 0;

  virtual uint32_t size() const = 0;
};

}  // namespace tpu_sync_native
