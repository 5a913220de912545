#include "copy/fake_device.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "copy/blocked_signals.h"
#include "copy/fake_state.h"

namespace tpu_sync_native {

FakeDevice::FakeDevice(const FakeDeviceOptions& options) : state_(std::make_shared<State>(options)) {
  if (options.bytes_per_us == 0) throw std::invalid_argument("bytes_per_us is 0");
  if (options.alignment_bytes == 0) throw std::invalid_argument("alignment_bytes is 0");
  const BlockedSignals blocked;
  for (size_t i = 0; i < (options.in_order_queue ? 1 : 2); ++i) {
    fake::Queue* const queue = &state_->queues[i];
    queue->thread = std::thread([state = state_.get(), queue] { state->Run(queue); });
    pthread_setname_np(queue->thread.native_handle(), "kvt-fake-device");
  }
}

FakeDevice::~FakeDevice() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  for (fake::Queue& queue : state_->queues) {
    if (queue.thread.joinable()) queue.thread.join();
  }
  const std::lock_guard lock(state_->mutex);
  state_->fences.clear();
}

uint64_t FakeDevice::MakeBuffer(uint64_t bytes) {
  auto buffer = std::make_shared<fake::Buffer>();
  buffer->bytes.resize(bytes);
  const std::lock_guard lock(state_->mutex);
  state_->buffers.emplace(++state_->last_handle, std::move(buffer));
  return state_->last_handle;
}

std::vector<uint64_t> FakeDevice::Step(std::span<const uint64_t> buffers, std::vector<FakeWrite> writes,
                                       uint64_t cost_ns, bool fails) {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::shared_ptr<fake::Buffer>> before;
  for (const uint64_t handle : buffers) before.push_back(state_->FindLocked(handle));
  for (const FakeWrite& write : writes) {
    if (write.buffer >= before.size() || write.offset > before[write.buffer]->bytes.size() ||
        write.bytes.size() > before[write.buffer]->bytes.size() - write.offset) {
      throw std::invalid_argument("a write outside its buffer");
    }
  }
  std::vector<uint64_t> handles(buffers.begin(), buffers.end());
  std::vector<std::shared_ptr<fake::Buffer>> after = before;
  if (state_->options.replaces_buffers) {
    for (size_t i = 0; i < after.size(); ++i) {
      after[i] = std::make_shared<fake::Buffer>();
      after[i]->bytes.resize(before[i]->bytes.size());
      state_->buffers.erase(handles[i]);
      handles[i] = ++state_->last_handle;
      state_->buffers.emplace(handles[i], after[i]);
    }
  }
  for (const auto& buffer : after) ++buffer->steps_pending;

  fake::Queue& queue = state_->QueueOf(FakeQueue::kSteps);
  fake::Operation operation;
  operation.report.kind = FakeOpKind::kStep;
  operation.cost_ns = cost_ns;
  for (const fake::Operation& ahead : queue.waiting) {
    if (ahead.batch != nullptr) operation.report.copies_ahead_ns += ahead.cost_ns;
  }
  operation.run = [before = std::move(before), after = std::move(after), writes = std::move(writes), fails] {
    for (size_t i = 0; i < after.size(); ++i) {
      if (after[i] != before[i]) std::ranges::copy(before[i]->bytes, after[i]->bytes.begin());
      after[i]->failed = before[i]->failed || fails;
      --after[i]->steps_pending;
    }
    for (const FakeWrite& write : writes) {
      std::ranges::copy(write.bytes, after[write.buffer]->bytes.begin() + static_cast<int64_t>(write.offset));
    }
    return !fails;
  };
  state_->PutLocked(&queue, std::move(operation));
  return handles;
}

std::vector<uint8_t> FakeDevice::Read(uint64_t buffer) const {
  const std::lock_guard lock(state_->mutex);
  return state_->FindLocked(buffer)->bytes;
}

void FakeDevice::Write(uint64_t buffer, std::span<const uint8_t> bytes) {
  const std::lock_guard lock(state_->mutex);
  std::vector<uint8_t>& target = state_->FindLocked(buffer)->bytes;
  if (bytes.size() > target.size()) throw std::invalid_argument("a write outside its buffer");
  std::ranges::copy(bytes, target.begin());
}

void FakeDevice::Pause(FakeQueue queue) {
  const std::lock_guard lock(state_->mutex);
  state_->QueueOf(queue).paused = true;
}

void FakeDevice::Resume(FakeQueue queue) {
  const std::lock_guard lock(state_->mutex);
  state_->QueueOf(queue).paused = false;
  state_->QueueOf(queue).permits = 0;
  state_->changed.notify_all();
}

void FakeDevice::Run(FakeQueue queue, uint64_t operations) {
  const std::lock_guard lock(state_->mutex);
  state_->QueueOf(queue).permits += operations;
  state_->changed.notify_all();
}

bool FakeDevice::AwaitQueued(FakeQueue queue, uint64_t operations, double timeout_s) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                  [&] { return state_->QueueOf(queue).waiting.size() >= operations; });
}

bool FakeDevice::AwaitIdle(FakeQueue queue, double timeout_s) const {
  std::unique_lock lock(state_->mutex);
  const fake::Queue& of = state_->QueueOf(queue);
  return state_->changed.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                  [&] { return of.waiting.empty() && !of.running; });
}

void FakeDevice::HoldEvents() {
  const std::lock_guard lock(state_->mutex);
  state_->events_held = true;
}

void FakeDevice::ReleaseEvents() {
  std::unique_lock lock(state_->mutex);
  state_->events_held = false;
  state_->TellFences(lock);
}

void FakeDevice::FailCopies(uint64_t count) {
  const std::lock_guard lock(state_->mutex);
  state_->copies_to_fail += count;
}

std::vector<FakeOp> FakeDevice::log() const {
  const std::lock_guard lock(state_->mutex);
  return state_->log;
}

uint64_t FakeDevice::held() const {
  const std::lock_guard lock(state_->mutex);
  return state_->held;
}

}  // namespace tpu_sync_native
