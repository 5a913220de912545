// The RawBuffer extension over the memory of a CPU buffer, and buffers that stay while an alias does.
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "base.h"
#include "dma_maps.h"
#include "events.h"
#include "queue.h"

namespace tpu_sync_native::pjrt {

struct RawBuffer {
  Buffer* kept;  // refused to be donated until the alias goes; null when aliases do not stand in the way
  Device* device;
  void* memory_space;
  uint8_t* memory;
  int64_t bytes;
};

}  // namespace tpu_sync_native::pjrt

namespace tpu_sync_native::test_plugin {
namespace {

// Of a piece of memory, which a donation hands on from buffer to buffer.
struct Aliased {
  int aliases = 0;
  std::vector<pjrt::Buffer*> destroyed;  // by their owners; the memory goes with the last alias
};

std::mutex& AliasedMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::map<uintptr_t, Aliased>& AllAliased() {
  static auto* const all = new std::map<uintptr_t, Aliased>;
  return *all;
}

// The address of the buffer's memory; 0 when it has none any more.
uintptr_t MemoryOf(pjrt::Buffer* buffer) {
  pjrt::BufferUnsafePointer pointer;
  pointer.buffer = buffer;
  pjrt::Error* const error = CallBase(&pointer);
  if (error == nullptr) return pointer.pointer;
  DestroyBaseError(error);
  return 0;
}

pjrt::Error* DestroyBuffer(pjrt::BufferDestroy* args) {
  {
    const std::lock_guard lock(AliasedMutex());
    const auto found = AllAliased().empty() ? AllAliased().end() : AllAliased().find(MemoryOf(args->buffer));
    if (found != AllAliased().end()) {
      found->second.destroyed.push_back(args->buffer);
      return nullptr;
    }
  }
  return CallBase(args);
}

pjrt::Error* CreateAlias(pjrt::RawCreateAlias* args) {
  if (TakeFault("PJRT_RawBuffer_CreateRawAliasOfBuffer")) return MakeError("refused on purpose");
  pjrt::BufferUnsafePointer pointer;
  pointer.buffer = args->buffer;
  if (pjrt::Error* error = CallBase(&pointer)) return error;
  pjrt::BufferOnDeviceSize size;
  size.buffer = args->buffer;
  if (pjrt::Error* error = CallBase(&size)) return error;
  pjrt::BufferDevice device;
  device.buffer = args->buffer;
  if (pjrt::Error* error = CallBase(&device)) return error;
  pjrt::BufferMemory memory;
  memory.buffer = args->buffer;
  if (pjrt::Error* error = CallBase(&memory)) return error;
  const bool keep = settings().donate_aliased == 0;
  const std::lock_guard lock(AliasedMutex());  // the wrapped plugin counts these references without one
  if (keep) {
    pjrt::BufferKeep reference;
    reference.buffer = args->buffer;
    if (pjrt::Error* error = CallBase(&reference)) return error;
  }
  ++AllAliased()[pointer.pointer].aliases;
  ++counters().aliases;
  args->raw =
      new pjrt::RawBuffer{keep ? args->buffer : nullptr, device.device, memory.memory,
                          reinterpret_cast<uint8_t*>(pointer.pointer), static_cast<int64_t>(size.bytes)};
  return nullptr;
}

pjrt::Error* DestroyAlias(pjrt::RawDestroy* args) {
  std::vector<pjrt::Buffer*> destroyed;
  {
    const std::lock_guard lock(AliasedMutex());
    if (args->raw->kept != nullptr) {
      pjrt::BufferLetGo let_go;
      let_go.buffer = args->raw->kept;
      Must(CallBase(&let_go));
    }
    const auto found = AllAliased().find(reinterpret_cast<uintptr_t>(args->raw->memory));
    if (--found->second.aliases == 0) {
      destroyed.swap(found->second.destroyed);
      AllAliased().erase(found);
    }
  }
  delete args->raw;
  --counters().aliases;
  for (pjrt::Buffer* buffer : destroyed) {
    pjrt::BufferDestroy last;
    last.buffer = buffer;
    Must(CallBase(&last));
  }
  if (TakeFault("PJRT_RawBuffer_Destroy")) return MakeError("refused on purpose");
  return nullptr;
}

pjrt::Error* Copy(pjrt::RawCopy* args, bool to_device) {
  const pjrt::RawBuffer& raw = *args->raw;
  if (args->offset < 0 || args->bytes < 0 || args->offset > raw.bytes - args->bytes) {
    return MakeError("a copy reaches beyond its buffer");
  }
  if (ReadyGateShut()) ++counters().unready;
  const char* failure = TakeFault("copy") ? "the copy failed on purpose" : nullptr;
  if (settings().strict != 0 && !DmaMapped(args->host, args->bytes)) failure = "host memory is not mapped";
  ++(to_device ? counters().copies_to_device : counters().copies_to_host);
  (to_device ? counters().bytes_to_device : counters().bytes_to_host) += args->bytes;
  args->event = MakeEvent();
  Push(raw.device, args->bytes,
       [to_device, failure, device = raw.memory + args->offset, host = args->host, bytes = args->bytes,
        event = args->event] {
         if (failure == nullptr) std::memcpy(to_device ? device : host, to_device ? host : device, bytes);
         counters().inflight_bytes -= bytes;
         SetEvent(event, failure);
       });
  return nullptr;
}

pjrt::Error* CopyToDevice(pjrt::RawCopy* args) {
  if (TakeFault("PJRT_RawBuffer_CopyRawHostToDevice")) return MakeError("refused on purpose");
  return Copy(args, /*to_device=*/true);
}

pjrt::Error* CopyToHost(pjrt::RawCopy* args) {
  if (TakeFault("PJRT_RawBuffer_CopyRawDeviceToHost")) return MakeError("refused on purpose");
  return Copy(args, /*to_device=*/false);
}

struct RawSize {
  size_t struct_size;
  pjrt::Extension* extensions;
  pjrt::RawBuffer* raw;
  size_t bytes;
};
pjrt::Error* OnDeviceSize(RawSize* args) {
  args->bytes = static_cast<size_t>(args->raw->bytes);
  return nullptr;
}

struct RawPlace {
  size_t struct_size;
  pjrt::Extension* extensions;
  pjrt::RawBuffer* raw;
  void* place;
};
pjrt::Error* MemorySpace(RawPlace* args) {
  args->place = args->raw->memory_space;
  return nullptr;
}
pjrt::Error* HostPointer(RawPlace* args) {
  args->place = args->raw->memory;
  return nullptr;
}

}  // namespace

pjrt::Extension* RawBufferExtensionBefore(pjrt::Extension* next) {
  static auto* const extension = new pjrt::RawBufferExtension{
      .base = {sizeof(pjrt::RawBufferExtension), pjrt::kRawBufferExtensionType, next},
      .create_alias = CreateAlias,
      .destroy = DestroyAlias,
      .on_device_size = reinterpret_cast<void*>(&OnDeviceSize),
      .memory_space = reinterpret_cast<void*>(&MemorySpace),
      .copy_host_to_device = CopyToDevice,
      .copy_device_to_host = CopyToHost,
      .host_pointer = reinterpret_cast<void*>(&HostPointer)};
  return &extension->base;
}

void ReplaceBuffers(void** slots) {
  slots[pjrt::BufferDestroy::kCall.slot] = reinterpret_cast<void*>(&DestroyBuffer);
  slots[pjrt::BufferIsDeleted::kCall.slot] = reinterpret_cast<void*>(&Refusable<pjrt::BufferIsDeleted>);
  slots[pjrt::BufferOnDeviceSize::kCall.slot] = reinterpret_cast<void*>(&Refusable<pjrt::BufferOnDeviceSize>);
}

}  // namespace tpu_sync_native::test_plugin
