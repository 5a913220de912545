#include "world.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace tpu_sync_native::testing {
namespace {

constexpr cuda::Result kInvalidHandle = 400;

FakeEvent* AsEvent(cuda::Event event) { return reinterpret_cast<FakeEvent*>(event); }

}  // namespace

// Never freed: the streams' threads may outlive static destruction. A forked child, which has none of them,
// may still ask what was called.
World& TheWorld() {
  static World* const world = [] {
    auto* const made = new World;
    pthread_atfork([] { TheWorld().Lock(); }, [] { TheWorld().Unlock(); }, [] { TheWorld().Unlock(); });
    return made;
  }();
  return *world;
}

void World::Lock() { mutex_.lock(); }
void World::Unlock() { mutex_.unlock(); }

ThreadState& ThisThread() {
  thread_local ThreadState state;
  return state;
}

cuda::Result World::Enter(const std::string& call, bool needs_context, Spoils spoils) {
  const std::lock_guard lock(mutex_);
  ++calls_[call];
  if (needs_context && ThisThread().contexts.empty()) return cuda::kInvalidContext;
  if (broken_ != cuda::kSuccess) return broken_;
  if (capturing_ && spoils == Spoils::kCapture && ThisThread().capture_mode != cuda::kCaptureModeRelaxed) {
    return cuda::kCaptureUnsupported;
  }
  const auto failure = failures_.find(call);
  if (failure == failures_.end()) return cuda::kSuccess;
  if (failure->second.after-- > 0) return cuda::kSuccess;
  const cuda::Result result = failure->second.result;
  failures_.erase(failure);
  return result;
}

// ---- streams ----

FakeStream* World::FindLocked(cuda::Stream stream) {
  if (stream == nullptr) {
    if (!default_stream_) {
      default_stream_ = std::make_shared<FakeStream>();
      StartLocked(default_stream_.get(), default_stream_);
    }
    return default_stream_.get();
  }
  const auto found = streams_.find(reinterpret_cast<FakeStream*>(stream));
  return found == streams_.end() ? nullptr : found->first;
}

void World::StartLocked(FakeStream*, std::shared_ptr<FakeStream> owned) {
  std::thread([this, stream = std::move(owned)] { Run(stream); }).detach();
}

void World::Run(const std::shared_ptr<FakeStream>& stream) {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !stream->work.empty() || stream->closed; });
    if (stream->work.empty()) return;
    const std::function<void()> work = std::move(stream->work.front());
    stream->work.pop_front();
    stream->running = true;
    lock.unlock();
    work();
    lock.lock();
    stream->running = false;
    changed_.notify_all();
  }
}

cuda::Result World::CreateStream(cuda::Stream* stream) {
  const std::lock_guard lock(mutex_);
  const auto made = std::make_shared<FakeStream>();
  streams_.emplace(made.get(), made);
  StartLocked(made.get(), made);
  *stream = reinterpret_cast<cuda::Stream>(made.get());
  return cuda::kSuccess;
}

cuda::Result World::DestroyStream(cuda::Stream stream) {
  const std::lock_guard lock(mutex_);
  FakeStream* const found = stream == nullptr ? nullptr : FindLocked(stream);
  if (found == nullptr) return kInvalidHandle;
  found->closed = true;  // what is queued is still done
  streams_.erase(found);
  changed_.notify_all();
  return cuda::kSuccess;
}

cuda::Result World::QueryStream(cuda::Stream stream) {
  const std::lock_guard lock(mutex_);
  const FakeStream* const found = FindLocked(stream);
  if (found == nullptr) return kInvalidHandle;
  return found->work.empty() && !found->running ? cuda::kSuccess : cuda::kNotReady;
}

cuda::Result World::AwaitStream(cuda::Stream stream) {
  MutexLock lock(mutex_);
  const FakeStream* const found = FindLocked(stream);
  if (found == nullptr) return kInvalidHandle;
  changed_.wait(lock, [&] { return broken_ != cuda::kSuccess || (found->work.empty() && !found->running); });
  return broken_;
}

cuda::Result World::Enqueue(cuda::Stream stream, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  FakeStream* const found = FindLocked(stream);
  if (found == nullptr) return kInvalidHandle;
  found->work.push_back(std::move(work));
  changed_.notify_all();
  return cuda::kSuccess;
}

// ---- events ----

cuda::Result World::CreateEvent(cuda::Event* event) {
  const std::lock_guard lock(mutex_);
  const auto made = std::make_shared<FakeEvent>();
  events_.emplace(made.get(), made);
  *event = reinterpret_cast<cuda::Event>(made.get());
  return cuda::kSuccess;
}

cuda::Result World::DestroyEvent(cuda::Event event) {
  const std::lock_guard lock(mutex_);
  return events_.erase(AsEvent(event)) == 1 ? cuda::kSuccess : kInvalidHandle;
}

