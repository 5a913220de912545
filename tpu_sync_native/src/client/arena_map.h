// An engine's view of the daemon's two files: the payload (read-write) and the metadata (read-only).
//
// Lifetime: held by shared_ptr by the session, by every memory view of the arena and by copy engines;
// unmapped when the last of them is gone, whether or not the daemon still lives. The daemon never truncates
// either file (a new one takes both over as they are, or makes new files), so no access through a map faults.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/mapping.h"
#include "index/index_reader.h"
#include "tpu_sync_native/meta_layout.h"

namespace tpu_sync_native {

class ArenaMap {
 public:
  // Maps both files; the descriptors may be closed afterwards. Throws std::invalid_argument naming what does
  // not fit.
  ArenaMap(int data_fd, int meta_fd);

  std::byte* data() const { return data_.data(); }
  uint64_t data_bytes() const { return data_.bytes(); }
  const MetaHeader& header() const { return *reinterpret_cast<const MetaHeader*>(meta_.data()); }
  const IndexReader& index() const { return index_; }
  uint64_t boot_id() const { return boot_id_; }
  // False once a daemon of another boot has taken over the metadata.
  bool SameBoot() const { return __atomic_load_n(&header().boot_id, __ATOMIC_ACQUIRE) == boot_id_; }

 private:
  Mapping meta_;
  IndexReader index_;
  Mapping data_;
  uint64_t boot_id_;
};

}  // namespace tpu_sync_native
