// How much is to be freed, as pure arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tpu_sync_native {

struct Usage {
  uint64_t quota_bytes = 0;  // 0: none
  uint64_t total_bytes = 0;  // of all hosts, as last seen
  uint64_t own_bytes = 0;
  uint32_t hosts = 1;  // that live, this one included
};

// Free space is kept between these: a writer that finds none drops chunks, so there is as much as one round
// of everybody's writing needs, but a cache that is empty is no use either.
inline constexpr uint64_t kSpareMinPermille = 15;
inline constexpr uint64_t kSpareMaxPermille = 40;
// Freeing goes this far beyond, so that it is not done for every chunk.
inline constexpr uint64_t kSpareMorePermille = 5;
// Rounds above the quota after which hosts below their share free too.
inline constexpr uint32_t kPatientRounds = 3;

// append_bytes: of the largest append, which must fit into every host's part.
inline uint64_t SpareBytes(const Usage& usage, uint64_t written_per_round, uint64_t append_bytes) {
  const uint64_t least = std::max(usage.quota_bytes / 1000 * kSpareMinPermille,
                                  std::min(2 * append_bytes * usage.hosts, usage.quota_bytes / 4));
  const uint64_t most = usage.quota_bytes / 1000 * kSpareMaxPermille;
  return std::clamp(written_per_round * usage.hosts, least, std::max(least, most));
}

// What this host is to free now. rounds_over: for so many rounds more was used than is allowed.
inline uint64_t BytesToFree(const Usage& usage, uint64_t spare_bytes, uint32_t rounds_over) {
  if (usage.quota_bytes == 0) return 0;
  const uint64_t allowed = usage.quota_bytes - std::min(spare_bytes, usage.quota_bytes);
  if (usage.total_bytes <= allowed) return 0;
  const uint64_t excess = usage.total_bytes - allowed + usage.quota_bytes / 1000 * kSpareMorePermille;
  const uint64_t share = allowed / std::max(usage.hosts, 1u);
  const uint64_t above_share = usage.own_bytes > share ? usage.own_bytes - share : 0;
  // Twice its part: others do theirs at the same time, unseen, but not all of them are above their share.
  const double part = static_cast<double>(usage.own_bytes) / static_cast<double>(usage.total_bytes);
  const auto double_part = static_cast<uint64_t>(static_cast<double>(excess) * std::min(2 * part, 1.0));
  uint64_t bytes = std::min(double_part, above_share);
  if (rounds_over >= kPatientRounds) bytes = std::max(bytes, double_part / 2);
  return std::min(bytes, usage.own_bytes);
}

// What this host may append until the next round: its part of what is free now.
inline int64_t RoomBytes(const Usage& usage) {
  if (usage.quota_bytes == 0) return INT64_MAX;
  if (usage.total_bytes >= usage.quota_bytes) return 0;
  return static_cast<int64_t>((usage.quota_bytes - usage.total_bytes) / std::max(usage.hosts, 1u));
}

}  // namespace tpu_sync_native
