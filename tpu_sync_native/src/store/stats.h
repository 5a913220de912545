// Names of what Store::Stats counts. Counters only grow within a boot; gauges say how it stands now.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>

namespace tpu_sync_native {

// Kept as the store runs; guarded by the store's mutex.
struct StoreCounters {
  uint64_t hits = 0;          // chunks leased
  uint64_t misses = 0;        // chunks asked of a lease and not leased
  uint64_t stores = 0;        // chunks committed
  uint64_t stored_bytes = 0;  // and their bytes
  uint64_t aborts = 0;        // reserved chunks that were not committed
  uint64_t cleared = 0;       // chunks made unreadable by ClearNamespace, or committed after it
  uint64_t evictions = 0;     // chunks evicted
  uint64_t evicted_bytes = 0;
  uint64_t refusals = 0;            // chunks refused to a reserve: no space
  uint64_t index_refusals = 0;      // of these, for want of a cell in the index
  uint64_t rebalances = 0;          // slabs that changed their size class
  uint64_t rebalance_searches = 0;  // times that all slabs were looked at for one to give away
  uint64_t quarantines = 0;         // slots put into quarantine
  uint64_t expired_leases = 0;
  uint64_t storage_hits = 0;       // of the hits, chunks that had to come from the tier below
  uint64_t promotes = 0;           // chunks that came up from it
  uint64_t promote_losses = 0;     // promotes that failed, or whose namespace was cleared meanwhile
  uint64_t promote_refusals = 0;   // chunks below that were not promoted: no space here, or the tier said no
  uint64_t checksums = 0;          // of chunks in memory, made
  uint64_t checksum_passes = 0;    // and found to hold, after a restart
  uint64_t checksum_failures = 0;  // or not: chunks dropped
};

// Order and names as Store::Stats returns them: counters first, then gauges.
inline constexpr std::string_view kCounterNames[] = {
    "hits",           "misses",          "stores",
    "stored_bytes",   "aborts",          "cleared",
    "evictions",      "evicted_bytes",   "refusals",
    "index_refusals", "rebalances",      "rebalance_searches",
    "quarantines",    "expired_leases",  "storage_hits",
    "promotes",       "promote_losses",  "promote_refusals",
    "checksums",      "checksum_passes", "checksum_failures"};
inline constexpr std::string_view kGaugeNames[] = {
    "data_bytes",       // size of the payload file
    "populated_bytes",  // of these, committed by the background population
    "chunk_bytes",      // in committed chunks, readable ones
    "slab_bytes",       // one slab
    "slabs",            // all
    "free_slabs",       // in no size class
    "slots_max",        // of the index
    "committed_slots",  // states of slots
    "reserved_slots",
    "promoting_slots",
    "quarantined_slots",
    "late_slots",        // of these, because of reads of storage that an earlier daemon had begun
    "unverified_slots",  // committed by an earlier daemon, and not served before their checksum holds
    "stale_slots",       // committed, but of a cleared epoch: to be reclaimed
    "withheld_slots",    // committed, and not served before it is known of which epoch below they are
    "pinned_slots",      // held by a read lease or a demote
    "read_leases",
    "write_leases",
    "sessions",
    "namespaces",
    "index_bytes",  // memory of the index by now, shared and private
    "draining",     // 1: no new leases
    // What became of an earlier daemon's chunks; see RestartReport.
    "restarts",
    "restart_kept",
    "restart_quarantined",
    "restart_late",
    "restart_unfinished",
    "restart_cleared",
    "restart_damaged",
    "restart_us",
};
static_assert(sizeof(StoreCounters) == sizeof(uint64_t) * std::size(kCounterNames));

}  // namespace tpu_sync_native
