#include "base/huge_pages.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace tpu_sync_native {
namespace {

// A slab's slots need not fill its range of slot numbers; what is left between two slabs may get memory.
constexpr uint64_t kEnoughBytes = kHugePageBytes - kHugePageBytes / 16;

// Somebody holds a small page for a moment: another try later, but not for ever.
constexpr uint32_t kTries = 1000;
constexpr auto kPause = std::chrono::milliseconds(20);

int Merge(std::byte* page) { return madvise(page, kHugePageBytes, MADV_COLLAPSE) == 0 ? 0 : errno; }

}  // namespace

HugePages::~HugePages() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void HugePages::Committed(uint64_t offset, uint64_t bytes) {
  const uint64_t end = offset + bytes;
  bool ready = false;
  while (offset < end) {
    const auto page = static_cast<size_t>(offset / kHugePageBytes);
    if (page >= committed_.size()) break;  // the file's end is not a whole page
    const uint64_t next = std::min(end, (page + 1) * kHugePageBytes);
    const uint32_t before = committed_[page];
    committed_[page] += static_cast<uint32_t>(next - offset);
    offset = next;
    if (before >= kEnoughBytes || committed_[page] < kEnoughBytes) continue;
    const std::lock_guard lock(mutex_);
    ready_.push_back(page);
    ready = true;
  }
  if (!ready) return;
  if (thread_.joinable()) {
    wake_.notify_one();
  } else {
    thread_ = std::thread([this] { Run(); });
  }
}

void HugePages::Run() {
  pthread_setname_np(pthread_self(), "kvtier-pages");
  std::unique_lock lock(mutex_);
  uint32_t tries = kTries;
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || !ready_.empty(); });
    if (stop_) return;
    const size_t page = ready_.back();
    ready_.pop_back();
    lock.unlock();
    const int error = Merge(data_ + page * kHugePageBytes);
    lock.lock();
    if (error == EINVAL) return;  // this kernel or file system never will
    if (error == EAGAIN && tries > 0) {
      --tries;
      ready_.insert(ready_.begin(), page);
      wake_.wait_for(lock, kPause, [&] { return stop_; });
    }
  }
}

}  // namespace tpu_sync_native
