#include "queue.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "control.h"

namespace tpu_sync_native::test_plugin {
namespace {

using Clock = std::chrono::steady_clock;

struct Operation {
  int64_t bytes;
  std::function<void()> run;
};

struct Queue {
  std::deque<Operation> waiting;
  Clock::time_point free_at = Clock::now();
};

// One lock for all queues. Never destroyed: their threads are never joined, and the process may end at any
// moment.
struct Queues {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<pjrt::Device*, Queue*> by_device;
  bool gate = false;
};

Queues& queues() {
  static auto* const all = new Queues;
  return *all;
}

Clock::duration TimeOf(int64_t bytes) {
  const int64_t bytes_per_s = settings().bytes_per_s;
  const double seconds =
      bytes_per_s == 0 ? 0.0 : static_cast<double>(bytes) / static_cast<double>(bytes_per_s);
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)) +
         std::chrono::microseconds(settings().latency_us);
}

void Serve(Queue* queue) {
  std::unique_lock lock(queues().mutex);
  while (true) {
    queues().changed.wait(lock, [queue] { return !queues().gate && !queue->waiting.empty(); });
    const Operation operation = std::move(queue->waiting.front());
    queue->waiting.pop_front();
    lock.unlock();
    queue->free_at = std::max(queue->free_at, Clock::now()) +
                     (operation.bytes != 0 ? TimeOf(operation.bytes) : Clock::duration());
    std::this_thread::sleep_until(queue->free_at);
    operation.run();
    lock.lock();
  }
}

}  // namespace

void Push(pjrt::Device* device, int64_t bytes, std::function<void()> operation) {
  const int64_t inflight = counters().inflight_bytes += bytes;
  int64_t most = counters().inflight_bytes_max;
  while (inflight > most && !counters().inflight_bytes_max.compare_exchange_weak(most, inflight)) {
  }
  const std::lock_guard lock(queues().mutex);
  Queue*& queue = queues().by_device[device];
  if (queue == nullptr) {
    queue = new Queue;
    std::thread([queue] { Serve(queue); }).detach();
  }
  queue->waiting.push_back({bytes, std::move(operation)});
  queues().changed.notify_all();
}

void RunInTurn(pjrt::Device* device, const std::function<void()>& operation) {
  bool ran = false;
  Push(device, 0, [&] {
    operation();
    const std::lock_guard lock(queues().mutex);
    ran = true;
    queues().changed.notify_all();
  });
  std::unique_lock lock(queues().mutex);
  queues().changed.wait(lock, [&] { return ran; });
}

void SetQueueGate(bool shut) {
  const std::lock_guard lock(queues().mutex);
  queues().gate = shut;
  queues().changed.notify_all();
}

}  // namespace tpu_sync_native::test_plugin
