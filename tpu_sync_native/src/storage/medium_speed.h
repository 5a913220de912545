// How fast the medium is for one of our threads, in bytes a second; recent I/Os count, older ones fade.
#pragma once

#include <cstdint>
#include <mutex>

#include "base/futex.h"

namespace tpu_sync_native {

class MediumSpeed {
 public:
  // Of I/Os that are large enough: a small one says how long the medium takes to answer.
  void Add(uint64_t bytes, uint64_t ns) {
    if (bytes == 0 || ns == 0) return;
    const std::lock_guard lock(mutex_);
    bytes_ += static_cast<double>(bytes);
    ns_ += static_cast<double>(ns);
    if (bytes_ < kFadeBytes) return;
    bytes_ /= 2;
    ns_ /= 2;
  }
  double bytes_per_s() const {  // 0: not measured yet
    const std::lock_guard lock(mutex_);
    return ns_ == 0 ? 0 : bytes_ / ns_ * static_cast<double>(kNsPerS);
  }

 private:
  static constexpr double kFadeBytes = 1 << 30;

  mutable std::mutex mutex_;
  double bytes_ = 0, ns_ = 0;
};

}  // namespace tpu_sync_native
