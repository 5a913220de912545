// Taking over what a dead host left, so that its chunks stay hits and its space comes back.
//
//   1 hosts/<dead> is renamed to hosts/<dead>.adopt.<me>: one winner; the dead host, should it wake up, finds
//     its lease gone and goes on as another. Sealed segments are served from there as they are: a record
//     names the host that wrote it, so the directory keeps that host's name and no file moves.
//   2 the lease and left-over temporaries are removed
//   3 a segment without an index (the dead host's open one) is scanned; its index is published
//   4 tail.idx is removed; a directory without segments goes
//
// A crash after any step leaves a directory that the adopter's own successor renames again and goes on with.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "storage/peer_index.h"

namespace tpu_sync_native {

// Step 1, for any directory whose keeper is dead. Not found: another host was first. The name it has now is
// in *adopted; its segments of the table have moved.
IoError AdoptDirectory(StorageContext& context, StorageNamespace& ns, const SeenDirectory& seen,
                       const std::string& name, std::string* adopted);

// Steps 2 to 4, for a directory of this host's; again whenever it is looked into.
IoError TidyDirectory(const DirectoryLook& look, const std::set<uint64_t>& segments,
                      const std::set<uint64_t>& indexes, bool tail);

}  // namespace tpu_sync_native
