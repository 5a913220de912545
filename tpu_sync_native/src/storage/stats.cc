#include "storage/stats.h"

#include <algorithm>

namespace tpu_sync_native {
namespace {

struct NamedCounter {
  std::string_view name;
  std::atomic<uint64_t> StorageCounters::*counter;
};

constexpr NamedCounter kCounters[] = {
    {"storage_demoted_chunks", &StorageCounters::demoted_chunks},
    {"storage_demoted_bytes", &StorageCounters::demoted_bytes},
    {"storage_demote_ns", &StorageCounters::demote_ns},
    {"storage_promoted_chunks", &StorageCounters::promoted_chunks},
    {"storage_promoted_bytes", &StorageCounters::promoted_bytes},
    {"storage_promote_ns", &StorageCounters::promote_ns},
    // Demotes not done: no room in the queue, evicted or cleared before their turn, there already, no room on
    // storage, medium down or hanging, a write that failed.
    {"storage_dropped_queue", &StorageCounters::dropped_queue},
    {"storage_dropped_evicted", &StorageCounters::dropped_evicted},
    {"storage_dropped_present", &StorageCounters::dropped_present},
    {"storage_dropped_full", &StorageCounters::dropped_full},
    {"storage_dropped_down", &StorageCounters::dropped_down},
    {"storage_dropped_error", &StorageCounters::dropped_error},
    // Promotes not done.
    {"storage_failed_missing", &StorageCounters::failed_missing},
    {"storage_failed_corrupt", &StorageCounters::failed_corrupt},
    {"storage_failed_io", &StorageCounters::failed_io},
    {"storage_failed_deadline", &StorageCounters::failed_deadline},
    {"storage_failed_down", &StorageCounters::failed_down},
    {"storage_sealed_segments", &StorageCounters::sealed_segments},
    {"storage_adopted_segments", &StorageCounters::adopted_segments},
    {"storage_deleted_segments", &StorageCounters::deleted_segments},
    {"storage_deleted_bytes", &StorageCounters::deleted_bytes},
    {"storage_copied_forward_bytes", &StorageCounters::copied_forward_bytes},
    {"storage_temporaries_removed", &StorageCounters::temporaries_removed},
    {"storage_indexes_refused", &StorageCounters::indexes_refused},
    {"storage_times_adopted", &StorageCounters::times_adopted},
};

}  // namespace

std::vector<Counter> StorageStats(const StorageParts& parts) {
  const StorageContext& context = *parts.context;
  std::vector<Counter> stats;
  for (const auto& [name, counter] : kCounters) {
    stats.push_back({name, (context.counters.*counter).load(std::memory_order_relaxed)});
  }
  const IoPool::Counters loads = context.loads->counters(), control = context.control->counters();
  stats.push_back({"storage_breaker_openings", loads.openings + control.openings});
  stats.push_back({"storage_catalog_refusals", context.catalog->refused_full()});  // records nobody can find
  const uint64_t demoted = context.counters.demoted_bytes.load();
  const uint64_t copied = std::min(context.counters.copied_forward_bytes.load(), demoted);
  // Bytes written for every thousand that engines stored.
  stats.push_back({"storage_write_amplification_permille",
                   demoted == copied ? 1000
                                     : static_cast<uint64_t>(1000.0 * static_cast<double>(demoted) /
                                                             static_cast<double>(demoted - copied))});
  stats.push_back({"storage_serving", !context.loads->down() && !context.control->down()});
  stats.push_back({"storage_admitting", context.admitting.load()});
  stats.push_back({"storage_stuck_threads", loads.stuck_threads + control.stuck_threads});
  stats.push_back({"storage_records", context.catalog->records()});
  stats.push_back({"storage_records_max", context.catalog->records_max()});
  stats.push_back({"storage_catalog_bytes", context.catalog->memory_bytes()});
  stats.push_back({"storage_segment_bytes", context.options.segment_bytes});
  stats.push_back({"storage_quota_bytes", context.options.quota_bytes});
  stats.push_back({"storage_demote_queue_bytes", parts.demoter.queued_bytes()});
  stats.push_back({"storage_promoting_chunks", parts.promoter.queued_chunks()});
  uint64_t ready = 0, apart = 0, opening = 0, refused = 0, bytes = 0, hosts = 0, segments = 0,
           own_segments = 0, own_bytes = 0;
  for (const auto& ns : context.AllNamespaces()) {
    ready += ns->state.load() == StorageNamespace::State::kReady;
    apart += ns->root_epoch.load() > ns->epoch.load();
    opening += ns->state.load() == StorageNamespace::State::kOpening;
    refused += ns->state.load() == StorageNamespace::State::kRefused;
    bytes += parts.peers.others_bytes_seen(*ns);
    hosts = std::max<uint64_t>(hosts, parts.peers.hosts_seen(*ns));
  }
  for (const auto& segment : context.segments->All()) {
    if (segment->retired.load()) continue;
    ++segments;
    if (!segment->own.load()) continue;
    ++own_segments;
    own_bytes += segment->taken_bytes();
    // One that nobody has opened here yet belongs to no namespace that is open.
    if (segment->ns.load() != kNoNamespace) bytes += segment->taken_bytes();
  }
  stats.push_back({"storage_namespaces_ready", ready});
  stats.push_back({"storage_namespaces_apart", apart});  // of the ready ones; see storage/epochs.h
  stats.push_back({"storage_namespaces_opening", opening});
  stats.push_back({"storage_namespaces_refused", refused});
  stats.push_back({"storage_bytes", bytes});  // of all hosts, in the namespaces that are open here
  stats.push_back({"storage_hosts", hosts});
  stats.push_back({"storage_segments", segments});
  stats.push_back({"storage_own_segments", own_segments});
  stats.push_back({"storage_own_bytes", own_bytes});
  return stats;
}

}  // namespace tpu_sync_native
