// Names of what StorageTier::Stats counts. Counters only grow within a boot; gauges say how it stands now.
#pragma once

#include <vector>

#include "storage/upkeep.h"

namespace tpu_sync_native {

std::vector<Counter> StorageStats(const StorageParts& parts);

}  // namespace tpu_sync_native
