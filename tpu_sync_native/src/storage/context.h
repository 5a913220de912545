// What the parts of the storage tier share. Owned by StorageTier, which outlives every part; tasks on the
// pools hold a shared pointer, because a hung one may outlive the tier.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "catalog/catalog.h"
#include "fs/file_system.h"
#include "fs/io_pool.h"
#include "storage/codec_trial.h"
#include "storage/medium_speed.h"
#include "storage/options.h"
#include "storage/segment_table.h"

namespace tpu_sync_native {

// A namespace of the store, on storage.
struct StorageNamespace {
  uint32_t ns = 0;  // the store's index
  uint8_t id[16] = {};
  uint64_t chunk_bytes = 0;
  Codec codec = Codec::kRaw;
  std::unique_ptr<CodecTrial> trial;  // which finds the codec out; null where `codec` says it
  Codec codec_now() const { return trial == nullptr ? codec : trial->codec(); }
  std::string meta_json;  // the fingerprint, readable; compared in full with what the root holds
  // Of this host's chunks: segments of another one are misses. It changes with clears of this host alone; see
  // epochs.h. And the highest on this root, as last seen: a higher one is of another host's clear.
  std::atomic<uint64_t> epoch{0}, root_epoch{0};
  // kOpening: directories are not made or meta.json not compared yet; nothing is admitted, nothing is served.
  // kRefused: the root holds another fingerprint under this id: never served, says why.
  enum class State : uint8_t { kOpening, kReady, kRefused };
  std::atomic<State> state{State::kOpening};
  // By the first engine that has it open: what it knows from an earlier daemon
  // (NamespaceRecord::epoch_below).
  uint64_t told = 0;
  // An engine that has just started is of the root's highest epoch, but of the one there was when it started:
  // a root that says so later than options.open_late_ms after opened_ms may name one that another host has
  // made since. Up to known_epoch, which there was before, that cannot be.
  uint64_t opened_ms = 0, known_epoch = 0;
  std::atomic<bool> epoch_found{false};  // once: what the root says later does not count
  // Where there are quotas: nothing is written before the first poll, and the reclaimer after it, have seen
  // how much there is.
  std::atomic<bool> measured{false};
  std::atomic<bool> clearing{false};  // a clear is not confirmed on the root yet: nothing is served
  // Clears of this host, raised under the store's mutex; and the epoch that the last one of them made (at
  // first: that was found when the namespace was opened). A chunk is written under the epoch in which it was
  // committed, or never: one that was computed before a clear is not to be found after it.
  std::atomic<uint64_t> clears{0}, cleared_epoch{0};
  std::mutex clear_mutex;  // for changes of clears and clearing together

  // Who this host is in this namespace: options.host_id, until it was adopted here because others took it for
  // dead; then another. A writer that sees host_changes move leaves its open segment as it is (it is the
  // adopter's now) and begins the next one under the new id. Peers::Heartbeat makes the directory.
  mutable std::mutex host_mutex;
  uint8_t host_id[16] = {};  // guarded by host_mutex
  std::atomic<uint64_t> host_changes{0};
  // Raised after every publish or removal of a segment, index or tail here: it goes into the lease, and tells
  // other hosts to look into this host's directories.
  std::atomic<uint64_t> changes{0};
  std::atomic<int64_t> room_bytes{INT64_MAX};  // of this namespace; see StorageContext::TakeRoom
};

// Monotonic counters and gauges; storage/stats.cc gives them names.
struct StorageCounters {
  std::atomic<uint64_t> demoted_chunks{0}, demoted_bytes{0}, demote_ns{0};
  std::atomic<uint64_t> promoted_chunks{0}, promoted_bytes{0}, promote_ns{0};
  std::atomic<uint64_t> dropped_queue{0}, dropped_evicted{0}, dropped_present{0}, dropped_full{0},
      dropped_down{0}, dropped_error{0};  // demotes not done, by reason
  std::atomic<uint64_t> failed_missing{0}, failed_corrupt{0}, failed_io{0}, failed_deadline{0},
      failed_down{0};  // promotes not done, by reason
  std::atomic<uint64_t> sealed_segments{0}, adopted_segments{0}, deleted_segments{0}, deleted_bytes{0},
      copied_forward_bytes{0}, temporaries_removed{0}, indexes_refused{0}, times_adopted{0};
};

// The clock of Catalog::Touch, Catalog::LastUse and Segment::age_from_s: monotonic, of this host alone.
inline uint32_t SteadySeconds() {
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

struct StorageContext {
  StorageOptions options;
  std::shared_ptr<FileSystem> files;
  std::shared_ptr<IoPool> loads;     // promotes, and nothing else
  std::shared_ptr<IoPool> control;   // everything that is not a promote
  std::shared_ptr<Catalog> catalog;  // shared: a task that hangs may outlive the tier
  std::shared_ptr<SegmentTable> segments;
  StorageCounters counters;
  MediumSpeed writes, reads;  // of a lane, with its syncs; of a thread that loads
  MediumSpeeds speeds() const { return {writes.bytes_per_s(), reads.bytes_per_s()}; }
  // I/Os of fewer bytes say nothing of how fast the medium is.
  uint64_t telling_bytes() const { return std::min(options.io_bytes, options.segment_bytes) / 4; }
  // Admission is closed for a reason: full disk, quota, read-only, paused host. Demotes are dropped. Whoever
  // meets a write that failed closes it; Reclaimer::Round opens it again when it finds no reason any more.
  std::atomic<bool> admitting{true};
  void CloseAdmission(std::string reason);
  void OpenAdmission();
  std::string admission_reason() const;  // "" while it is open
  std::string reason;                    // guarded by mutex
  // What may still be appended by this host before the next Reclaimer::Round, which sets it anew, so that
  // hosts which see each other with delay stay below the quota together. The demoter asks before it appends
  // (record headers included); false: dropped_full.
  bool TakeRoom(StorageNamespace& ns, uint64_t bytes);
  std::atomic<int64_t> room_bytes{INT64_MAX};
  std::atomic<uint64_t> refused_bytes{0};  // by TakeRoom, ever
  // A promote waits or is being read: appends stand back, see Demoter.
  std::atomic<bool> promoting{false};

  // The namespace by the store's index or by id; null when it is not open here.
  std::shared_ptr<StorageNamespace> Namespace(uint32_t ns) const;
  std::shared_ptr<StorageNamespace> NamespaceById(const uint8_t id[16]) const;
  std::vector<std::shared_ptr<StorageNamespace>> AllNamespaces() const;
  mutable std::mutex mutex;  // guards `namespaces` and `reason`
  std::unordered_map<uint32_t, std::shared_ptr<StorageNamespace>> namespaces;

  std::string host_directory(const StorageNamespace& ns) const;  // "v1/<ns>/hosts/<host>", of its host id now
};

}  // namespace tpu_sync_native
