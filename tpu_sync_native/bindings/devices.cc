// The backends as Python sees them: opaque values that a CopyEngine takes. One function per backend.
#include "devices.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "bindings.h"
#include "copy/backend.h"
#include "cuda/cuda_backend.h"
#include "pjrt/abi_table.h"
#include "pjrt/pjrt_backend.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

std::shared_ptr<CopyBackend> PjrtBackendOf(const std::string& library, uint64_t api, uint64_t client,
                                           bool dma_map, std::optional<bool> in_order_queue,
                                           uint64_t alignment_bytes, uint64_t piece_bytes_max,
                                           uint64_t inflight_bytes_max) {
  PjrtOptions options;
  options.library = library;
  options.api = api;
  options.client = client;
  options.dma_map = dma_map;
  options.in_order_queue = in_order_queue;
  options.alignment_bytes = alignment_bytes;
  options.piece_bytes_max = piece_bytes_max;
  options.inflight_bytes_max = inflight_bytes_max;
  return MakePjrtBackend(options);
}

py::dict FieldsOf(const std::vector<pjrt::AbiField>& fields) {
  py::dict described;
  for (const pjrt::AbiField& field : fields) {
    described[field.name] = py::make_tuple(field.offset, field.bytes);
  }
  return described;
}

py::dict PjrtAbi() {
  const pjrt::AbiTable table = pjrt::DescribeAbi();
  py::dict structs;
  for (const pjrt::AbiStruct& one : table.structs) {
    structs[one.name] = py::make_tuple(one.struct_size, one.bytes, FieldsOf(one.fields));
  }
  py::dict abi;
  abi["structs"] = structs;
  abi["slots"] = FieldsOf(table.slots);
  abi["raw_buffer_extension_type"] = table.raw_buffer_extension_type;
  return abi;
}

}  // namespace

py::dict CapabilitiesDict(const CopyCapabilities& can) {
  py::dict capabilities;
  capabilities["name"] = can.name;
  capabilities["kernel"] = can.kernel;
  capabilities["alignment_bytes"] = can.alignment_bytes;
  capabilities["piece_bytes_max"] = can.piece_bytes_max;
  capabilities["inflight_bytes_max"] = can.inflight_bytes_max;
  capabilities["plain_memory"] = can.plain_memory;
  capabilities["buffers"] = can.buffers;
  capabilities["replaces_buffers"] = can.replaces_buffers;
  capabilities["in_order_queue"] = can.in_order_queue;
  capabilities["streams"] = can.streams;
  return capabilities;
}

void BindDevices(py::module_& module) {
  py::class_<CopyBackend, std::shared_ptr<CopyBackend>>(module, "CopyBackend")
      .def("capabilities",
           [](const CopyBackend& backend) { return CapabilitiesDict(backend.capabilities()); })
      .def("last_error", &CopyBackend::last_error);
  module.attr("DEVICE_BUFFER_SHIFT") = kDeviceBufferShift;
  module.def("host_backend", &MakeHostBackend);
  const PjrtOptions pjrt;
  module.def("pjrt_backend", &PjrtBackendOf, py::arg("library") = "", py::kw_only(), py::arg("api") = 0,
             py::arg("client") = 0, py::arg("dma_map") = pjrt.dma_map,
             py::arg("in_order_queue") = pjrt.in_order_queue, py::arg("alignment_bytes") = 0,
             py::arg("piece_bytes_max") = pjrt.piece_bytes_max,
             py::arg("inflight_bytes_max") = pjrt.inflight_bytes_max,
             py::call_guard<py::gil_scoped_release>());
  module.def("pjrt_abi", &PjrtAbi);
  const CudaOptions cuda;
  module.def(
      "cuda_backend",
      [](int ordinal, const std::string& library) {
        return MakeCudaBackend({.ordinal = ordinal, .library = library});
      },
      py::arg("ordinal") = cuda.ordinal, py::kw_only(), py::arg("library") = cuda.library,
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace tpu_sync_native
