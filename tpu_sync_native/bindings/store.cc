// Store: the daemon side; owns the arena, the native store and the thread that
// serves the rings.
#include "store/store.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "arena/arena.h"
#include "bindings.h"
#include "gil.h"
#include "grants.h"
#include "keys.h"
#include "policy/registry.h"
#include "ring/ring_server.h"
#include "store/arena_check.h"
#include "store/checker.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

HostBoot HostBootOf(const std::string& bytes) {
  HostBoot host;
  if (bytes.size() != sizeof(host.bytes)) {
    throw std::invalid_argument("host_boot has " + std::to_string(bytes.size()) + " bytes, 16 are wanted");
  }
  std::memcpy(host.bytes, bytes.data(), sizeof(host.bytes));
  return host;
}

ChecksumPolicy ChecksumPolicyOf(const std::string& name) {
  if (name == "off") return ChecksumPolicy::kOff;
  if (name == "sampled") return ChecksumPolicy::kSampled;
  if (name == "always") return ChecksumPolicy::kAlways;
  throw std::invalid_argument("checksum is '" + name + "', not off, sampled or always");
}

py::dict ToPython(const DamagedChunk& chunk) {
  py::dict row;
  row["namespace"] = py::bytes(chunk.ns_id);
  row["key"] = py::bytes(chunk.key);
  row["offset"] = chunk.offset;
  return row;
}

py::dict CheckArenaByFds(int data_fd, int meta_fd) {
  const ArenaReport report = WithoutGil([&] { return CheckArena(data_fd, meta_fd); });
  py::dict row;
  row["chunks"] = report.chunks;
  row["checked"] = report.checked;
  row["unchecked"] = report.unchecked;
  row["changed"] = report.changed;
  row["bytes"] = report.bytes;
  py::list damaged;
  for (const DamagedChunk& chunk : report.damaged) damaged.append(ToPython(chunk));
  row["damaged"] = damaged;
  return row;
}

std::string WhyNotKeptByName(int data_fd, int meta_fd, uint64_t dram_bytes, uint64_t slab_bytes,
                             uint32_t slots_max, const std::string& host_boot) {
  StoreOptions options;
  options.slots_max = slots_max;
  options.host = HostBootOf(host_boot);
  const uint64_t slab = slab_bytes == 0 ? DefaultSlabBytes(dram_bytes) : slab_bytes;
  return WithoutGil([&] { return Store::WhyNotKept(data_fd, dram_bytes, slab, meta_fd, options); });
}

class PyStore {
 public:
  PyStore(int data_fd, int meta_fd, int doorbell_fd, uint64_t dram_bytes, uint64_t slab_bytes,
          uint32_t slots_max, const std::string& policy, uint64_t boot_id, uint64_t lease_ms,
          const std::string& host_boot, bool keep, const std::string& checksum) {
    StoreOptions options;
    options.boot_id = boot_id;
    options.host = HostBootOf(host_boot);
    options.keep = keep;
    options.checksum = ChecksumPolicyOf(checksum);
    options.slots_max = slots_max;
    options.policy = policy;
    options.lease_ms = lease_ms;
    arena_ = std::make_shared<Arena>(data_fd, dram_bytes,
                                     slab_bytes == 0 ? DefaultSlabBytes(dram_bytes) : slab_bytes);
    store_ = std::make_unique<Store>(arena_, meta_fd, options);
    checker_ = std::make_unique<Checker>(*store_, arena_);
    server_ = std::make_unique<RingServer>(*store_, doorbell_fd);
  }

  ~PyStore() { Stop(); }

  void Start() {
    arena_->StartPopulation();
    checker_->Start();
    server_->Start();
  }

  void Stop() {
    const py::gil_scoped_release release;
    server_->Stop();
    checker_->Stop();
    arena_->StopPopulation();
  }

  uint64_t PopulatedBytes() const { return arena_->populated_bytes(); }

  std::optional<std::string> PopulationError() const {
    std::string error = arena_->population_error();
    if (error.empty()) return std::nullopt;
    return error;
  }

  uint32_t OpenNamespace(const py::bytes& id, uint64_t chunk_bytes) {
    const std::string text = id;
    return WithoutGil([&] { return store_->OpenNamespace(text, chunk_bytes); });
  }

