#include <algorithm>

#include "index/probe.h"
#include "store/store_impl.h"

namespace tpu_sync_native {

uint64_t Store::Impl::IndexBytes() const {
  uint64_t used_slots = 0;
  for (const uint32_t committed : records_committed) used_slots += committed;
  return index.committed_bytes() + used_slots * sizeof(SlotCell) + make_policy.shared_bytes;
}

std::vector<Counter> Store::Impl::Stats() const {
  std::vector<Counter> stats;
  const auto* values = reinterpret_cast<const uint64_t*>(&counters);
  for (size_t i = 0; i < std::size(kCounterNames); ++i) stats.push_back({kCounterNames[i], values[i]});

  uint64_t read_leases = 0;
  for (const auto& [id, lease] : leases) read_leases += lease.kind == LeaseRecord::Kind::kRead;
  const uint64_t open_sessions = static_cast<uint64_t>(
      std::count_if(sessions.begin(), sessions.end(), [](const auto& item) { return !item.second.closed; }));
  const uint64_t gauges[] = {
      arena->bytes(),
      arena->populated_bytes(),
      chunk_bytes,
      arena->slab_bytes(),
      arena->slab_count(),
      slots.free_slabs(),
      options.slots_max,
      slots.count(SlotState::kCommitted) - stale_slots,
      slots.count(SlotState::kReserved),
      slots.count(SlotState::kPromoting),
      slots.count(SlotState::kQuarantined),
      late_slots.size(),
      checks.hidden_count,
      stale_slots - withheld_slots,
      withheld_slots,
      slots.pinned(),
      read_leases,
      leases.size() - read_leases,
      open_sessions,
      namespaces.size(),
      IndexBytes(),
      draining ? 1u : 0u,
      restart.restarts,
      restart.kept,
      restart.quarantined,
      restart.late,
      restart.unfinished,
      restart.cleared,
      restart.damaged,
      restart.microseconds,
  };
  static_assert(std::size(gauges) == std::size(kGaugeNames));
  for (size_t i = 0; i < std::size(gauges); ++i) stats.push_back({kGaugeNames[i], gauges[i]});
  return stats;
}

std::vector<Store::NamespaceStats> Store::Impl::Namespaces() const {
  std::vector<NamespaceStats> stats;
  for (uint32_t i = 0; i < namespaces.size(); ++i) {
    const NamespaceEntry& space = namespaces[i];
    stats.push_back({i, space.id, space.chunk_bytes, space.epoch, space.chunks,
                     space.chunks * space.chunk_bytes, space.hits, space.misses, space.stores,
                     space.evictions, space.floor_bytes});
  }
  return stats;
}

std::vector<Store::SessionStats> Store::Impl::Sessions() const {
  std::unordered_map<SessionId, SessionStats> by_id;
  for (const auto& [id, session] : sessions) {
    if (!session.closed) by_id[id] = {id, session.group, session.pid, 0, 0, 0, 0};
  }
  for (const auto& [id, lease] : leases) {
    const auto found = by_id.find(lease.session);
    if (found == by_id.end()) continue;
    const bool read = lease.kind == LeaseRecord::Kind::kRead;
    ++(read ? found->second.read_leases : found->second.write_leases);
    (read ? found->second.pinned_slots : found->second.reserved_slots) += lease.slots.size();
  }
  std::vector<SessionStats> stats;
  for (const auto& [id, session] : by_id) stats.push_back(session);
  std::sort(stats.begin(), stats.end(),
            [](const SessionStats& a, const SessionStats& b) { return a.session < b.session; });
  return stats;
}

std::vector<Store::ChunkInfo> Store::Impl::ListChunks(uint32_t ns, uint32_t after, uint32_t limit) const {
  std::vector<ChunkInfo> chunks;
  if (ns >= namespaces.size()) return chunks;
  const uint64_t owner = OwnerWord(ns, namespaces[ns].epoch);
  const uint32_t first = after == kNoSlot ? 0 : after + 1;
  for (uint32_t slot = first; slot < options.slots_max && chunks.size() < limit; ++slot) {
    const SlotCell& cell = slots.cell(slot);
    // Records of slots that were never used may have no memory behind them; a used one's cell says so.
    if (cell.state == SlotState::kFree || cell.state == SlotState::kQuarantined) continue;
    HashedKey key;
    if (index.KeyOf(slot, &key) != owner) continue;
    const SlotRecord& record = index.view().slot(slot);
    chunks.push_back({std::string(reinterpret_cast<const char*>(key.words), key.bytes), slot,
                      record.generation.load(std::memory_order_relaxed), cell.pins, slots.offset_of(slot),
                      static_cast<uint8_t>(cell.state)});
  }
  return chunks;
}

}  // namespace tpu_sync_native
