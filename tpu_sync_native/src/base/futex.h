// Sleeping on a word of shared memory, and the steady clock that bounds it.
#pragma once

#include <atomic>
#include <cstdint>

namespace tpu_sync_native {

inline constexpr uint64_t kNsPerUs = 1'000;
inline constexpr uint64_t kNsPerMs = 1'000'000;
inline constexpr uint64_t kNsPerS = 1'000'000'000;

// CLOCK_MONOTONIC, nanoseconds.
uint64_t SteadyNs();

// Sleeps while `word` holds `expected`, at most until `deadline_ns`. Returns for any reason: the caller looks
// again. Works between processes, and where the word is mapped read-only.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t deadline_ns);
void FutexWake(const std::atomic<uint32_t>& word, int sleepers_max = 1);

}  // namespace tpu_sync_native
