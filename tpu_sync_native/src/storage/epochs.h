// Epochs of a namespace on a root: the empty files epoch-<n> beside its meta.json, each made by one clear of
// one host; 0 is the one without a file.
//
// A host is of one epoch: the highest there was when it opened the namespace, then the one its last clear
// made. It writes under that one and reads what lies under it, nothing else: what another host cleared for
// (new weights, mostly) its own engines may not have, and what they still compute the other must not get. So
// the chunks of an epoch are of hosts that were told the same weights, and no host waits for another.
#pragma once

#include <cstdint>

#include "storage/context.h"

namespace tpu_sync_native {

// The highest there is.
IoError ReadEpoch(FileSystem& files, const uint8_t namespace_id[16], uint64_t* epoch);
// The root has it.
void SawEpoch(StorageNamespace& ns, uint64_t epoch);
// This host is of that epoch from now on, and segments of lower ones are dead (their cells go with the next
// SweepRetired). True when it rose. Thread-safe.
bool RaiseEpoch(StorageContext& context, StorageNamespace& ns, uint64_t epoch);

}  // namespace tpu_sync_native
