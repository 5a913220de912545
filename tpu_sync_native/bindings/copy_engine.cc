// CopyEngine as Python sees it. Arrays are read while the GIL is held; copying, waiting and closing release
// it.
#include "tpu_sync_native/copy_engine.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "client/arena_map.h"
#include "client/index_guard.h"
#include "copy/reference.h"
#include "devices.h"
#include "gil.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

// Blocks up to which a submit keeps the GIL: some 25 ns are spent on each.
constexpr size_t kSubmitBlocksWithGilMax = 1024;

// A one-dimensional integer array of T: the caller's own when its type fits, a converted copy otherwise.
template <typename T>
class Integers {
 public:
  Integers(const py::object& object, const char* name) {
    const py::array any = py::array::ensure(object);
    if (!any) {
      PyErr_Clear();
      throw std::invalid_argument(std::string(name) + " is not an array of integers");
    }
    const char kind = any.dtype().kind();
    if (any.size() != 0 && kind != 'i' && kind != 'u') {
      throw std::invalid_argument(std::string(name) + " does not hold integers");
    }
    array_ = py::array_t<T, py::array::c_style | py::array::forcecast>::ensure(any);
  }
  std::span<const T> view() const { return {array_.data(), static_cast<size_t>(array_.size())}; }

 private:
  py::array_t<T, py::array::c_style | py::array::forcecast> array_;
};

CopyDirection ParseDirection(const std::string& direction) {
  if (direction == "store") return CopyDirection::kStore;
  if (direction == "load") return CopyDirection::kLoad;
  throw std::invalid_argument("direction is '" + direction + "', allowed are 'store' and 'load'");
}

std::vector<uint64_t> Rows(const py::object& extents) {
  const auto rows = py::array_t<uint64_t, py::array::c_style | py::array::forcecast>::ensure(extents);
  if (!rows || rows.ndim() != 2 || rows.shape(1) != 3) {
    PyErr_Clear();
    throw std::invalid_argument("extents must have shape (n, 3): source, target, length");
  }
  return {rows.data(), rows.data() + rows.size()};
}

std::shared_ptr<const ArenaMap> MapsOf(const py::object& session) {
  try {
    return ArenaOf(session);
  } catch (const py::cast_error&) {
    throw py::type_error("session must be a Session or None");
  }
}

class PyCopyEngine {
 public:
  PyCopyEngine(const py::object& session, int threads, const std::optional<py::memoryview>& arena,
               uint64_t ready_deadline_ms, std::shared_ptr<CopyBackend> backend) {
    CopyEngineOptions options;
    options.backend = std::move(backend);
    options.threads = threads;
    options.ready_deadline_ms = ready_deadline_ms;
    if (!session.is_none()) {
      if (arena) throw std::invalid_argument("session and arena exclude each other");
      map_ = MapsOf(session);
      options.arena = reinterpret_cast<uint8_t*>(map_->data());
      options.arena_bytes = map_->data_bytes();
      options.guard = std::make_shared<IndexGuard>(map_, LostFlagOf(session));
    } else if (arena) {
      arena_ = std::make_unique<py::buffer_info>(py::buffer(*arena).request(/*writable=*/true));
      options.arena = static_cast<uint8_t*>(arena_->ptr);
      options.arena_bytes = static_cast<uint64_t>(arena_->size) * arena_->itemsize;
    }
    // A device may take its time to map the arena.
    engine_ = WithoutGil([&] { return std::make_unique<CopyEngine>(options); });
  }

  ~PyCopyEngine() {
    // What may still be written to is never given back.
    if (engine_->usable_here() && !engine_->Unlanded().empty()) (void)arena_.release();
    WithoutGil([&] { engine_.reset(); });
  }

  int AddLayout(const std::vector<std::tuple<uint64_t, uint64_t, uint64_t>>& regions, uint64_t num_blocks,
                uint32_t blocks_per_chunk, uint64_t chunk_offset) {
    CopyLayoutSpec spec;
    for (const auto& [address, stride_bytes, page_bytes] : regions) {
      spec.regions.push_back({address, stride_bytes, page_bytes});
    }
    spec.num_blocks = num_blocks;
    spec.blocks_per_chunk = blocks_per_chunk;
    spec.chunk_offset = chunk_offset;
    return engine_->AddLayout(spec);
  }

  void Submit(uint64_t job, const std::string& direction, const py::object& layouts,
              const py::object& group_sizes, const py::object& block_ids, const py::object& block_positions,
              const py::object& refs, const py::object& buffers, std::optional<uint64_t> stream) {
    py::object slots_object, generations_object, offsets_object;
    if (py::isinstance<py::tuple>(refs)) {
      const auto parts = py::reinterpret_borrow<py::tuple>(refs);
      if (parts.size() != 3) throw std::invalid_argument("refs must be (slots, generations, offsets)");
      slots_object = parts[0];
      generations_object = parts[1];
      offsets_object = parts[2];
    } else {
      slots_object = refs.attr("slots");
      generations_object = refs.attr("generations");
      offsets_object = refs.attr("offsets");
    }
    const Integers<int64_t> layout_ids(layouts, "layouts"), sizes(group_sizes, "group_sizes"),
        ids(block_ids, "block_ids"), positions(block_positions, "block_positions");
    const Integers<uint32_t> slots(slots_object, "slots"), generations(generations_object, "generations");
    const Integers<uint64_t> offsets(offsets_object, "offsets");
    CopyRequest request;
    request.job = job;
    request.direction = ParseDirection(direction);
    request.layouts = layout_ids.view();
    request.group_sizes = sizes.view();
    request.block_ids = ids.view();
    request.block_positions = positions.view();
    request.slots = slots.view();
    request.generations = generations.view();
    request.offsets = offsets.view();
    request.stream = stream;
    if (!buffers.is_none()) {
      // The device's runtime is asked for them, and may have threads that want the GIL.
      const Integers<uint64_t> handles(buffers, "buffers");
      request.buffers = handles.view();
      return WithoutGil([&] { engine_->Submit(request); });
    }
    if (!stream.has_value() && request.block_ids.size() <= kSubmitBlocksWithGilMax) {
      return engine_->Submit(request);
    }
    WithoutGil([&] { engine_->Submit(request); });
  }

