// A namespace's epoch on a root: the highest number of the empty files epoch-<n> beside its meta.json; 0
// without one. Segments of lower epochs are misses on every host, as soon as it has seen the file.
#pragma once

#include <cstdint>

#include "storage/context.h"

namespace tpu_sync_native {

IoError ReadEpoch(FileSystem& files, const uint8_t namespace_id[16], uint64_t* epoch);
// What was seen on the root: the namespace's epoch rises to it, and segments of lower ones are dead (their
// cells go with the next SweepRetired). True when it rose. Thread-safe.
bool RaiseEpoch(StorageContext& context, StorageNamespace& ns, uint64_t epoch);

}  // namespace tpu_sync_native
