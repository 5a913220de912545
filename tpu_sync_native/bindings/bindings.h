// What each binding file offers to module.cc: one function per exposed type.
#pragma once

#include <pybind11/pybind11.h>

namespace tpu_sync_native {

void BindGrants(pybind11::module_& module);   // SlotRefs, ReadGrant, WriteGrant
void BindStore(pybind11::module_& module);    // Store, POLICIES
void BindSession(pybind11::module_& module);  // Session, DaemonLost
void BindCopyEngine(pybind11::module_& module);

}  // namespace tpu_sync_native
