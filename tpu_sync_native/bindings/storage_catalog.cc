// The catalog of a daemon without storage.
#include <pybind11/pybind11.h>

#include "bindings.h"
#include "catalog/catalog.h"

namespace py = pybind11;

namespace tpu_sync_native {

void BindCatalog(py::module_& module) {
  module.def("catalog_make_empty", &MakeEmptyCatalog, py::arg("catalog_fd"), py::arg("boot_id"));
}

}  // namespace tpu_sync_native