  bool LoadWindow(const py::object& buffers, double seconds) {
    if (!engine_->LoadsAwaitWindow()) return true;
    const Integers<uint64_t> handles(buffers, "buffers");
    return WithoutGil([&] { return engine_->LoadWindow(handles.view(), seconds); });
  }

  py::list Poll() {
    py::list finished;
    for (const CopyCompletion& done : engine_->Poll()) {
      finished.append(py::make_tuple(done.job, done.ok, done.bytes, done.seconds, done.chunks_valid));
    }
    return finished;
  }

  bool Wait(const std::vector<uint64_t>& jobs, double timeout_s) {
    return WithoutGil([&] { return engine_->Wait(jobs, timeout_s); });
  }

  void Copy(const py::object& extents) {
    const std::vector<uint64_t> rows = Rows(extents);
    WithoutGil([&] { engine_->Copy(rows); });
  }

  uint64_t Pending() const { return engine_->pending(); }

  py::dict Counters() const {
    const CopyCounters totals = engine_->counters();
    py::dict counters;
    counters["store_jobs"] = totals.store_jobs;
    counters["store_bytes"] = totals.store_bytes;
    counters["load_jobs"] = totals.load_jobs;
    counters["load_bytes"] = totals.load_bytes;
    counters["failed_jobs"] = totals.failed_jobs;
    counters["load_waits"] = totals.load_waits;
    counters["fence_waits"] = totals.fence_waits;
    counters["refused_holds"] = totals.refused_holds;
    counters["load_windows"] = totals.load_windows;
    counters["late_windows"] = totals.late_windows;
    counters["unready_windows"] = totals.unready_windows;
    counters["extents"] = totals.extents;
    counters["cpu_ns"] = totals.cpu_ns;
    return counters;
  }

  py::dict Capabilities() const { return CapabilitiesDict(engine_->capabilities()); }

  bool Close(std::optional<double> timeout_s) {
    const bool rests = WithoutGil([&] { return engine_->Close(timeout_s); });
    if (rests) arena_.reset();  // the caller may have his buffer back
    return rests;
  }

  std::vector<uint64_t> Unlanded() const { return engine_->Unlanded(); }

 private:
  std::shared_ptr<const ArenaMap> map_;     // the session's; outlives a session that is lost or closed
  std::unique_ptr<py::buffer_info> arena_;  // or the caller's buffer
  std::unique_ptr<CopyEngine> engine_;
};

py::tuple Reference(const py::object& extents, const std::string& method, int threads) {
  if (method != "memcpy" && method != "non_temporal") {
    throw std::invalid_argument("method is '" + method + "', allowed are 'memcpy' and 'non_temporal'");
  }
  if (threads < 1 || threads > 256) throw std::invalid_argument("threads must be 1 to 256");
  const std::vector<uint64_t> rows = Rows(extents);
  const auto kind = method == "memcpy" ? ReferenceMethod::kMemcpy : ReferenceMethod::kNonTemporal;
  const ReferenceTime time = WithoutGil([&] { return CopyReference(rows, kind, threads); });
  return py::make_tuple(time.wall_s, time.cpu_s);
}

}  // namespace

void BindCopyEngine(py::module_& module) {
  py::class_<PyCopyEngine>(module, "CopyEngine")
      .def(py::init<py::object, int, std::optional<py::memoryview>, uint64_t, std::shared_ptr<CopyBackend>>(),
           py::arg("session"), py::kw_only(), py::arg("threads") = 0, py::arg("arena") = py::none(),
           py::arg("ready_deadline_ms") = 10'000, py::arg("backend") = py::none())
      .def("add_layout", &PyCopyEngine::AddLayout, py::arg("regions"), py::arg("num_blocks"),
           py::arg("blocks_per_chunk"), py::arg("chunk_offset") = 0)
      .def("submit", &PyCopyEngine::Submit, py::arg("job"), py::arg("direction"), py::arg("layouts"),
           py::arg("group_sizes"), py::arg("block_ids"), py::arg("block_positions"), py::arg("refs"),
           py::arg("buffers") = py::none(), py::arg("stream") = py::none())
      .def("load_window", &PyCopyEngine::LoadWindow, py::arg("buffers"), py::arg("seconds"))
      .def("poll", &PyCopyEngine::Poll)
      .def("wait", &PyCopyEngine::Wait, py::arg("jobs"), py::arg("timeout_s"))
      .def("pending", &PyCopyEngine::Pending)
      .def("counters", &PyCopyEngine::Counters)
      .def("capabilities", &PyCopyEngine::Capabilities)
      .def("copy", &PyCopyEngine::Copy, py::arg("extents"))
      .def("close", &PyCopyEngine::Close, py::arg("timeout_s") = py::none())
      .def("unlanded", &PyCopyEngine::Unlanded);
  module.def("unlanded_stores", &CopyEngine::UnlandedStores);
  module.def("copy_reference", &Reference, py::arg("extents"), py::arg("method"), py::arg("threads"));
}

}  // namespace tpu_sync_native
