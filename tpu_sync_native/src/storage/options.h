// What the storage tier is told. Sizes are bytes; the daemon's configuration fills it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "segment/seal.h"

namespace tpu_sync_native {

struct StorageOptions {
  uint8_t host_id[16] = {};  // random per arena
  uint64_t boot_id = 0;
  std::shared_ptr<const Sealer> sealer;  // null: records have no seal
  uint64_t quota_bytes = 0;              // of all hosts together on this root; 0: no limit but free space
  uint64_t namespace_quota_bytes = 0;    // the same for each namespace
  uint64_t segment_bytes = 256 << 20;    // a segment is sealed when it has reached this
  uint64_t records_max = 0;              // of the catalog; 0: from the quota
  uint32_t load_threads = 4;             // of the IoPool; also how many loads are read at once
  uint32_t store_threads = 2;
  uint64_t demote_queue_bytes = 1 << 30;  // chunks waiting to be demoted; beyond, they are dropped
  uint64_t promote_queue_bytes = 4ull << 30;
  uint64_t io_bytes = 8 << 20;      // one read or write, as far as records lie together
  uint64_t sync_ms = 1000;          // a group of appended records is synced at least this often
  uint64_t sync_bytes = 256 << 20;  // or after this many bytes; every sync stops the medium for some ms
  uint64_t poll_ms = 2000;          // how often other hosts' directories are looked at
  uint64_t heartbeat_ms = 2000;
  uint64_t dead_after_ms = 60'000;  // a host whose lease did not move for so long is dead
  uint64_t promote_deadline_ms =
      10'000;                        // a job of promotes of which nothing was read for so long has failed
  uint64_t open_late_ms = 10'000;    // see StorageNamespace::known_epoch
  double free_low = 0.10;            // of the file system: below, nothing is admitted and the coldest goes
  double free_high = 0.15;           // above, admission begins again
  double copy_forward_share = 0.20;  // of a reclaimed segment's bytes, at most
};

}  // namespace tpu_sync_native
