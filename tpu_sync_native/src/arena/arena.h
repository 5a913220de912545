// The payload file, mapped read-write. Its memory is committed slab by slab in the background, so that
// neither the daemon nor an engine ever meets SIGBUS on a full tmpfs: a slab is used only once it is
// populated.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "base/mapping.h"

namespace tpu_sync_native {

// Thread-safe. Destroying it stops the population.
class Arena {
 public:
  // Sizes `data_fd` to `bytes` and maps it; the descriptor is duplicated. Throws std::invalid_argument naming
  // the option (sizes must be multiples of kPayloadUnit, one slab must fit), std::system_error for the rest.
  Arena(int data_fd, uint64_t bytes, uint64_t slab_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Starts the thread that commits the pages in order. Does nothing while one runs.
  void StartPopulation();
  // Stops and joins it. Idempotent; what is populated stays usable.
  void StopPopulation();
  // The same work in the calling thread; returns when everything is populated, an error came or it was
  // stopped.
  void Populate();

  // Where the memory that begins at `offset` ends: at the first hole of the file at or behind it. Some file
  // systems (hugetlbfs) know no holes, and say that of all of it.
  uint64_t MemoryEnd(uint64_t offset) const;
  // Counts what an earlier daemon has populated: on a tmpfs, whose word on holes is sure. Elsewhere
  // population goes over all of it again. Before StartPopulation.
  void CountPopulated();

  uint64_t populated_bytes() const { return populated_bytes_.load(std::memory_order_acquire); }
  // Why population stopped early, in words; empty = it did not.
  std::string population_error() const;

  std::byte* data() const { return mapping_.data(); }
  uint64_t bytes() const { return bytes_; }
  uint64_t slab_bytes() const { return slab_bytes_; }
  // Whole slabs; what is left over at the end of the file is not used.
  uint32_t slab_count() const { return static_cast<uint32_t>(bytes_ / slab_bytes_); }
  uint32_t populated_slabs() const { return static_cast<uint32_t>(populated_bytes() / slab_bytes_); }

 private:
  bool PopulateStep(uint64_t offset, uint64_t length);

  const uint64_t bytes_;
  const uint64_t slab_bytes_;
  int fd_ = -1;
  Mapping mapping_;
  std::atomic<uint64_t> populated_bytes_{0};
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::string error_;   // guarded by mutex_
  std::thread thread_;  // guarded by mutex_
};

}  // namespace tpu_sync_native
