// Buffers behind torch tensors on device "tpu", as Python sees them. Tensors come as integers
// (Tensor._cdata).
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "torch_tpu/tensor_buffers.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

using torch_tpu::TensorBuffers;
using torch_tpu::TensorLayout;

std::unique_ptr<TensorBuffers> OpenBuffers(const std::string& library, const std::string& plugin,
                                           uint64_t probe, uint64_t buffer_client, uint64_t buffer_handle,
                                           uint64_t client_api, uint64_t client_handle) {
  const TensorLayout layout{buffer_client, buffer_handle, client_api, client_handle};
  return WithoutGil([&] { return TensorBuffers::Open(library, plugin, layout, probe); });
}

py::array_t<uint64_t> Resolve(const TensorBuffers& tensors, const std::vector<uint64_t>& impls) {
  py::array_t<uint64_t> buffers(static_cast<py::ssize_t>(impls.size()));
  const std::span<uint64_t> target(buffers.mutable_data(), impls.size());
  std::string error;
  // What a tensor still waits for may need the GIL.
  if (!WithoutGil([&] { return tensors.Resolve(impls, target, &error); })) throw std::runtime_error(error);
  return buffers;
}

py::tuple LayoutOf(const TensorBuffers& tensors, uint64_t buffer) {
  const torch_tpu::DeviceLayout layout = tensors.LayoutOf(buffer);
  return py::make_tuple(layout.dimensions, layout.minor_to_major, layout.tiles);
}

}  // namespace

void BindTorchTpu(py::module_& module) {
  py::class_<TensorBuffers>(module, "TorchTpuBuffers")
      .def(py::init(&OpenBuffers), py::arg("library"), py::arg("plugin"), py::arg("probe"), py::kw_only(),
           py::arg("buffer_client"), py::arg("buffer_handle"), py::arg("client_api"),
           py::arg("client_handle"))
      .def("resolve", &Resolve, py::arg("tensors"))
      .def("device_bytes", &TensorBuffers::DeviceBytes, py::arg("buffer"))
      .def("layout_of", &LayoutOf, py::arg("buffer"))
      .def_property_readonly("api", &TensorBuffers::api)
      .def_property_readonly("client", &TensorBuffers::client);
}

}  // namespace tpu_sync_native
