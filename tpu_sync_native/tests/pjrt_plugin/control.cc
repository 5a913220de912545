#include "control.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "dma_maps.h"
#include "events.h"
#include "queue.h"

namespace tpu_sync_native::test_plugin {
namespace {

// Never destroyed: the runtime's threads may still be about when the process ends.
std::mutex& FaultsMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::map<std::string, int64_t>& Faults() {
  static auto* const faults = new std::map<std::string, int64_t>;
  return *faults;
}

[[noreturn]] void Unknown(const char* name) {
  std::fprintf(stderr, "the PJRT test plugin knows nothing of the name '%s'\n", name);
  std::abort();
}

}  // namespace

Settings& settings() {
  static auto* const all = new Settings;
  return *all;
}

Counters& counters() {
  static auto* const all = new Counters;
  return *all;
}

bool TakeFault(const std::string& name) {
  const std::lock_guard lock(FaultsMutex());
  const auto fault = Faults().find(name);
  if (fault == Faults().end() || --fault->second != 0) return false;
  Faults().erase(fault);
  return true;
}

void SetFault(const std::string& name, int64_t nth) {
  const std::lock_guard lock(FaultsMutex());
  if (nth == 0) {
    Faults().erase(name);
  } else {
    Faults()[name] = nth;
  }
}

}  // namespace tpu_sync_native::test_plugin

using namespace tpu_sync_native::test_plugin;  // NOLINT: two exported functions

void kvtier_pjrt_set(const char* name, int64_t value) {
  const std::string key = name;
  if (key.starts_with("fail:")) return SetFault(key.substr(5), value);
  if (key == "queue_gate") return SetQueueGate(value != 0);
  if (key == "map_gate") return SetMapGate(value != 0);
  if (key == "ready_gate") return SetReadyGate(value != 0);
  if (key == "bytes_per_s") {
    settings().bytes_per_s = value;
  } else if (key == "latency_us") {
    settings().latency_us = value;
  } else if (key == "launches_in_queue") {
    settings().launches_in_queue = value;
  } else if (key == "donate_aliased") {
    settings().donate_aliased = value;
  } else if (key == "strict") {
    settings().strict = value;
  } else if (key == "tpu") {
    settings().tpu = value;
  } else {
    Unknown(name);
  }
}

int64_t kvtier_pjrt_get(const char* name) {
  Counters& count = counters();
  const std::map<std::string, std::atomic<int64_t>*> all{
      {"aliases", &count.aliases},
      {"events", &count.events},
      {"maps", &count.maps},
      {"maps_waiting", &count.maps_waiting},
      {"copies_to_host", &count.copies_to_host},
      {"copies_to_device", &count.copies_to_device},
      {"bytes_to_host", &count.bytes_to_host},
      {"bytes_to_device", &count.bytes_to_device},
      {"inflight_bytes_max", &count.inflight_bytes_max},
      {"unready", &count.unready},
      {"launches", &count.launches},
      {"errors", &count.errors},
  };
  const auto found = all.find(name);
  if (found == all.end()) Unknown(name);
  if (found->second == &count.inflight_bytes_max) return found->second->exchange(0);
  return found->second->load();
}
