// Rebuilding the index of a segment from its records alone: for the open tail of a dead host, and for
// `kvtier verify`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fs/file_system.h"
#include "segment/segment_codec.h"

namespace tpu_sync_native {

struct ScanResult {
  SegmentIdentity identity;
  std::vector<IndexEntry> entries;  // of the records that verify, in file order
  uint64_t valid_bytes = 0;         // where the first record that does not verify would begin
  uint64_t file_bytes = 0;
  std::string stopped;  // "" at the end of the file, else what is wrong there, in words
};

// Reads the segment from its header on and stops at the first record that does not verify. check_payloads:
// read and check them too, else headers alone. found, if given: called for every record (why "" when it
// verifies) and the scan goes on behind a bad one: where its payload ends, or, when its header is not one,
// where the next valid header stands; the entry of such a one has an offset and no key. Blocks: pool threads
// and tools only. An error is of the medium; what is wrong with the bytes is in the result.
// sealer: records must be sealed by it, else they do not verify; without one seals are not looked at.
using RecordFound = std::function<void(const IndexEntry&, const std::string& why)>;
IoError ScanSegment(FileSystem& files, const std::string& path, bool check_payloads, ScanResult* result,
                    const RecordFound& found = nullptr);
IoError ScanSegment(ReadFile& file, bool check_payloads, ScanResult* result,
                    const RecordFound& found = nullptr, const Sealer* sealer = nullptr);

}  // namespace tpu_sync_native
