// What this host has seen of one namespace on the root, so that a poll costs what has changed and no more.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "segment/layout.h"
#include "segment/names.h"
#include "storage/own_lease.h"

namespace tpu_sync_native {

using HostId = std::array<uint8_t, 16>;

inline HostId ToHostId(const uint8_t id[16]) {
  HostId host;
  std::memcpy(host.data(), id, host.size());
  return host;
}

struct SeenSegment {
  uint32_t id = 0;          // in the segment table; 0: its index was refused
  uint64_t seen_bytes = 0;  // records below are in the catalog (or were refused by it)
  bool sealed = false;      // its final index was read
};

// A directory below hosts/.
struct SeenDirectory {
  HostDirectoryName name;
  HostId keeper{};        // whose lease speaks for it: the adopter, or the host that wrote it
  bool listed = false;    // by the poll that runs
  bool complete = false;  // everything in it was loaded at loaded_changes
  uint64_t loaded_changes = 0;
  uint64_t looked_ms = 0;  // at all of it
  std::map<uint64_t, SeenSegment> segments;
};

struct SeenHost {
  std::optional<LeaseFile> lease;  // the last one that could be read
  bool listed = false;             // has a directory of its own
  bool read_failed = false;        // this time; says nothing about the host
  bool lease_gone = false;         // it was adopted since it was listed, or has none yet
  uint64_t still_ms = 0;           // for so long the counter was watched and did not move
  bool dead = false;
};

struct PeerView {
  std::mutex round;  // one poll at a time; others turn back
  OwnLease own;
  std::mutex beat;  // one heartbeat at a time
  uint64_t polled_ms = 0;
  uint64_t epoch = 0;                                // of this host, at the last poll
  uint64_t verified_ms = 0;                          // own segments, against what lies there
  std::map<std::string, SeenDirectory> directories;  // by name; this host's own one is not among them
  std::map<HostId, SeenHost> hosts;
  std::atomic<uint64_t> others_bytes{0};
  std::atomic<uint32_t> others_alive{0};
  std::atomic<uint64_t> foreign{0};  // entries of hosts/ that are none of ours
};

}  // namespace tpu_sync_native
