// A shared directory (Lustre, NFS, a local disk) through plain system calls.
//
// How bytes move, and why (docs/decisions/ has the figures): O_DIRECT where the root's file system takes it,
// for the arena is the cache and a second copy of it in the page cache is waste. One preadv or pwritev
// carries a whole run of neighbours; the kernel keeps its parts in flight.
#pragma once

#include <memory>
#include <string>

#include "fs/file_system.h"

namespace tpu_sync_native {

struct PosixOptions {
  bool direct = true;      // try O_DIRECT; false: always through the page cache
  bool ring_reads = true;  // io_uring where it is permitted
  bool ring_writes = false;
  bool reserve = true;  // allocate a segment's bytes ahead
};

// Touches nothing yet: the first call opens the root. A root that went away and came back (a mount that was
// renewed, a directory that was made again) is opened anew by itself, if it is of the same type of file
// system: so the bare mount point under a lost mount is never written to.
std::shared_ptr<FileSystem> MakePosixFileSystem(std::string root, const PosixOptions& options = {});

}  // namespace tpu_sync_native
