#include "copy/reference.h"

#include <time.h>

#include <barrier>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "copy/kernels.h"

namespace tpu_sync_native {
namespace {

double ThreadCpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

ReferenceTime CopyReference(std::span<const uint64_t> rows, ReferenceMethod method, int threads) {
  const size_t count = rows.size() / 3;
  std::barrier ready(threads + 1);
  std::vector<double> cpu_s(threads);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      ready.arrive_and_wait();
      const double start = ThreadCpuSeconds();
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
      cpu_s[t] = ThreadCpuSeconds() - start;
    });
  }
  ready.arrive_and_wait();
  const auto start = std::chrono::steady_clock::now();
  for (std::thread& worker : workers) worker.join();
  ReferenceTime time{std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 0};
  for (const double seconds : cpu_s) time.cpu_s += seconds;
  return time;
}

}  // namespace tpu_sync_native
