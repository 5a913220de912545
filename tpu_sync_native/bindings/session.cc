// Session: the engine side of shared memory.
#include "client/session.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "bindings.h"
#include "gil.h"
#include "grants.h"
#include "keys.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

PyObject* daemon_lost = nullptr;  // the exception type; lives as long as the module

[[noreturn]] void ThrowLost(Lost lost) {
  py::set_error(daemon_lost, ToText(lost));
  throw py::error_already_set();
}

constexpr double kWaitMaxS = 86'400;

using Numbers = py::array_t<uint32_t, py::array::c_style | py::array::forcecast>;

void CheckSameSize(const char* what, const Numbers& slots, const Numbers& generations) {
  if (slots.size() == generations.size()) return;
  throw py::value_error(std::string(what) + ": " + std::to_string(slots.size()) + " slots, " +
                        std::to_string(generations.size()) + " generations");
}

// Exports bytes of the arena; memoryviews hold it, and it holds the mapping.
struct ArenaBytes {
  std::shared_ptr<const ArenaMap> arena;
  uint64_t offset;
  uint64_t length;
  bool writable;
};

class PySession {
 public:
  PySession(int data_fd, int meta_fd, int ring_fd, int doorbell_fd, std::optional<int> catalog_fd,
            uint64_t deadline_ms)
      : session_(data_fd, meta_fd, ring_fd, doorbell_fd, catalog_fd.value_or(-1), deadline_ms) {}

  Session& session() { return session_; }

  TierHits LookupTiers(uint32_t ns, const py::object& keys) const {
    const PackedKeys packed(keys);
    if (packed.batch().count <= kLookupKeysWithGilMax) return session_.Lookup(ns, packed.batch());
    return WithoutGil([&] { return session_.Lookup(ns, packed.batch()); });
  }

  py::array_t<bool> Present(uint32_t ns, const py::object& keys) const {
    const PackedKeys packed(keys);
    py::array_t<bool> present(packed.batch().count);
    bool* const out = present.mutable_data();
    if (packed.batch().count <= kLookupKeysWithGilMax) {
      session_.Present(ns, packed.batch(), out);
    } else {
      WithoutGil([&] { session_.Present(ns, packed.batch(), out); });
    }
    return present;
  }

  PyReadGrant Lease(uint32_t ns, const py::object& keys) {
    const PackedKeys packed(keys);
    Incoming reply;
    Call({.op = Op::kLease, .ns = ns, .keys = &packed.batch()}, &reply);
    return ToPython(reply.outcome, reply.lease, reply.slots, ns, 0);
  }

  PyWriteGrant Reserve(uint32_t ns, const py::object& keys) {
    const PackedKeys packed(keys);
    Incoming reply;
    Call({.op = Op::kReserve, .ns = ns, .keys = &packed.batch()}, &reply);
    return ToPython(reply.outcome, reply.lease, reply.grants, reply.slots, ns, 0, packed.batch().count);
  }

  bool Commit(LeaseId lease, const py::object& keep, bool wait) {
    const std::vector<uint8_t> bits = PackKeep(keep);
    const Outgoing request{.op = Op::kCommit, .lease = lease, .keep = bits};
    if (!wait) {
      Post(request);
      return true;
    }
    Incoming reply;
    Call(request, &reply);
    return CheckOutcome(reply.outcome, lease, 0, 0);
  }

  void Release(LeaseId lease) { Post({.op = Op::kRelease, .lease = lease}); }
  void Abort(LeaseId lease) { Post({.op = Op::kAbort, .lease = lease}); }
  void Drained() { Post({.op = Op::kDrained}); }
  void Touch(uint32_t ns, const py::object& keys) {
    const PackedKeys packed(keys);
    Post({.op = Op::kTouch, .ns = ns, .keys = &packed.batch()});
  }
  void Renew(uint32_t ns, const py::object& keys) {
    const PackedKeys packed(keys);
    Post({.op = Op::kRenew, .ns = ns, .keys = &packed.batch()});
  }
  void Prefetch(uint32_t ns, const py::object& keys) {
    const PackedKeys packed(keys);
    Post({.op = Op::kPrefetch, .ns = ns, .keys = &packed.batch()});
  }
  void Ping() {
    Incoming reply;
    Call({.op = Op::kPing}, &reply);
  }

