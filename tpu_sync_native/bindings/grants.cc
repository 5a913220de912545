#include "grants.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bindings.h"

namespace py = pybind11;

namespace tpu_sync_native {

PySlotRefs::PySlotRefs(std::span<const SlotRef> refs)
    : slots(static_cast<py::ssize_t>(refs.size())),
      generations(static_cast<py::ssize_t>(refs.size())),
      offsets(static_cast<py::ssize_t>(refs.size())) {
  uint32_t* const slot = slots.mutable_data();
  uint32_t* const generation = generations.mutable_data();
  uint64_t* const offset = offsets.mutable_data();
  for (size_t i = 0; i < refs.size(); ++i) {
    slot[i] = refs[i].slot;
    generation[i] = refs[i].generation;
    offset[i] = refs[i].offset;
  }
}

PyWriteGrant::PyWriteGrant(LeaseId lease_id, std::span<const Grant> grants_, std::span<const SlotRef> refs_)
    : lease(lease_id), grants(static_cast<py::ssize_t>(grants_.size())), refs(refs_) {
  static_assert(sizeof(Grant) == 1);
  if (!grants_.empty()) std::memcpy(grants.mutable_data(), grants_.data(), grants_.size());
}

bool CheckOutcome(Outcome outcome, LeaseId lease, uint32_t ns, uint64_t session) {
  switch (outcome) {
    case Outcome::kOk:
      return true;
    case Outcome::kCleared:
      return false;
    case Outcome::kUnknownNamespace:
      throw py::value_error("namespace index " + std::to_string(ns) + " is not known to this daemon");
    case Outcome::kUnknownSession:
      throw py::value_error(session == 0 ? "the session has drained or is not open"
                                         : "session " + std::to_string(session) + " is not open");
    case Outcome::kUnknownLease:
      throw py::value_error("lease " + std::to_string(lease) +
                            " is not known: never granted, given back or expired");
    case Outcome::kBadKey:
      throw py::value_error("a key's length is outside what is allowed");
    case Outcome::kBatchTooLarge:
      throw py::value_error("too many keys in one call");
    case Outcome::kDraining:
      throw py::value_error("the daemon is draining");
  }
  throw py::value_error("the daemon answered with an unknown outcome");
}

PyReadGrant ToPython(Outcome outcome, LeaseId lease, std::span<const SlotRef> slots, uint32_t ns,
                     uint64_t session) {
  if (outcome == Outcome::kDraining) return {0, {}};
  CheckOutcome(outcome, lease, ns, session);
  return {lease, slots};
}

PyWriteGrant ToPython(Outcome outcome, LeaseId lease, std::span<const Grant> grants,
                      std::span<const SlotRef> slots, uint32_t ns, uint64_t session, uint32_t key_count) {
  if (outcome == Outcome::kDraining) {
    const std::vector<Grant> refused(key_count, static_cast<Grant>(kGrantDraining));
    return {0, refused, {}};
  }
  CheckOutcome(outcome, lease, ns, session);
  return {lease, grants, slots};
}

void BindGrants(py::module_& module) {
  py::class_<PySlotRefs>(module, "SlotRefs")
      .def_readonly("slots", &PySlotRefs::slots)
      .def_readonly("generations", &PySlotRefs::generations)
      .def_readonly("offsets", &PySlotRefs::offsets)
      .def("__len__", [](const PySlotRefs& refs) { return refs.slots.size(); });
  py::class_<PyReadGrant>(module, "ReadGrant")
      .def_readonly("lease", &PyReadGrant::lease)
      .def_readonly("count", &PyReadGrant::count)
      .def_readonly("refs", &PyReadGrant::refs);
  py::class_<PyWriteGrant>(module, "WriteGrant")
      .def_readonly("lease", &PyWriteGrant::lease)
      .def_readonly("grants", &PyWriteGrant::grants)
      .def_readonly("refs", &PyWriteGrant::refs);
}

}  // namespace tpu_sync_native
