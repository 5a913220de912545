// Reading a whole arena and comparing every payload that has a checksum. For tools: it needs no daemon, goes
// on beside one, and writes nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "store/checks.h"

namespace tpu_sync_native {

struct ArenaReport {
  uint64_t chunks = 0;     // readable ones
  uint64_t checked = 0;    // of these, with a checksum that was compared
  uint64_t unchecked = 0;  // without one
  uint64_t changed = 0;    // evicted or stored anew while they were read
  uint64_t bytes = 0;      // read
  std::vector<DamagedChunk> damaged;
};

// Throws std::invalid_argument when the metadata is none of this version, std::system_error when it cannot be
// read.
ArenaReport CheckArena(int data_fd, int meta_fd);

}  // namespace tpu_sync_native
