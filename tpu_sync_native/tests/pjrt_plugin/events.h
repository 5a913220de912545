// Events that the plugin gives out: counted, gated, made to fail.
#pragma once

#include "plugin_abi.h"

namespace tpu_sync_native::test_plugin {

pjrt::Event* MakeEvent();
// `failure` null: it succeeded.
void SetEvent(pjrt::Event* event, const char* failure);

// Shut: whoever asks whether a buffer is ready is answered when it opens.
void SetReadyGate(bool shut);
bool ReadyGateShut();

}  // namespace tpu_sync_native::test_plugin
