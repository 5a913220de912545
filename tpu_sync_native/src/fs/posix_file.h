// Open files of a POSIX file system: O_DIRECT where it works, in one go or with pieces in flight on a ring.
#pragma once

#include <cstdint>
#include <memory>

#include "fs/file_system.h"
#include "fs/posix_root.h"

namespace tpu_sync_native {

// How a file's bytes are moved; see MakePosixFileSystem for what was measured.
struct PosixIo {
  bool direct = false;      // the descriptor was opened with O_DIRECT
  bool ring_reads = false;  // Uring, where this thread has one
  bool ring_writes = false;
};

std::unique_ptr<ReadFile> MakePosixReader(UniqueFd fd, const PosixIo& io);

// `directory` holds the new file: its entry becomes durable with the first Sync. bytes_expected: reserved
// ahead where the file system can, given back at the end.
std::unique_ptr<AppendFile> MakePosixAppender(UniqueFd fd, UniqueFd directory, uint64_t bytes_expected,
                                              const PosixIo& io);

// Reads a regular file whole, or EFBIG; writes all of a new one.
IoError ReadWhole(int fd, uint64_t bytes_max, std::string* data);
IoError WriteWhole(int fd, std::string_view data);

}  // namespace tpu_sync_native
