// Huge pages for a shared table that is read at random places.
//
// A probe of a large table misses the TLB at nearly every line, and in a virtual machine one such miss costs
// more than the line itself. tmpfs gives small pages unless an administrator has decided otherwise; the
// kernel does merge pages that are there already when asked to (MADV_COLLAPSE, Linux 6.1), for every process
// that maps the file. It copies 2 MiB, and whoever touches them meanwhile waits: about a millisecond, once.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace tpu_sync_native {

inline constexpr uint64_t kHugePageBytes = 2ull << 20;

// Merges, on a thread of its own, pages that its owner has said to be committed, all but a sixteenth of each
// at most: it makes next to no memory resident that was not. Best effort: where the kernel cannot, or has no
// huge page left, the pages stay small. One thread may call it. Borrows the mapping, which begins at a
// multiple of kHugePageBytes.
class HugePages {
 public:
  HugePages(std::byte* data, uint64_t bytes)
      : data_(data), committed_(static_cast<size_t>(bytes / kHugePageBytes)) {}
  ~HugePages();  // waits for the page under way
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  // These bytes of the file have memory now; each is said once.
  void Committed(uint64_t offset, uint64_t bytes);

 private:
  void Run();

  std::byte* const data_;
  std::vector<uint32_t> committed_;  // per huge page: bytes that have memory
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<size_t> ready_;  // guarded by mutex_: pages to merge
  bool stop_ = false;          // guarded by mutex_
  std::thread thread_;         // started with the first page
};

}  // namespace tpu_sync_native
