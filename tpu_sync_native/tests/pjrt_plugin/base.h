// The wrapped CPU plugin, and how its functions are replaced.
#pragma once

#include <cstddef>

#include "control.h"
#include "plugin_abi.h"

namespace tpu_sync_native::test_plugin {

// The wrapped plugin's table; set before anything else runs.
const pjrt::Api*& base();

template <typename Args>
pjrt::Error* CallBase(Args* args) {
  return reinterpret_cast<pjrt::Error* (*)(Args*)>(base()->slots()[Args::kCall.slot])(args);
}

// An error of this plugin's own. Destroyed like any other.
pjrt::Error* MakeError(const char* text);

void DestroyBaseError(pjrt::Error* error);

// Ends the process when a call that cannot fail has failed.
void Must(pjrt::Error* error);

// Refuses when a test wanted it, else does what the wrapped plugin does.
template <typename Args>
pjrt::Error* Refusable(Args* args) {
  if (TakeFault(Args::kCall.name)) return MakeError("refused on purpose");
  return CallBase(args);
}

// Puts the functions of errors.cc, events.cc and launches.cc into their slots of a copied table.
void ReplaceErrors(void** slots);
void ReplaceEvents(void** slots);
void ReplaceBuffers(void** slots);
// The RawBuffer extension in front of `next`.
pjrt::Extension* RawBufferExtensionBefore(pjrt::Extension* next);

}  // namespace tpu_sync_native::test_plugin