  uint64_t ClearNamespace(uint32_t ns) {
    return WithoutGil([&] { return store_->ClearNamespace(ns); });
  }
  void SetFloor(uint32_t ns, uint64_t bytes) {
    WithoutGil([&] { store_->SetFloor(ns, bytes); });
  }
  uint64_t EpochBelow(uint32_t ns) const {
    return WithoutGil([&] { return store_->EpochBelow(ns); });
  }

  void SetEpochBelow(uint32_t ns, uint64_t word) {
    const py::gil_scoped_release release;
    store_->SetEpochBelow(ns, word);
  }
  void WithholdNamespace(uint32_t ns) {
    const py::gil_scoped_release release;
    store_->WithholdNamespace(ns);
  }
  bool AwaitSettled(uint32_t ns, double wait_s) {
    return WithoutGil([&] { return store_->AwaitSettled(ns, static_cast<uint64_t>(wait_s * 1000)); });
  }

  void OpenSession(SessionId session, GroupId group, uint32_t pid, std::optional<int> ring_fd, uint64_t start,
                   uint64_t space, bool maps) {
    const py::gil_scoped_release release;
    store_->OpenSession(session, group, pid, {start, space, maps});
    if (!ring_fd) return;
    try {
      server_->Add(session, *ring_fd);
    } catch (...) {
      store_->CloseSession(session, /*drained=*/true);
      throw;
    }
  }

  // What the session had posted counts; then its leases go back.
  bool CloseSession(SessionId session, bool drained, const std::optional<std::vector<LeaseId>>& held) {
    const py::gil_scoped_release release;
    server_->Remove(session);
    return store_->CloseSession(session, drained, held ? &*held : nullptr);
  }

  bool Succeed(SessionId former, SessionId heir) {
    return WithoutGil([&] { return store_->Succeed(former, heir); });
  }

  uint32_t Lookup(uint32_t ns, const py::object& keys) const {
    const PackedKeys packed(keys);
    return WithoutGil([&] { return store_->LongestPrefix(ns, packed.batch()); });
  }

  py::tuple LookupTiers(uint32_t ns, const py::object& keys) const {
    const PackedKeys packed(keys);
    const TierHits hits = WithoutGil([&] { return store_->LookupTiers(ns, packed.batch()); });
    return py::make_tuple(hits.chunks, hits.host_chunks);
  }

  PyReadGrant Lease(SessionId session, uint32_t ns, const py::object& keys) {
    const PackedKeys packed(keys);
    const ReadGrant grant = WithoutGil([&] { return store_->Lease(session, ns, packed.batch()); });
    return ToPython(grant.outcome, grant.lease, grant.slots, ns, session);
  }

  PyWriteGrant Reserve(SessionId session, uint32_t ns, const py::object& keys) {
    const PackedKeys packed(keys);
    const WriteGrant grant = WithoutGil([&] { return store_->Reserve(session, ns, packed.batch()); });
    return ToPython(grant.outcome, grant.lease, grant.grants, grant.slots, ns, session, packed.batch().count);
  }

  void Release(SessionId session, LeaseId lease) {
    CheckOutcome(WithoutGil([&] { return store_->Release(session, lease); }), lease, 0, session);
  }

  bool Commit(SessionId session, LeaseId lease, const py::object& keep) {
    const std::vector<uint8_t> bits = PackKeep(keep);
    return CheckOutcome(WithoutGil([&] { return store_->Commit(session, lease, bits); }), lease, 0, session);
  }

  void Abort(SessionId session, LeaseId lease) {
    CheckOutcome(WithoutGil([&] { return store_->Abort(session, lease); }), lease, 0, session);
  }

  void Touch(SessionId session, uint32_t ns, const py::object& keys) {
    const PackedKeys packed(keys);
    CheckOutcome(WithoutGil([&] { return store_->Touch(session, ns, packed.batch()); }), 0, ns, session);
  }

  uint32_t Prefetch(uint32_t ns, const py::object& keys) {
    const PackedKeys packed(keys);
    return WithoutGil([&] { return store_->Prefetch(ns, packed.batch()); });
  }

  StoreParts parts() const { return {store_.get(), arena_}; }

