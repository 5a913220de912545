// What the parts of the fake device share.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "copy/fake_device.h"

namespace tpu_sync_native {
namespace fake {

struct Buffer {
  std::vector<uint8_t> bytes;  // never resized: its size is read without the mutex
  uint64_t steps_pending = 0;  // launched, to write it, not run
  bool failed = false;
};

// The copies of one call.
struct Batch {
  uint64_t left = 0;
  bool ok = true;
};

struct Operation {
  FakeOp report{};
  uint64_t cost_ns = 0;
  std::function<bool()> run;  // under the device's mutex
  Batch* batch = nullptr;     // of a copy
};

struct Queue {
  std::deque<Operation> waiting;
  bool paused = false;
  uint64_t permits = 0;  // of a paused queue
  bool running = false;
  uint64_t clock_ns = 0;
  std::thread thread;
};

}  // namespace fake

struct FakeDevice::State {
  struct Fence {
    std::vector<std::shared_ptr<fake::Buffer>> buffers;
    std::function<void()> ready;
  };

  explicit State(const FakeDeviceOptions& with) : options(with), random(with.seed) {}

  const FakeDeviceOptions options;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  // Guarded by mutex:
  std::mt19937_64 random;
  std::array<fake::Queue, 2> queues;
  std::map<uint64_t, std::shared_ptr<fake::Buffer>> buffers;
  uint64_t last_handle = 0;
  std::vector<std::pair<uint8_t*, uint64_t>> registered;
  std::vector<Fence> fences;
  std::vector<FakeOp> log;
  uint64_t held = 0;
  uint64_t copies_to_fail = 0;
  bool events_held = false;
  bool stopping = false;

  fake::Queue& QueueOf(FakeQueue which) {
    return queues[options.in_order_queue || which == FakeQueue::kSteps ? 0 : 1];
  }
  bool HitLocked(uint32_t in_1000) { return random() % 1000 < in_1000; }
  bool CopyFailsLocked() {
    if (copies_to_fail == 0) return HitLocked(options.copies_failing);
    --copies_to_fail;
    return true;
  }
  uint64_t CopyCost(uint64_t bytes) const { return options.copy_ns + bytes * 1'000 / options.bytes_per_us; }
  const std::shared_ptr<fake::Buffer>& FindLocked(uint64_t handle) const {
    const auto found = buffers.find(handle);
    if (found == buffers.end()) throw std::invalid_argument("no buffer " + std::to_string(handle));
    return found->second;
  }
  bool ReadyLocked(const std::vector<std::shared_ptr<fake::Buffer>>& of) const {
    return !events_held && std::ranges::all_of(of, [](const auto& one) { return one->steps_pending == 0; });
  }
  bool RegisteredLocked(const uint8_t* begin, uint64_t bytes) const {
    if (!options.registered_memory_only) return true;
    return std::ranges::any_of(registered, [&](const auto& arena) {
      return begin >= arena.first && begin + bytes <= arena.first + arena.second;
    });
  }
  // Tells, with the mutex given up, whoever waits for what is done now.
  void TellFences(std::unique_lock<std::mutex>& lock) {
    std::vector<Fence> done;
    for (size_t i = 0; i < fences.size();) {
      if (!ReadyLocked(fences[i].buffers)) {
        ++i;
        continue;
      }
      done.push_back(std::move(fences[i]));
      fences.erase(fences.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (done.empty()) return;
    lock.unlock();
    for (const Fence& fence : done) fence.ready();
    done.clear();
    lock.lock();
  }
  void PutLocked(fake::Queue* queue, fake::Operation operation) {
    queue->waiting.push_back(std::move(operation));
    changed.notify_all();
  }
  void EndLocked(fake::Operation* operation, bool ok) {
    operation->report.ok = ok;
    log.push_back(operation->report);
    if (operation->batch == nullptr) return;
    operation->batch->ok &= ok;
    --operation->batch->left;
  }

  void Run(fake::Queue* queue) {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] {
        return stopping || (!queue->waiting.empty() && (!queue->paused || queue->permits != 0));
      });
      if (stopping) break;
      if (queue->paused) --queue->permits;
      fake::Operation operation = std::move(queue->waiting.front());
      queue->waiting.pop_front();
      queue->running = true;
      operation.report.begin_ns = queue->clock_ns;
      queue->clock_ns += operation.cost_ns;
      operation.report.end_ns = queue->clock_ns;
      EndLocked(&operation, operation.run());
      TellFences(lock);
      queue->running = false;
      changed.notify_all();
    }
    for (fake::Operation& operation : queue->waiting) EndLocked(&operation, false);
    queue->waiting.clear();
    changed.notify_all();
  }
};

}  // namespace tpu_sync_native
