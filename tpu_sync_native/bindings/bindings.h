// What each binding file offers to module.cc: one function per exposed type.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace tpu_sync_native {

class Arena;                // arena/arena.h
class ArenaMap;             // client/arena_map.h
class Store;                // store/store.h
enum class Lost : uint8_t;  // client/session.h

void BindGrants(pybind11::module_& module);    // SlotRefs, ReadGrant, WriteGrant
void BindStore(pybind11::module_& module);     // Store, POLICIES
void BindSession(pybind11::module_& module);   // Session, DaemonLost
void BindCatalog(pybind11::module_& module);   // catalog_make_empty
void BindDevices(pybind11::module_& module);   // CopyBackend, one function per backend
void BindTorchTpu(pybind11::module_& module);  // TorchTpuBuffers
void BindFakeDevice(pybind11::module_& module);
void BindCopyEngine(pybind11::module_& module);
void BindFiles(pybind11::module_& module);    // Files, FileReader, FileAppender
void BindStorage(pybind11::module_& module);  // Storage
void BindSegment(pybind11::module_& module);  // scan_segment, read_index, read_lease, crc32c, payload codecs

// The maps of a Python Session, for whoever copies into them. Throws py::cast_error for anything else.
std::shared_ptr<const ArenaMap> ArenaOf(pybind11::handle session);
// The native store of a Python Store, whose Python object must outlive the use of it (py::keep_alive), and
// its arena. Throws py::cast_error for anything else.
struct StoreParts {
  Store* store;
  std::shared_ptr<Arena> arena;
};
StoreParts StoreOf(pybind11::handle store);
// Not Lost::kNo once it is known that the session is lost.
std::shared_ptr<const std::atomic<Lost>> LostFlagOf(pybind11::handle session);

}  // namespace tpu_sync_native
