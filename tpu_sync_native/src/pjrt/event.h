// PJRT events as callbacks. Futures of the runtime's C++ side are never used: they have been seen ready
// before the bytes had landed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "pjrt/library.h"

namespace tpu_sync_native::pjrt {

// Calls `done` exactly once when the event has come, with the text of its error or an empty one: at once, or
// on a thread of the runtime. The event is destroyed before. For copies: where the runtime refuses to call,
// this waits, as bytes may still move.
void OnReady(const std::shared_ptr<const Library>& library, Event* event,
             std::function<void(const std::string& error)> done);

// The same, for whoever must not wait: the text of a refusal, and then the event is destroyed and `done` is
// never called. Empty otherwise.
std::string OnReadyOrRefused(const std::shared_ptr<const Library>& library, Event* event,
                             std::function<void(const std::string& error)> done);

}  // namespace tpu_sync_native::pjrt