  py::object View(uint64_t offset, uint64_t length, bool writable) const {
    const std::shared_ptr<const ArenaMap>& arena = session_.arena();
    if (length > arena->data_bytes() || offset > arena->data_bytes() - length) {
      throw py::value_error("view: offset " + std::to_string(offset) + " and length " +
                            std::to_string(length) + " lie outside the arena of " +
                            std::to_string(arena->data_bytes()) + " bytes");
    }
    const py::object bytes = py::cast(ArenaBytes{arena, offset, length, writable});
    PyObject* const view = PyMemoryView_FromObject(bytes.ptr());
    if (view == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(view);
  }

  uint32_t WaitReady(const Numbers& slots, const Numbers& generations, double timeout_s) const {
    CheckSameSize("wait_ready", slots, generations);
    const auto count = static_cast<size_t>(slots.size());
    // NaN is no time at all.
    const auto timeout_ns = static_cast<uint64_t>(timeout_s > 0 ? std::min(timeout_s, kWaitMaxS) * 1e9 : 0);
    const std::span<const uint32_t> of_slots{slots.data(), count}, of_generations{generations.data(), count};
    const auto wait = [&] { return session_.WaitReady(of_slots, of_generations, SteadyNs() + timeout_ns); };
    return timeout_ns == 0 && count <= kLookupKeysWithGilMax ? wait() : WithoutGil(wait);
  }

  py::array_t<bool> Unchanged(const Numbers& slots, const Numbers& generations) const {
    CheckSameSize("unchanged", slots, generations);
    py::array_t<bool> unchanged(slots.size());
    const auto count = static_cast<size_t>(slots.size());
    session_.Unchanged({slots.data(), count}, {generations.data(), count}, unchanged.mutable_data());
    return unchanged;
  }

  py::dict Counters() const {
    py::dict counters;
    for (const Counter& counter : session_.Counters())
      counters[py::str(std::string(counter.name))] = counter.value;
    return counters;
  }

 private:
  void Call(const Outgoing& request, Incoming* reply) {
    const Lost lost = WithoutGil([&] { return session_.Call(request, reply); });
    if (lost != Lost::kNo) ThrowLost(lost);
  }

  // Posting takes a microsecond, so it is first tried with the GIL held.
  void Post(const Outgoing& request) {
    Posted posted = session_.Post(request, /*may_wait=*/false);
    if (posted == Posted::kWouldWait)
      posted = WithoutGil([&] { return session_.Post(request, /*may_wait=*/true); });
    if (posted == Posted::kLost) ThrowLost(session_.lost());
  }

  Session session_;
};

}  // namespace

std::shared_ptr<const ArenaMap> ArenaOf(py::handle session) {
  return session.cast<PySession&>().session().arena();
}

std::shared_ptr<const std::atomic<Lost>> LostFlagOf(py::handle session) {
  return session.cast<PySession&>().session().lost_flag();
}

void BindSession(py::module_& module) {
  daemon_lost = PyErr_NewException("tpu_sync_native.DaemonLost", PyExc_RuntimeError, nullptr);
  if (daemon_lost == nullptr) throw py::error_already_set();
  module.attr("DaemonLost") = py::handle(daemon_lost);

  py::class_<ArenaBytes>(module, "_ArenaBytes", py::buffer_protocol()).def_buffer([](ArenaBytes& bytes) {
    return py::buffer_info(bytes.arena->data() + bytes.offset, 1, py::format_descriptor<uint8_t>::format(), 1,
                           {static_cast<py::ssize_t>(bytes.length)}, {1}, !bytes.writable);
  });

  py::class_<PySession>(module, "Session")
      .def(py::init<int, int, int, int, std::optional<int>, uint64_t>(), py::kw_only(), py::arg("data_fd"),
           py::arg("meta_fd"), py::arg("ring_fd"), py::arg("doorbell_fd"), py::arg("catalog_fd") = py::none(),
           py::arg("deadline_ms") = 50)
      .def_property_readonly("boot_id", [](PySession& self) { return self.session().arena()->boot_id(); })
      .def_property_readonly("arena_id",
                             [](PySession& self) {
                               const MetaHeader& header = self.session().arena()->header();
                               return py::bytes(reinterpret_cast<const char*>(header.arena_id),
                                                sizeof(header.arena_id));
                             })
      .def_property_readonly("data_bytes",
                             [](PySession& self) { return self.session().arena()->data_bytes(); })
      .def_property_readonly("lost", [](PySession& self) { return self.session().lost() != Lost::kNo; })
      .def("mark_lost", [](PySession& self) { self.session().MarkLost(); })
      .def(
          "lookup",
          [](const PySession& self, uint32_t ns, const py::object& keys) {
            return self.LookupTiers(ns, keys).chunks;
          },
          py::arg("ns"), py::arg("keys"))
      .def(
          "lookup_tiers",
          [](const PySession& self, uint32_t ns, const py::object& keys) {
            const TierHits hits = self.LookupTiers(ns, keys);
            return py::make_tuple(hits.chunks, hits.host_chunks);
          },
          py::arg("ns"), py::arg("keys"))
      .def("present", &PySession::Present, py::arg("ns"), py::arg("keys"))
      .def("lease", &PySession::Lease, py::arg("ns"), py::arg("keys"))
      .def("reserve", &PySession::Reserve, py::arg("ns"), py::arg("keys"))
      .def("release", &PySession::Release, py::arg("lease"))
      .def("commit", &PySession::Commit, py::arg("lease"), py::arg("keep") = py::none(), py::kw_only(),
           py::arg("wait") = true)
      .def("abort", &PySession::Abort, py::arg("lease"))
      .def("touch", &PySession::Touch, py::arg("ns"), py::arg("keys"))
      .def("renew", &PySession::Renew, py::arg("ns"), py::arg("keys"))
      .def("prefetch", &PySession::Prefetch, py::arg("ns"), py::arg("keys"))
      .def("wait_ready", &PySession::WaitReady, py::arg("slots"), py::arg("generations"),
           py::arg("timeout_s"))
      .def("ping", &PySession::Ping)
      .def(
          "epoch_below", [](PySession& self, uint32_t ns) { return self.session().EpochBelow(ns); },
          py::arg("ns"))
      .def("drained", &PySession::Drained)
      .def("view", &PySession::View, py::arg("offset"), py::arg("length"), py::arg("writable"))
      .def("unchanged", &PySession::Unchanged, py::arg("slots"), py::arg("generations"))
      .def("counters", &PySession::Counters)
      .def("close", [](PySession& self) { self.session().MarkLost(); });
}

}  // namespace tpu_sync_native