  SessionId last_session() const { return store_->last_session(); }

  py::list RestoredSessions() const {
    const auto all = WithoutGil([&] { return store_->RestoredSessions(); });
    py::list rows;
    for (const RestoredSession& session : all) {
      py::dict row;
      row["session"] = session.session;
      row["group"] = session.group;
      row["boot_id"] = session.boot_id;
      row["pid"] = session.pid;
      row["start"] = session.mark.start;
      row["space"] = session.mark.space;
      rows.append(row);
    }
    return rows;
  }

  void SetDraining(bool draining) {
    WithoutGil([&] { store_->SetDraining(draining); });
  }

  void ExpireLeases(uint64_t now_ms) {
    WithoutGil([&] { store_->ExpireLeases(now_ms); });
  }

  uint64_t Evict(uint32_t ns, uint64_t bytes) {
    return WithoutGil([&] { return store_->Evict(ns, bytes); });
  }

  py::dict Stats() const {
    std::vector<Counter> counters;
    {
      const py::gil_scoped_release release;
      counters = store_->Stats();
      for (const Counter& counter : server_->Counters()) counters.push_back(counter);
    }
    py::dict stats;
    for (const Counter& counter : counters) stats[py::str(std::string(counter.name))] = counter.value;
    return stats;
  }

  py::list Namespaces() const {
    const auto all = WithoutGil([&] { return store_->Namespaces(); });
    py::list rows;
    for (const Store::NamespaceStats& ns : all) {
      py::dict row;
      row["index"] = ns.index;
      row["id"] = py::bytes(ns.id);
      row["chunk_bytes"] = ns.chunk_bytes;
      row["epoch"] = ns.epoch;
      row["chunks"] = ns.chunks;
      row["bytes"] = ns.bytes;
      row["hits"] = ns.hits;
      row["misses"] = ns.misses;
      row["stores"] = ns.stores;
      row["evictions"] = ns.evictions;
      row["floor"] = ns.floor_bytes;
      rows.append(row);
    }
    return rows;
  }

  py::list Sessions() const {
    const auto all = WithoutGil([&] { return store_->Sessions(); });
    py::list rows;
    for (const Store::SessionStats& session : all) {
      py::dict row;
      row["session"] = session.session;
      row["group"] = session.group;
      row["pid"] = session.pid;
      row["read_leases"] = session.read_leases;
      row["write_leases"] = session.write_leases;
      row["pinned_slots"] = session.pinned_slots;
      row["reserved_slots"] = session.reserved_slots;
      rows.append(row);
    }
    return rows;
  }

  py::list ListChunks(uint32_t ns, std::optional<uint32_t> after, uint32_t limit) const {
    const auto chunks = WithoutGil([&] { return store_->ListChunks(ns, after.value_or(kNoSlot), limit); });
    py::list rows;
    for (const Store::ChunkInfo& chunk : chunks) {
      py::dict row;
      row["key"] = py::bytes(chunk.key);
      row["slot"] = chunk.slot;
      row["generation"] = chunk.generation;
      row["pins"] = chunk.pins;
      row["offset"] = chunk.offset;
      row["state"] = chunk.state;
      rows.append(row);
    }
    return rows;
  }

  py::list TakeDamaged() {
    const auto chunks = WithoutGil([&] { return store_->TakeDamaged(); });
    py::list rows;
    for (const DamagedChunk& chunk : chunks) rows.append(ToPython(chunk));
    return rows;
  }

  std::vector<std::string> Audit() const {
    return WithoutGil([&] { return store_->Audit(); });
  }

 private:
  // Destroyed in reverse: the server and the checker first, for they use the store, which uses
  // the arena.
  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Checker> checker_;
  std::unique_ptr<RingServer> server_;
};

}  // namespace

StoreParts StoreOf(py::handle store) { return store.cast<const PyStore&>().parts(); }

