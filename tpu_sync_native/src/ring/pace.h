// Whether the server should spin for the next request or sleep.
//
// A wake across cores costs tens of microseconds, so under dense traffic a short spin halves the round trip.
// Spinning through sparse traffic, or on a machine short of cores, makes the client slower (it takes the time
// slice the client needs) and burns a core: then the server sleeps at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ring/futex.h"

namespace tpu_sync_native {

class Pace {
 public:
  static constexpr uint64_t kSpinNs = 100 * kNsPerUs;
  static constexpr uint64_t kDenseGapNs =
      200 * kNsPerUs;                                  // spin while requests come closer than this on average
  static constexpr uint64_t kGapNsMax = 1 * kNsPerMs;  // what one long pause counts for
  static constexpr uint64_t kStolenNs = 200 * kNsPerUs;  // a spin step this long: somebody else had the core
  static constexpr uint64_t kPenaltyNs = 20 * kNsPerMs;  // no spinning for this long after that

  // After spins in vain, pauses that are slept through: perhaps the client waited for this very core. Twice
  // as many each time in a row, as one hiccup is no reason to be slow for long.
  static constexpr uint32_t kSkipsMax = 16;

  void Served(uint64_t now_ns) {
    const uint64_t gap_ns = std::min(now_ns - served_ns_, kGapNsMax);
    gap_mean_ns_ = (3 * gap_mean_ns_ + gap_ns) / 4;
    served_ns_ = looked_ns_ = now_ns;
    if (skips_ > 0) --skips_;
    if (spinning_) skips_next_ = 1;
    spinning_ = false;
  }

  // Called once per empty look at the rings.
  bool Spin(uint64_t now_ns) {
    if (now_ns - looked_ns_ > kStolenNs) penalty_until_ns_ = now_ns + kPenaltyNs;
    looked_ns_ = now_ns;
    const bool spun = spinning_;
    spinning_ = false;
    if (gap_mean_ns_ >= kDenseGapNs || skips_ > 0 || now_ns < penalty_until_ns_) return false;
    if (now_ns - served_ns_ < kSpinNs) return spinning_ = true;
    if (spun) {
      skips_ = skips_next_;
      skips_next_ = std::min(2 * skips_next_, kSkipsMax);
    }
    return false;
  }

  uint64_t served_ns() const { return served_ns_; }
  void Slept(uint64_t now_ns) { looked_ns_ = now_ns; }

 private:
  uint64_t gap_mean_ns_ = kGapNsMax;
  uint32_t skips_ = 0;
  uint32_t skips_next_ = 1;
  bool spinning_ = false;
  uint64_t served_ns_ = 0;
  uint64_t looked_ns_ = 0;
  uint64_t penalty_until_ns_ = 0;
};

}  // namespace tpu_sync_native
