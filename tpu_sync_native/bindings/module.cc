// The module: build facts, then one Bind function per type, lowest layer first.
#include <pybind11/pybind11.h>

#include <string>
#include <system_error>

#include "bindings.h"
#include "tpu_sync_native/ring_layout.h"

namespace py = pybind11;

namespace tpu_sync_native {

namespace {

py::dict BuildInfo() {
  py::dict info;
  info["compiler"] = __VERSION__;
  info["standard"] = std::to_string(__cplusplus);
#if defined(__SANITIZE_ADDRESS__)
  info["sanitizer"] = "address";
#elif defined(__SANITIZE_THREAD__)
  info["sanitizer"] = "thread";
#else
  info["sanitizer"] = "none";
#endif
  info["meta_version"] = std::to_string(kMetaVersion);
  info["ring_version"] = std::to_string(kRingVersion);
  return info;
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "Native heart of kvtier; see _core.pyi for the contract.";
  // What the kernel refused is an OSError with its number, not a RuntimeError.
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const std::system_error& error) {
      const py::tuple arguments = py::make_tuple(error.code().value(), error.what());
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
  module.def("build_info", &BuildInfo);
  module.def("ring_bytes", [] { return kRingBytes; });
  BindGrants(module);
  BindStore(module);
  BindSession(module);
  BindCatalog(module);
  BindDevices(module);
  BindTorchTpu(module);
  BindFakeDevice(module);
  BindCopyEngine(module);
  BindFiles(module);
  BindStorage(module);
  BindSegment(module);
}

}  // namespace tpu_sync_native
