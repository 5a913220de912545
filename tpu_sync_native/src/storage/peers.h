// This host among the hosts of a root. Once per heartbeat it moves its lease; once per poll it lists the
// namespaces it has open, loads indexes it has not seen (seg-*.idx, and tail.idx when it changed) into the
// catalog, retires segments that are gone, and takes over the segments of hosts whose lease stands still.
//
// A host is dead when its lease's counter has not moved for dead_after_ms of this host's own monotonic clock,
// or when it says that it has left; clocks are never compared. Adoption renames the dead host's directory
// (atomic: one winner), then moves its sealed segments into this host's own; its open segment is scanned and
// sealed. A host that was paused checks its lease before it publishes: if its directory is gone it was adopted,
// and it goes on under a new host id.
#pragma once

#include <cstdint>
#include <memory>

#include "storage/context.h"

namespace tpu_sync_native {

class Peers {
 public:
  explicit Peers(std::shared_ptr<StorageContext> context);
  ~Peers();

  // One round each, on a control-pool thread; times are of the steady clock.
  IoError Heartbeat(StorageNamespace& ns, uint64_t now_ms);
  IoError Poll(StorageNamespace& ns, uint64_t now_ms);
  // The last heartbeat: this host stops in order.
  void Leave(StorageNamespace& ns);
  // Bytes of all hosts in this namespace, as last seen; hosts that live.
  uint64_t bytes_seen(const StorageNamespace& ns) const;
  uint32_t hosts_seen(const StorageNamespace& ns) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
