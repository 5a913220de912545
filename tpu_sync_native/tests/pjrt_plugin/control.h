// What a test sets and asks of the test plugin, by name; exported with C linkage for Python's ctypes too.
// kvtier_pjrt_set(name, value):
//
//   bytes_per_s, latency_us     pace of each device's queue; 0: as fast as it can
//   launches_in_queue           1: a launch waits for its turn behind the copies, and they wait for it
//   queue_gate, ready_gate      1: shut. Copies wait in the queue, or buffers are not ready, until it is 0
//   map_gate                    1: shut. DmaMap waits until it is 0, ten seconds at most, then it refuses
//   donate_aliased              1: buffers that have aliases may be donated, so that the next launch writes
//                               their memory; else it gets memory of its own
//   strict                      1: host memory that no DmaMap covers makes a copy's event fail
//   tpu                         1: the platform calls itself "tpu"
//   fail:<PJRT name>            n: the n-th call from now on is refused
//   fail:copy, fail:ready       n: the event of the n-th copy, or ready event, fails
//
// kvtier_pjrt_get(name) counts since the process began, unless it says otherwise:
//
//   aliases, events, maps       that exist now
//   maps_waiting                before the gate, now
//   copies_to_host, copies_to_device, bytes_to_host, bytes_to_device
//   inflight_bytes_max          most bytes of copies in a queue at once; asking sets it back
//   unready                     copies from buffers of which nobody had waited for the ready event
//   launches
//   errors                      that were given out and not yet destroyed, now
//
// Unknown names end the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

extern "C" {
__attribute__((visibility("default"))) void kvtier_pjrt_set(const char* name, int64_t value);
__attribute__((visibility("default"))) int64_t kvtier_pjrt_get(const char* name);
}

namespace tpu_sync_native::test_plugin {

struct Settings {
  std::atomic<int64_t> bytes_per_s{0};
  std::atomic<int64_t> latency_us{0};
  std::atomic<int64_t> launches_in_queue{0};
  std::atomic<int64_t> donate_aliased{0};
  std::atomic<int64_t> strict{0};
  std::atomic<int64_t> tpu{0};
};
Settings& settings();

struct Counters {
  std::atomic<int64_t> aliases{0};
  std::atomic<int64_t> events{0};
  std::atomic<int64_t> maps{0};
  std::atomic<int64_t> maps_waiting{0};
  std::atomic<int64_t> copies_to_host{0};
  std::atomic<int64_t> copies_to_device{0};
  std::atomic<int64_t> bytes_to_host{0};
  std::atomic<int64_t> bytes_to_device{0};
  std::atomic<int64_t> inflight_bytes{0};
  std::atomic<int64_t> inflight_bytes_max{0};
  std::atomic<int64_t> unready{0};
  std::atomic<int64_t> launches{0};
  std::atomic<int64_t> errors{0};
};
Counters& counters();

// The n-th from now on; 0: none.
void SetFault(const std::string& name, int64_t nth);
// Whether this is the one that a test wanted to fail.
bool TakeFault(const std::string& name);

}  // namespace tpu_sync_native::test_plugin
