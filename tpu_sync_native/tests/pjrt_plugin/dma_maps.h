// Host memory that DmaMap has been told of.
#pragma once

#include <cstdint>

namespace tpu_sync_native::test_plugin {

bool DmaMapped(const void* host, int64_t bytes);
void SetMapGate(bool shut);
void ReplaceDmaMaps(void** slots);

}  // namespace tpu_sync_native::test_plugin
