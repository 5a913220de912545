// How a daemon's life with a metadata file begins: it makes the file anew, or takes over an earlier one's.
#pragma once

#include <cstdint>
#include <string>

#include "base/mapping.h"
#include "index/meta_view.h"

namespace tpu_sync_native {

// Random bytes of the host's present boot, as the kernel gives them (/proc/sys/kernel/random/boot_id).
struct HostBoot {
  uint8_t bytes[16] = {};
};

// fallocate. 0, or the error: shortage, apart from a file system that cannot reserve.
int AllocateFile(int fd, uint64_t offset, uint64_t bytes);

// Truncates the file to nothing, then makes it a fresh one of this geometry, all slots free; its magic comes
// last. Throws std::system_error, also when there is no room for all that stands before the slot records.
Mapping MakeMetaFile(int fd, const MetaGeometry& geometry, uint64_t boot_id, const HostBoot& host);

// Why the file cannot be taken over by a daemon of this geometry, in words that name the field and both
// values; empty: it can. Reads, never maps: a file that is too short is an answer like any other.
std::string WhyNotKept(int fd, const MetaGeometry& geometry, const HostBoot& host);

// Takes the file over: from here on sessions of the former daemon are over. Throws std::invalid_argument with
// WhyNotKept's words.
Mapping KeepMetaFile(int fd, const MetaGeometry& geometry, uint64_t boot_id, const HostBoot& host);

}  // namespace tpu_sync_native
