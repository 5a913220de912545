// The segments this host knows, its own and other hosts', by the number that catalog cells carry.
//
// A segment's entry outlives its file: numbers are not used again while a cell may still name them. What is
// handed out is a shared pointer, so a read that runs keeps its file open though the segment is retired.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "fs/file_system.h"
#include "segment/segment_codec.h"

namespace tpu_sync_native {

inline constexpr uint32_t kNoNamespace = 0xffffffffu;

struct Segment {
  uint32_t id = 0;  // in this table
  SegmentIdentity identity;
  std::atomic<uint32_t> ns{kNoNamespace};  // index in the store; kNoNamespace: nobody has opened it here
  std::atomic<bool> own{false};            // this host appends to it, seals it, may delete it
  std::string directory;  // "v1/<ns>/hosts/<host>", changed by adoption: read through SegmentTable::Directory
  std::string moves_to;   // where it may lie already, while that is being renamed; see SegmentTable::WillMove
  std::atomic<uint64_t> bytes{0};
  // Taken on the medium from its beginning, until it is sealed; a host that dies leaves it so.
  std::atomic<uint64_t> reserved_bytes{0};
  std::atomic<uint64_t> records{0};
  std::atomic<uint64_t> dead_records{0};  // known elsewhere too, or found bad
  // Not 0: the catalog had no room for all of its records when it held so many; see FindRefused.
  std::atomic<uint64_t> refused_at{0};
  std::atomic<bool> sealed{false};
  std::atomic<bool> retired{false};  // gone or not to be believed: its cells are misses
  // When it was written, first seen, or spared by the reclaimer: the oldest is looked at first. What is read
  // from it does not count here: one hot chunk is copied forward, and does not keep a whole segment.
  std::atomic<uint32_t> age_from_s{0};

  uint64_t taken_bytes() const { return std::max(bytes.load(), reserved_bytes.load()); }  // of a quota
};

// Thread-safe.
class SegmentTable {
 public:
  explicit SegmentTable(std::shared_ptr<FileSystem> files, uint32_t open_files_max = 512);
  ~SegmentTable();

  // The segment of this identity, made if new (one that is retired and not forgotten stays retired); null
  // when the table is full.
  std::shared_ptr<Segment> Add(const SegmentIdentity& identity, const std::string& directory, bool own);
  std::shared_ptr<Segment> Get(uint32_t id) const;  // null: no such segment, or retired
  // Retired ones too, until they are forgotten.
  std::shared_ptr<Segment> FindByIdentity(const uint8_t host_id[16], const uint8_t namespace_id[16],
                                          uint64_t number) const;
  std::vector<std::shared_ptr<Segment>> All() const;    // retired ones too, until they are forgotten
  std::string Directory(const Segment& segment) const;  // where it lies now
  // Its cells are misses from now on. Forget gives the number free, once no cell names it (Catalog::Sweep).
  void Retire(uint32_t id);
  void Forget(uint32_t id);
  // Its directory is about to be renamed: until Move says how that ended, the file is looked for there too.
  void WillMove(uint32_t id, const std::string& to);
  void Move(uint32_t id, const std::string& directory, bool own);  // adopted, or not

  // The open file of a segment, from a cache of descriptors. Blocks in the medium: pool threads only.
  IoError OpenFile(const Segment& segment, std::shared_ptr<ReadFile>* file);
  void DropFile(uint32_t id);
  void DropFiles();  // closes all that are cached; pool threads only

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
