// PJRT events as callbacks. Futures of the runtime's C++ side are never used: they have been seen ready
// before the bytes had landed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "pjrt/library.h"

namespace tpu_sync_native::pjrt {

// Calls `done` exactly once when the event has come, with the text of its error or an empty one: at once, or
// on a thread of the runtime. The event is destroyed before.
void OnReady(const std::shared_ptr<const Library>& library, Event* event,
             std::function<void(const std::string& error)> done);

}  // namespace tpu_sync_native::pjrt
