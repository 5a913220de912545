#include "dma_maps.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "base.h"

namespace tpu_sync_native::test_plugin {
namespace {

std::mutex& MapsMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::map<uintptr_t, size_t>& Maps() {
  static auto* const maps = new std::map<uintptr_t, size_t>;
  return *maps;
}

struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool shut = false;
};
Gate& gate() {
  static auto* const all = new Gate;
  return *all;
}

bool PassGate() {
  ++counters().maps_waiting;
  std::unique_lock lock(gate().mutex);
  const bool open = gate().changed.wait_for(lock, std::chrono::seconds(10), [] { return !gate().shut; });
  --counters().maps_waiting;
  return open;
}

pjrt::Error* Map(pjrt::ClientDmaMap* args) {
  if (TakeFault(pjrt::ClientDmaMap::kCall.name)) return MakeError("refused on purpose");
  if (!PassGate()) return MakeError("nobody opened the gate");
  const std::lock_guard lock(MapsMutex());
  if (!Maps().emplace(reinterpret_cast<uintptr_t>(args->data), args->size).second) {
    return MakeError("this memory is mapped already");
  }
  ++counters().maps;
  return nullptr;
}

pjrt::Error* Unmap(pjrt::ClientDmaUnmap* args) {
  if (TakeFault(pjrt::ClientDmaUnmap::kCall.name)) return MakeError("refused on purpose");
  if (counters().inflight_bytes != 0) return MakeError("unmapped under copies that are under way");
  const std::lock_guard lock(MapsMutex());
  if (Maps().erase(reinterpret_cast<uintptr_t>(args->data)) == 0) return MakeError("was never mapped");
  --counters().maps;
  return nullptr;
}

}  // namespace

bool DmaMapped(const void* host, int64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(host);
  const std::lock_guard lock(MapsMutex());
  auto after = Maps().upper_bound(begin);
  if (after == Maps().begin()) return false;
  --after;
  return begin + static_cast<uintptr_t>(bytes) <= after->first + after->second;
}

void SetMapGate(bool shut) {
  const std::lock_guard lock(gate().mutex);
  gate().shut = shut;
  gate().changed.notify_all();
}

void ReplaceDmaMaps(void** slots) {
  slots[pjrt::ClientDmaMap::kCall.slot] = reinterpret_cast<void*>(&Map);
  slots[pjrt::ClientDmaUnmap::kCall.slot] = reinterpret_cast<void*>(&Unmap);
}

}  // namespace tpu_sync_native::test_plugin
