// What the test plugin and the tests' client call beyond src/pjrt/api.h. Numbers are of version 0.114.
#pragma once

#include "pjrt/api.h"

namespace tpu_sync_native::pjrt {

struct Device;
struct Executable;

struct ErrorGetCode {
  static constexpr Call kCall{"PJRT_Error_GetCode", 2, 28};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  const Error* error = nullptr;
  int32_t code = 0;
};

struct ErrorForEachPayload {
  static constexpr Call kCall{"PJRT_Error_ForEachPayload", 132, 40};
  size_t struct_size;
  Extension* extensions;
  const Error* error;
};

struct PluginInitialize {
  static constexpr Call kCall{"PJRT_Plugin_Initialize", 3, 16};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
};

struct NamedValue {
  size_t struct_size = 56;
  Extension* extensions = nullptr;
  const char* name = nullptr;
  size_t name_size = 0;
  int32_t type = 1;  // an int64
  int64_t value = 0;
  size_t value_size = 1;
};

struct ClientCreate {
  static constexpr Call kCall{"PJRT_Client_Create", 10, 88};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  const NamedValue* options = nullptr;
  size_t option_count = 0;
  void* callbacks[4] = {};
  Client* client = nullptr;
  void* more_callbacks[2] = {};
};

struct ClientDestroy {
  static constexpr Call kCall{"PJRT_Client_Destroy", 11, 24};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Client* client = nullptr;
};

struct ClientAddressableDevices {
  static constexpr Call kCall{"PJRT_Client_AddressableDevices", 16, 40};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Client* client = nullptr;
  Device* const* devices = nullptr;
  size_t device_count = 0;
};

struct BufferFromHostBuffer {
  static constexpr Call kCall{"PJRT_Client_BufferFromHostBuffer", 22, 120};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Client* client = nullptr;
  const void* data = nullptr;
  int32_t type = 6;  // U8
  const int64_t* dims = nullptr;
  size_t dim_count = 0;
  const int64_t* byte_strides = nullptr;
  size_t byte_stride_count = 0;
  int32_t semantics = 0;  // the data is copied during the call
  Device* device = nullptr;
  void* memory = nullptr;
  void* layout = nullptr;
  Event* done_with_data = nullptr;
  Buffer* buffer = nullptr;
};

// Destroy 58, Delete 67 and the two counts of references from outside have the same members.
template <size_t kSlot>
struct OfBuffer {
  static constexpr Call kCall{"PJRT_Buffer", kSlot, 24};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
};
using BufferDestroy = OfBuffer<58>;
using BufferDelete = OfBuffer<67>;
using BufferKeep = OfBuffer<74>;
using BufferLetGo = OfBuffer<75>;

struct BufferDevice {
  static constexpr Call kCall{"PJRT_Buffer_Device", 65, 32};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
  Device* device = nullptr;
};

struct BufferMemory {
  static constexpr Call kCall{"PJRT_Buffer_Memory", 66, 32};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
  void* memory = nullptr;
};

struct BufferUnsafePointer {
  static constexpr Call kCall{"PJRT_Buffer_UnsafePointer", 73, 32};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
  uintptr_t pointer = 0;
};

struct EventIsReady {
  static constexpr Call kCall{"PJRT_Event_IsReady", 6, 25};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Event* event = nullptr;
  bool ready = false;
};

struct EventCreate {
  static constexpr Call kCall{"PJRT_Event_Create", 126, 24};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Event* event = nullptr;
};

struct EventSet {
  static constexpr Call kCall{"PJRT_Event_Set", 127, 48};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Event* event = nullptr;
  int32_t code = 0;
  const char* message = "";
  size_t message_size = 0;
};

struct Execute {
  static constexpr Call kCall{"PJRT_LoadedExecutable_Execute", 55, 80};
  size_t struct_size;
  Extension* extensions;
  Executable* executable;
  void* options;
  Buffer* const* const* arguments;  // per device
  size_t device_count;
  size_t argument_count;
  Buffer** const* outputs;
  Event** done;  // per device; may be null
  Device* device;
};

}  // namespace tpu_sync_native::pjrt
