#include "events.h"

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base.h"

namespace tpu_sync_native::test_plugin {
namespace {

constexpr int32_t kOk = 0;
constexpr int32_t kInternal = 13;

// An event of ours lives until it is set and destroyed, in whatever order: those that wait for it destroy it
// in their callbacks, which run while it is being set.
struct Known {
  bool ours = false;
  bool set = false;
  bool destroyed = false;
};

struct State {
  std::mutex mutex;
  std::unordered_map<pjrt::Event*, Known> known;
  bool ready_gate = false;
  std::vector<std::pair<pjrt::Event*, const char*>> gated;  // and how each ends
};

State& state() {
  static auto* const all = new State;
  return *all;
}

// The wrapped plugin orders what comes before an event's setting, and before asking for a callback, before
// the callback, but out of ThreadSanitizer's sight; this lock, taken on all sides, shows it.
void ShowOrder() { const std::lock_guard lock(state().mutex); }

void DestroyBase(pjrt::Event* event) {
  pjrt::EventDestroy destroy;
  destroy.event = event;
  Must(CallBase(&destroy));
}

pjrt::Error* Destroy(pjrt::EventDestroy* args) {
  if (TakeFault(pjrt::EventDestroy::kCall.name)) return MakeError("refused on purpose");
  {
    const std::lock_guard lock(state().mutex);
    const auto found = state().known.find(args->event);
    if (found != state().known.end()) {
      --counters().events;
      if (found->second.ours && !found->second.set) {
        found->second.destroyed = true;
        return nullptr;
      }
      state().known.erase(found);
    }
  }
  return CallBase(args);
}

struct Callback {
  void (*function)(pjrt::Error*, void*);
  void* user;
};

pjrt::Error* OnReady(pjrt::EventOnReady* args) {
  if (TakeFault(pjrt::EventOnReady::kCall.name)) return MakeError("refused on purpose");
  auto* const wrapped = new Callback{args->callback, args->user};
  pjrt::EventOnReady base_args;
  base_args.event = args->event;
  base_args.user = wrapped;
  base_args.callback = [](pjrt::Error* error, void* user) {
    ShowOrder();
    const Callback callback = *static_cast<Callback*>(user);
    delete static_cast<Callback*>(user);
    callback.function(error, callback.user);
  };
  ShowOrder();
  pjrt::Error* const error = CallBase(&base_args);
  if (error != nullptr) delete wrapped;
  return error;
}

pjrt::Error* Await(pjrt::EventAwait* args) {
  if (TakeFault(pjrt::EventAwait::kCall.name)) return MakeError("refused on purpose");
  pjrt::Error* const error = CallBase(args);
  ShowOrder();
  return error;
}

pjrt::Error* BufferReady(pjrt::BufferReadyEvent* args) {
  if (TakeFault(pjrt::BufferReadyEvent::kCall.name)) return MakeError("refused on purpose");
  const char* const failure = TakeFault("ready") ? "the launch failed on purpose" : nullptr;
  if (failure == nullptr && !ReadyGateShut()) {
    pjrt::Error* const error = CallBase(args);
    if (error != nullptr) return error;
    const std::lock_guard lock(state().mutex);
    state().known[args->event] = {};
    ++counters().events;
    return nullptr;
  }
  args->event = MakeEvent();
  {
    const std::lock_guard lock(state().mutex);
    if (state().ready_gate) {
      state().gated.emplace_back(args->event, failure);
      return nullptr;
    }
  }
  SetEvent(args->event, failure);
  return nullptr;
}

}  // namespace

pjrt::Event* MakeEvent() {
  pjrt::EventCreate create;
  Must(CallBase(&create));
  const std::lock_guard lock(state().mutex);
  state().known[create.event] = {.ours = true};
  ++counters().events;
  return create.event;
}

void SetEvent(pjrt::Event* event, const char* failure) {
  pjrt::EventSet set;
  set.event = event;
  set.code = failure == nullptr ? kOk : kInternal;
  if (failure != nullptr) {
    set.message = failure;
    set.message_size = std::strlen(failure);
  }
  ShowOrder();
  Must(CallBase(&set));
  {
    const std::lock_guard lock(state().mutex);
    const auto found = state().known.find(event);
    if (!found->second.destroyed) {
      found->second.set = true;
      return;
    }
    state().known.erase(found);
  }
  DestroyBase(event);
}

void SetReadyGate(bool shut) {
  std::vector<std::pair<pjrt::Event*, const char*>> opened;
  {
    const std::lock_guard lock(state().mutex);
    state().ready_gate = shut;
    if (!shut) opened.swap(state().gated);
  }
  for (const auto& [event, failure] : opened) SetEvent(event, failure);
}

bool ReadyGateShut() {
  const std::lock_guard lock(state().mutex);
  return state().ready_gate;
}

void ReplaceEvents(void** slots) {
  slots[pjrt::EventDestroy::kCall.slot] = reinterpret_cast<void*>(&Destroy);
  slots[pjrt::EventOnReady::kCall.slot] = reinterpret_cast<void*>(&OnReady);
  slots[pjrt::EventAwait::kCall.slot] = reinterpret_cast<void*>(&Await);
  slots[pjrt::BufferReadyEvent::kCall.slot] = reinterpret_cast<void*>(&BufferReady);
}

}  // namespace tpu_sync_native::test_plugin
