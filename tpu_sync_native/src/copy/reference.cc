#include "copy/reference.h"

#include <time.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "copy/kernels.h"

namespace tpu_sync_native {
namespace {

using Clock = std::chrono::steady_clock;

double ThreadCpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

ReferenceTime CopyReference(std::span<const uint64_t> rows, ReferenceMethod method, int threads) {
  const size_t count = rows.size() / 3;
  std::barrier ready(threads);
  std::vector<double> cpu_s(threads);
  std::vector<Clock::time_point> started(threads), ended(threads);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      ready.arrive_and_wait();
      const double start_s = ThreadCpuSeconds();
      started[t] = Clock::now();
      for (size_t i = t; i < count; i += threads) {
        const auto* source = reinterpret_cast<const void*>(rows[i * 3]);
        auto* target = reinterpret_cast<void*>(rows[i * 3 + 1]);
        if (method == ReferenceMethod::kMemcpy) {
          CopyCached(target, source, rows[i * 3 + 2]);
        } else {
          CopyNonTemporal(target, source, rows[i * 3 + 2]);
        }
      }
      NonTemporalFence();
      ended[t] = Clock::now();
      cpu_s[t] = ThreadCpuSeconds() - start_s;
    });
  }
  for (std::thread& worker : workers) worker.join();
  const Clock::duration wall = *std::ranges::max_element(ended) - *std::ranges::min_element(started);
  ReferenceTime time{std::chrono::duration<double>(wall).count(), 0};
  for (const double seconds : cpu_s) time.cpu_s += seconds;
  return time;
}

}  // namespace tpu_sync_native
