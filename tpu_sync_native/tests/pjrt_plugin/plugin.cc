// A PJRT plugin for tests: an XLA CPU plugin, named by KVTIER_PJRT_CPU_PLUGIN, that behaves like an
// accelerator: RawBuffer extension, one paced queue per device in order, host memory that has to be mapped,
// and faults. control.h says what a test can set and ask.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "base.h"
#include "dma_maps.h"
#include "queue.h"

namespace tpu_sync_native::test_plugin {

const pjrt::Api*& base() {
  static const pjrt::Api* table = nullptr;
  return table;
}

namespace {

// Runtimes for accelerators take options that a CPU plugin refuses to know.
pjrt::Error* CreateClient(pjrt::ClientCreate* args) {
  constexpr std::string_view kUnknown = "premapped_buffer_size";
  const auto* const options = args->options;
  const size_t count = args->option_count;
  std::vector<pjrt::NamedValue> known;
  for (size_t i = 0; i < count; ++i) {
    if (std::string_view(options[i].name, options[i].name_size) != kUnknown) known.push_back(options[i]);
  }
  args->options = known.data();
  args->option_count = known.size();
  pjrt::Error* const error = CallBase(args);
  args->options = options;
  args->option_count = count;
  return error;
}

pjrt::Error* PlatformName(pjrt::ClientPlatformName* args) {
  if (TakeFault(pjrt::ClientPlatformName::kCall.name)) return MakeError("refused on purpose");
  if (settings().tpu == 0) return CallBase(args);
  args->name = "tpu";
  args->name_size = 3;
  return nullptr;
}

pjrt::Device* DeviceOf(const pjrt::Execute& args) {
  if (args.device != nullptr) return args.device;
  if (args.argument_count == 0) return nullptr;
  pjrt::BufferDevice device;
  device.buffer = args.arguments[0][0];
  Must(CallBase(&device));
  return device.device;
}

// As one operation of the queue, from the launch to the end of the computation.
pjrt::Error* Launch(pjrt::Execute* args) {
  ++counters().launches;
  pjrt::Device* const device = DeviceOf(*args);
  if (settings().launches_in_queue == 0 || device == nullptr) return CallBase(args);
  pjrt::Error* error = nullptr;
  RunInTurn(device, [&] {
    std::vector<pjrt::Event*> own(args->done == nullptr ? args->device_count : 0);
    if (args->done == nullptr) args->done = own.data();
    error = CallBase(args);
    for (size_t i = 0; error == nullptr && i < args->device_count; ++i) {
      pjrt::EventAwait await;
      await.event = args->done[i];
      pjrt::Error* const failed = CallBase(&await);  // the outputs carry it too
      if (failed != nullptr) DestroyBaseError(failed);
    }
    if (own.empty()) return;
    args->done = nullptr;
    for (pjrt::Event* event : own) {
      if (event == nullptr) continue;
      pjrt::EventDestroy destroy;
      destroy.event = event;
      Must(CallBase(&destroy));
    }
  });
  return error;
}

const pjrt::Api* Wrap() {
  const char* const path = std::getenv("KVTIER_PJRT_CPU_PLUGIN");
  if (path == nullptr) {
    std::fprintf(stderr, "KVTIER_PJRT_CPU_PLUGIN does not say where the CPU plugin is\n");
    return nullptr;
  }
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "KVTIER_PJRT_CPU_PLUGIN: %s\n", dlerror());
    return nullptr;
  }
  base() = reinterpret_cast<const pjrt::Api* (*)()>(dlsym(handle, "GetPjrtApi"))();
  if (base()->struct_size < sizeof(pjrt::Api) + (pjrt::EventSet::kCall.slot + 1) * sizeof(void*)) {
    std::fprintf(stderr, "KVTIER_PJRT_CPU_PLUGIN is too old: it has no PJRT_Event_Set\n");
    return nullptr;
  }
  auto* const table = static_cast<pjrt::Api*>(std::malloc(base()->struct_size));
  std::memcpy(static_cast<void*>(table), base(), base()->struct_size);
  auto** const slots = const_cast<void**>(table->slots());
  ReplaceErrors(slots);
  ReplaceEvents(slots);
  ReplaceBuffers(slots);
  ReplaceDmaMaps(slots);
  slots[pjrt::ClientCreate::kCall.slot] = reinterpret_cast<void*>(&CreateClient);
  slots[pjrt::ClientPlatformName::kCall.slot] = reinterpret_cast<void*>(&PlatformName);
  slots[pjrt::Execute::kCall.slot] = reinterpret_cast<void*>(&Launch);
  table->extensions = RawBufferExtensionBefore(base()->extensions);
  return table;
}

}  // namespace
}  // namespace tpu_sync_native::test_plugin

extern "C" __attribute__((visibility("default"))) const tpu_sync_native::pjrt::Api* GetPjrtApi() {
  static const tpu_sync_native::pjrt::Api* const table = tpu_sync_native::test_plugin::Wrap();
  return table;
}
