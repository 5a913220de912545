// What tests set and ask.
#include <utility>

#include "world.h"

namespace tpu_sync_native::testing {

void World::Reset() {
  MutexLock lock(mutex_);
  stop_copies_ = false;
  changed_.notify_all();
  // Those of a lost context are dropped while it still is.
  changed_.wait(lock, [this] { return unfinished_copies_ == 0; });
  devices_ = 1;
  broken_ = cuda::kSuccess;
  refuse_pins_ = capturing_ = false;
  copy_time_us_ = pageable_copies_ = 0;
  calls_.clear();
  failures_.clear();
}

void World::SetDevices(int count) {
  const std::lock_guard lock(mutex_);
  devices_ = count;
}

void World::FailOnce(const std::string& call, cuda::Result result, int after) {
  const std::lock_guard lock(mutex_);
  failures_[call] = {result, after};
}

void World::BreakContext(cuda::Result result) {
  const std::lock_guard lock(mutex_);
  BreakLocked(result);
}

void World::RefusePins(bool refuse) {
  const std::lock_guard lock(mutex_);
  refuse_pins_ = refuse;
}

void World::StopCopies(bool stop) {
  const std::lock_guard lock(mutex_);
  stop_copies_ = stop;
  changed_.notify_all();
}

void World::SetCopyTime(uint64_t microseconds) {
  const std::lock_guard lock(mutex_);
  copy_time_us_ = microseconds;
}

void World::CaptureElsewhere(bool capturing) {
  const std::lock_guard lock(mutex_);
  capturing_ = capturing;
}

void World::Launch(cuda::Stream stream, std::function<void()> kernel) { Enqueue(stream, std::move(kernel)); }

uint8_t* World::Memory(cuda::DevicePtr address) {
  const std::lock_guard lock(mutex_);
  return MemoryLocked(address, 0);
}

uint64_t World::calls(const std::string& call) {
  const std::lock_guard lock(mutex_);
  return calls_[call];
}

uint64_t World::unfinished_copies() {
  const std::lock_guard lock(mutex_);
  return unfinished_copies_;
}

uint64_t World::pageable_copies() {
  const std::lock_guard lock(mutex_);
  return pageable_copies_;
}

uint64_t World::pinned_ranges() {
  const std::lock_guard lock(mutex_);
  return pinned_.size();
}

uint64_t World::live_streams() {
  const std::lock_guard lock(mutex_);
  return streams_.size();
}

uint64_t World::live_events() {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

int World::retained_contexts() {
  const std::lock_guard lock(mutex_);
  return retained_;
}

size_t World::contexts_of_this_thread() { return ThisThread().contexts.size(); }

bool World::this_thread_is_relaxed() { return ThisThread().capture_mode == cuda::kCaptureModeRelaxed; }

}  // namespace tpu_sync_native::testing