cuda::Result World::RecordEvent(cuda::Event event, cuda::Stream stream) {
  const std::lock_guard lock(mutex_);
  FakeStream* const on = FindLocked(stream);
  const auto found = events_.find(AsEvent(event));
  if (on == nullptr || found == events_.end()) return kInvalidHandle;
  on->work.push_back([this, recorded = ++found->second->recorded, of = found->second] {
    const std::lock_guard inner(mutex_);
    if (broken_ == cuda::kSuccess) of->passed = std::max(of->passed, recorded);
    changed_.notify_all();
  });
  changed_.notify_all();
  return cuda::kSuccess;
}

cuda::Result World::QueryEvent(cuda::Event event) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(AsEvent(event));
  if (found == events_.end()) return kInvalidHandle;
  return found->second->passed == found->second->recorded ? cuda::kSuccess : cuda::kNotReady;
}

cuda::Result World::AwaitEvent(cuda::Event event) {
  MutexLock lock(mutex_);
  const auto found = events_.find(AsEvent(event));
  if (found == events_.end()) return kInvalidHandle;
  const std::shared_ptr<FakeEvent> of = found->second;
  changed_.wait(lock, [&] { return broken_ != cuda::kSuccess || of->passed == of->recorded; });
  return broken_;
}

cuda::Result World::LetWait(cuda::Stream stream, cuda::Event event) {
  const std::lock_guard lock(mutex_);
  FakeStream* const on = FindLocked(stream);
  const auto found = events_.find(AsEvent(event));
  if (on == nullptr || found == events_.end()) return kInvalidHandle;
  on->work.push_back([this, until = found->second->recorded, of = found->second] {
    MutexLock inner(mutex_);
    changed_.wait(inner, [&] { return broken_ != cuda::kSuccess || of->passed >= until; });
  });
  changed_.notify_all();
  return cuda::kSuccess;
}

// ---- memory ----

cuda::Result World::Pin(const uint8_t* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (refuse_pins_) return cuda::kOutOfMemory;
  return pinned_.emplace(memory, bytes).second ? cuda::kSuccess : cuda::kAlreadyRegistered;
}

cuda::Result World::Unpin(const uint8_t* memory) {
  const std::lock_guard lock(mutex_);
  return pinned_.erase(memory) == 1 ? cuda::kSuccess : cuda::kInvalidValue;
}

bool World::PinnedLocked(const uint8_t* memory, size_t bytes) const {
  return std::ranges::any_of(pinned_, [&](const auto& range) {
    return range.first <= memory && memory + bytes <= range.first + range.second;
  });
}

cuda::Result World::Allocate(cuda::DevicePtr* address, size_t bytes) {
  constexpr cuda::DevicePtr kGap = 1 << 20;
  const std::lock_guard lock(mutex_);
  memory_.emplace(next_address_, std::vector<uint8_t>(bytes));
  *address = std::exchange(next_address_, next_address_ + (bytes / kGap + 2) * kGap);
  return cuda::kSuccess;
}

cuda::Result World::Free(cuda::DevicePtr address) {
  const std::lock_guard lock(mutex_);
  return memory_.erase(address) == 1 ? cuda::kSuccess : cuda::kInvalidValue;
}

uint8_t* World::MemoryLocked(cuda::DevicePtr address, size_t bytes) {
  auto after = memory_.upper_bound(address);
  if (after == memory_.begin()) return nullptr;
  auto& [begin, data] = *--after;
  return address + bytes <= begin + data.size() ? data.data() + (address - begin) : nullptr;
}

cuda::Result World::CopyAsync(uint8_t* host, cuda::DevicePtr device, size_t bytes, bool to_host,
                              cuda::Stream stream) {
  bool pageable = false;
  {
    const std::lock_guard lock(mutex_);
    pageable = !PinnedLocked(host, bytes);
    pageable_copies_ += pageable ? 1 : 0;
    ++unfinished_copies_;
  }
  const cuda::Result result = Enqueue(stream, [=, this] { RunCopy(host, device, bytes, to_host); });
  if (result == cuda::kSuccess) return pageable ? AwaitStream(stream) : result;
  const std::lock_guard lock(mutex_);
  --unfinished_copies_;
  return result;
}

void World::RunCopy(uint8_t* host, cuda::DevicePtr device, size_t bytes, bool to_host) {
  MutexLock lock(mutex_);
  changed_.wait(lock, [&] { return broken_ != cuda::kSuccess || !stop_copies_; });
  const std::chrono::microseconds takes(copy_time_us_);
  uint8_t* const memory = MemoryLocked(device, bytes);
  if (memory == nullptr) BreakLocked(cuda::kIllegalAddress);
  if (broken_ == cuda::kSuccess) {
    lock.unlock();
    std::this_thread::sleep_for(takes);  // what a copy takes, not a wait for anybody
    std::memcpy(to_host ? host : memory, to_host ? memory : host, bytes);
    lock.lock();
  }
  --unfinished_copies_;
  changed_.notify_all();
}

void World::BreakLocked(cuda::Result result) {
  if (broken_ == cuda::kSuccess) broken_ = result;
  changed_.notify_all();
}

cuda::Result World::Retain(int by) {
  const std::lock_guard lock(mutex_);
  retained_ += by;
  return cuda::kSuccess;
}

int World::devices() {
  const std::lock_guard lock(mutex_);
  return devices_;
}

}  // namespace tpu_sync_native::testing
