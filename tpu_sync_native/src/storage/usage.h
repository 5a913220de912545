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
inline constexpr uint64_t kSpareMaxPermille = 35;
// Freeing goes this far beyond, so that it is not done for every chunk.
inline constexpr uint64_t kSpareMorePermille = 5;
// Rounds above the quota after which hosts below their share free too.
inline constexpr uint32_t kPatientRounds = 3;

// What a host writes is unseen by others for so many of their rounds: its heartbeat and their poll come
// first, and one of them may be late.
inline constexpr uint64_t kUnseenRounds = 3;

// Into so many parts free space is cut, one of which a host may fill in a round: all hosts together fill no
// more than there is, though for some rounds none sees what the others do.
inline uint64_t RoomParts(const Usage& usage) { return usage.hosts <= 1 ? 1 : usage.hosts * kUnseenRounds; }

// append_bytes: of the largest append, which must fit into a part.
inline uint64_t SpareBytes(const Usage& usage, uint64_t wanted_per_round, uint64_t append_bytes) {
  const uint64_t parts = RoomParts(usage);
  const uint64_t least = std::max(usage.quota_bytes / 1000 * kSpareMinPermille,
                                  std::min((parts + 1) * append_bytes, usage.quota_bytes / 2));
  const uint64_t most = usage.quota_bytes / 1000 * kSpareMaxPermille;
  return std::clamp(wanted_per_round * parts, least, std::max(least, most));
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

// What this host may append until the next round: a part of what is free now.
inline int64_t RoomBytes(const Usage& usage) {
  if (usage.quota_bytes == 0) return INT64_MAX;
  if (usage.total_bytes >= usage.quota_bytes) return 0;
  return static_cast<int64_t>((usage.quota_bytes - usage.total_bytes) / RoomParts(usage));
}

}  // namespace tpu_sync_native
