// What a lease hands out, as arrays.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>

#include "store/store.h"

namespace tpu_sync_native {

struct PySlotRefs {
  explicit PySlotRefs(std::span<const SlotRef> refs);
  pybind11::array_t<uint32_t> slots;
  pybind11::array_t<uint32_t> generations;
  pybind11::array_t<uint64_t> offsets;
};

struct PyReadGrant {
  PyReadGrant(LeaseId lease_id, std::span<const SlotRef> refs_)
      : lease(lease_id), count(refs_.size()), refs(refs_) {}
  LeaseId lease;
  size_t count;
  PySlotRefs refs;
};

struct PyWriteGrant {
  PyWriteGrant(LeaseId lease_id, std::span<const Grant> grants_, std::span<const SlotRef> refs_);
  LeaseId lease;
  pybind11::array_t<uint8_t> grants;
  PySlotRefs refs;
};

// The answers of the store and of the ring, as Python sees them. Draining reads as "nothing": a reader
// misses, a writer gets kGrantDraining for every key. Any other refusal is a py::value_error that says what
// was wrong.
inline constexpr uint8_t kGrantDraining = 4;
PyReadGrant ToPython(Outcome outcome, LeaseId lease, std::span<const SlotRef> slots, uint32_t ns,
                     uint64_t session);
PyWriteGrant ToPython(Outcome outcome, LeaseId lease, std::span<const Grant> grants,
                      std::span<const SlotRef> slots, uint32_t ns, uint64_t session, uint32_t key_count);
// True; false for kCleared.
bool CheckOutcome(Outcome outcome, LeaseId lease, uint32_t ns, uint64_t session);

}  // namespace tpu_sync_native
