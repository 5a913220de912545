// This host among the hosts of a root. Once per heartbeat it moves its lease; once per poll it lists the
// namespaces it has open, loads indexes it has not seen (seg-*.idx, and tail.idx when it changed) into the
// catalog, retires segments that are gone, and takes over the segments of hosts whose lease stands still.
//
// A poll costs one listing of hosts/, one of the namespace (epochs), and one small read per host; a host's
// directory is listed only when its lease says that something changed there, and now and then in any case.
//
// A host is dead when its lease's counter has not moved for dead_after_ms of this host's own monotonic clock
// while this host was watching, or when it says that it has left; clocks are never compared. Adoption renames
// the dead host's directory (atomic: one winner); see adoption.h. A host that was paused finds that out from
// its lease, and goes on under a new host id; see own_lease.h. Where nothing can be renamed (object stores),
// segments of dead hosts stay where they are, are served, and any host may delete them.
#pragma once

#include <cstdint>
#include <memory>

#include "storage/context.h"

namespace tpu_sync_native {

class Peers {
 public:
  explicit Peers(std::shared_ptr<StorageContext> context);
  ~Peers();

  // One round each, on a control-pool thread; now_ms is of the steady clock. A second round of the same kind
  // beside one that still runs does nothing. The first heartbeat makes the host's directory: before the first
  // append.
  IoError Heartbeat(StorageNamespace& ns, uint64_t now_ms);
  IoError Poll(StorageNamespace& ns, uint64_t now_ms);
  // The last heartbeat: this host stops in order.
  void Leave(StorageNamespace& ns);
  // Bytes of all hosts in this namespace, as last seen; hosts that live, this one included.
  uint64_t bytes_seen(const StorageNamespace& ns) const;
  uint64_t others_bytes_seen(const StorageNamespace& ns) const;  // the same without this host's
  uint32_t hosts_seen(const StorageNamespace& ns) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