void BindStore(py::module_& module) {
  py::class_<PyStore>(module, "Store")
      .def(py::init<int, int, int, uint64_t, uint64_t, uint32_t, const std::string&, uint64_t, uint64_t,
                    const std::string&, bool, const std::string&>(),
           py::kw_only(), py::arg("data_fd"), py::arg("meta_fd"), py::arg("doorbell_fd"),
           py::arg("dram_bytes"), py::arg("slab_bytes") = 0, py::arg("slots_max") = 0,
           py::arg("policy") = "lru", py::arg("boot_id"), py::arg("lease_ms") = 600'000,
           py::arg("host_boot") = py::bytes(std::string(sizeof(HostBoot), 0)), py::arg("keep") = false,
           py::arg("checksum") = "off")
      .def("start", &PyStore::Start)
      .def("stop", &PyStore::Stop)
      .def("populated_bytes", &PyStore::PopulatedBytes)
      .def("population_error", &PyStore::PopulationError)
      .def("open_namespace", &PyStore::OpenNamespace, py::arg("id"), py::arg("chunk_bytes"))
      .def("clear_namespace", &PyStore::ClearNamespace, py::arg("ns"))
      .def("set_floor", &PyStore::SetFloor, py::arg("ns"), py::arg("bytes"))
      .def("epoch_below", &PyStore::EpochBelow, py::arg("ns"))
      .def("set_epoch_below", &PyStore::SetEpochBelow, py::arg("ns"), py::arg("word"))
      .def("withhold_namespace", &PyStore::WithholdNamespace, py::arg("ns"))
      .def("await_settled", &PyStore::AwaitSettled, py::arg("ns"), py::arg("wait_s"))
      .def("open_session", &PyStore::OpenSession, py::arg("session"), py::arg("group"), py::arg("pid"),
           py::arg("ring_fd"), py::arg("start") = 0, py::arg("space") = 0, py::arg("maps") = true)
      .def("last_session", &PyStore::last_session)
      .def("restored_sessions", &PyStore::RestoredSessions)
      .def("close_session", &PyStore::CloseSession, py::arg("session"), py::arg("drained"),
           py::arg("held") = py::none())
      .def("succeed", &PyStore::Succeed, py::arg("former"), py::arg("heir"))
      .def("lookup", &PyStore::Lookup, py::arg("ns"), py::arg("keys"))
      .def("lookup_tiers", &PyStore::LookupTiers, py::arg("ns"), py::arg("keys"))
      .def("lease", &PyStore::Lease, py::arg("session"), py::arg("ns"), py::arg("keys"))
      .def("release", &PyStore::Release, py::arg("session"), py::arg("lease"))
      .def("reserve", &PyStore::Reserve, py::arg("session"), py::arg("ns"), py::arg("keys"))
      .def("commit", &PyStore::Commit, py::arg("session"), py::arg("lease"), py::arg("keep") = py::none())
      .def("abort", &PyStore::Abort, py::arg("session"), py::arg("lease"))
      .def("touch", &PyStore::Touch, py::arg("session"), py::arg("ns"), py::arg("keys"))
      .def("prefetch", &PyStore::Prefetch, py::arg("ns"), py::arg("keys"))
      .def("set_draining", &PyStore::SetDraining, py::arg("draining"))
      .def("expire_leases", &PyStore::ExpireLeases, py::arg("now_ms"))
      .def("evict", &PyStore::Evict, py::arg("ns"), py::arg("bytes"))
      .def("stats", &PyStore::Stats)
      .def("namespaces", &PyStore::Namespaces)
      .def("sessions", &PyStore::Sessions)
      .def("list_chunks", &PyStore::ListChunks, py::arg("ns"), py::arg("after"), py::arg("limit"))
      .def("take_damaged", &PyStore::TakeDamaged)
      .def("audit", &PyStore::Audit);
  py::tuple policies(static_cast<py::ssize_t>(PolicyNames().size()));
  for (size_t i = 0; i < PolicyNames().size(); ++i) policies[i] = std::string(PolicyNames()[i]);
  module.attr("POLICIES") = policies;
  module.def("check_arena", &CheckArenaByFds, py::kw_only(), py::arg("data_fd"), py::arg("meta_fd"));
  module.def("why_not_kept", &WhyNotKeptByName, py::kw_only(), py::arg("data_fd"), py::arg("meta_fd"),
             py::arg("dram_bytes"), py::arg("slab_bytes") = 0, py::arg("slots_max") = 0,
             py::arg("host_boot"));
}

}  // namespace tpu_sync_native
