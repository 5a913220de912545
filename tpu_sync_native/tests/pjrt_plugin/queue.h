// The one queue of a device, in order, at the pace that a test has set.
#pragma once

#include <cstdint>
#include <functional>

#include "plugin_abi.h"

namespace tpu_sync_native::test_plugin {

// Runs `operation` on the device's thread when everything that was pushed before it has run and the time
// that so many bytes take is over.
void Push(pjrt::Device* device, int64_t bytes, std::function<void()> operation);
// The same, and returns when it has run. Takes no time of its own.
void RunInTurn(pjrt::Device* device, const std::function<void()>& operation);
// Shut: nothing is taken from any queue.
void SetQueueGate(bool shut);

}  // namespace tpu_sync_native::test_plugin
