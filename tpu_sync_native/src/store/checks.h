// Checksums of what lies in memory: which chunks have one, and the work of making and comparing them. The
// store hands work out and takes the answers (see checks.cc); store/checker.h is who does it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/futex.h"

namespace tpu_sync_native {

enum class ChecksumPolicy : uint8_t {
  kOff,
  kSampled,  // of one chunk in 16
  kAlways,
};

// One payload to be read. Nobody holds the slot meanwhile: the generation tells whether it was still the
// chunk.
struct ChunkCheck {
  uint32_t slot;
  uint32_t generation;
  uint64_t offset;
  uint64_t bytes;
  uint32_t expected;   // checksum word; 0: it is to be made
  uint32_t found = 0;  // the answer
};

// A chunk whose bytes were not what was committed.
struct DamagedChunk {
  std::string ns_id;
  std::string key;
  uint64_t offset;
};

// Work that somebody may be asleep for.
class CheckBell {
 public:
  uint32_t rings() const { return word_.load(); }
  void Ring() {
    word_.fetch_add(1);
    if (asleep_.load()) FutexWake(word_);
  }
  // Returns when it has rung since `rings` was read, or for no reason.
  void Await(uint32_t rings) {
    asleep_.store(true);
    FutexWait(word_, rings, SteadyNs() + 60 * kNsPerS);
    asleep_.store(false);
  }

 private:
  std::atomic<uint32_t> word_{0};
  std::atomic<bool> asleep_{false};
};

}  // namespace tpu_sync_native
