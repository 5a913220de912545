// The devices that a copy engine can be made for, as Python hands them on.
#pragma once

#include <pybind11/pybind11.h>

#include "copy/backend.h"

namespace tpu_sync_native {

pybind11::dict CapabilitiesDict(const CopyCapabilities& can);

}  // namespace tpu_sync_native
