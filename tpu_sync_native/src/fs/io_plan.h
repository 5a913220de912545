// One vectored read or write of a file, cut into pieces: ranges that the medium takes as they are, and ranges
// that O_DIRECT would refuse (an odd offset, length or address) and that go through a small aligned buffer.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "fs/file_system.h"

namespace tpu_sync_native {

inline constexpr uint64_t kDirectUnit = 4096;      // what O_DIRECT is asked for in; probed once per root
inline constexpr uint64_t kBounceBytes = 1 << 20;  // of the aligned buffer that each thread has

struct IoPiece {
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  uint32_t first = 0, count = 0;  // of IoPlan::vectors
  bool bounced = false;
};

struct IoPlan {
  std::vector<iovec> vectors;
  std::vector<IoPiece> pieces;  // without gaps, in file order
};

// unit: 1 when anything goes (buffered), else kDirectUnit. piece_bytes_max: a multiple of the unit. A bounced
// piece lies within kBounceBytes from its offset rounded down; when `offset` is aligned, every piece begins
// aligned, and all but the last are whole units.
IoPlan PlanIo(uint64_t offset, std::span<const IoVec> parts, uint64_t unit, uint64_t piece_bytes_max);

// Runs one piece with plain system calls, to its end or to an error: kShort when a file that is read ends
// before. `skip`: that many leading bytes are done already.
IoError ReadPiece(int fd, IoPlan& plan, const IoPiece& piece, uint64_t unit, uint64_t skip = 0);
IoError WritePiece(int fd, IoPlan& plan, const IoPiece& piece, uint64_t unit, uint64_t skip = 0);

}  // namespace tpu_sync_native
