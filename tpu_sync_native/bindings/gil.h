// When the GIL is given up.
//
// A call that may wait (for the daemon, the store's mutex, a thread) gives it up. A call that only reads
// shared memory for a few microseconds keeps it: taking it back can cost a whole switch interval (5 ms) when
// other Python threads are busy, far more than the call itself.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>

namespace tpu_sync_native {

// Keys up to which a lookup keeps the GIL: below some ten microseconds.
inline constexpr uint32_t kLookupKeysWithGilMax = 256;

template <typename Call>
auto WithoutGil(Call&& call) {
  const pybind11::gil_scoped_release release;
  return std::forward<Call>(call)();
}

}  // namespace tpu_sync_native
