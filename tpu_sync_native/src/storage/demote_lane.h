// One namespace's way to storage; see demoter.h. All of it is guarded by the demoter's mutex, but for what
// one of its tasks has taken out.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/record_batch.h"
#include "storage/segment_writer.h"
#include "store/store.h"

namespace tpu_sync_native {

// The store, for tasks that may outlive it.
class StorePins {
 public:
  explicit StorePins(Store& store) : store_(&store) {}
  std::vector<DemoteChunk> Pin(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots) {
    const std::lock_guard lock(mutex_);
    return store_ == nullptr ? std::vector<DemoteChunk>() : store_->PinForDemote(ns, epoch, slots);
  }
  void End(std::span<const DemoteChunk> chunks) {
    const std::lock_guard lock(mutex_);
    if (store_ != nullptr && !chunks.empty()) store_->EndDemote(chunks);
  }
  void Close() {  // from now on there is none
    const std::lock_guard lock(mutex_);
    store_ = nullptr;
  }

 private:
  std::mutex mutex_;  // before the store's
  Store* store_;
};

// When a chunk was committed, in epochs: it is written under the one it was committed in, or not at all.
struct CommitTime {
  uint64_t clears = 0;      // of this host by then
  uint64_t root_epoch = 0;  // the namespace's on the root then
  // The last clear is not confirmed, or the namespace not open yet: the epoch that comes of it is this
  // chunk's.
  bool unknown = false;

  static CommitTime Now(const StorageNamespace& ns) {
    const bool opening = ns.state.load() == StorageNamespace::State::kOpening;
    return {ns.clears.load(), ns.epoch.load(), opening || ns.clearing.load()};
  }
  bool IsOf(const StorageNamespace& ns, uint64_t epoch) const {
    return clears == ns.clears.load() && (unknown ? ns.cleared_epoch.load() : root_epoch) == epoch;
  }
};

struct DemoteItem {  // what one commit offered
  CommitTime time;
  uint32_t store_epoch = 0;
  std::vector<uint32_t> slots;
  size_t next = 0;  // the first that was not taken
};

struct CopyItem {
  uint64_t epoch;  // of the segment that it was read from: a clear may have come since
  std::string key;
  std::shared_ptr<const uint8_t[]> bytes;
};

// What one append writes. Let go of without the demoter's mutex: its pins end.
struct DemoteBatch {
  explicit DemoteBatch(std::shared_ptr<StorePins> wanted) : pins(std::move(wanted)) {}
  ~DemoteBatch() { pins->End(pinned); }
  DemoteBatch(const DemoteBatch&) = delete;
  DemoteBatch& operator=(const DemoteBatch&) = delete;

  const std::shared_ptr<StorePins> pins;
  std::vector<DemoteChunk> pinned;
  std::vector<std::shared_ptr<const uint8_t[]>> held;
  std::unique_ptr<RecordBatch> records;
  uint64_t epoch = 0;    // of the namespace on the root
  uint64_t through = 0;  // the lane's `taken` once this batch had left the queue
};

struct DemoteLane {
  std::shared_ptr<StorageNamespace> ns;
  uint64_t chunk_bytes = 0;
  std::deque<DemoteItem> items;
  std::deque<CopyItem> copies;

  // Chunks in the order of their offers: so many were offered, left the queue, were appended (or dropped) and
  // are synced (or dropped).
  uint64_t offered = 0, taken = 0, appended = 0, settled = 0;

  bool preparing = false;  // a task, submitted or running; so is the next
  bool appending = false;
  bool waiting = false;          // for its turn to append
  uint64_t append_began_ms = 0;  // its last step; 0: its task has not begun
  bool hangs = false;            // for so long that its turn was given away
  bool sync_wanted = false;
  bool seal_wanted = false;
  uint64_t index_tried_ms = 0;

  std::deque<std::unique_ptr<DemoteBatch>> ready;  // prepared, to be appended
  std::unique_ptr<SegmentWriter> writer;           // used by the append task alone
  uint64_t speed_bytes = 0, speed_ns = 0;  // so is this: appended since the last sync, and in what time
  std::vector<std::unique_ptr<RecordBatch>> spare;

  bool queued() const { return !items.empty() || !copies.empty(); }
  uint64_t queued_chunks() const { return offered - taken; }
};

}  // namespace tpu_sync_native
