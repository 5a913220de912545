// The part of the PJRT C API that is called here, declared anew: struct layouts, the slots of the table of
// functions, and the rules by which old and new versions meet. Nothing is linked against XLA.
//
// - A plugin exports GetPjrtApi, which gives a table: a head, then one function pointer per slot. Slots are
//   only ever appended, so a slot that lies within the table's struct_size is what it always was.
// - Each function takes one struct whose first member says how large the caller knows it: up to the end of
//   the last member, without padding. Members, too, are only appended.
// - What is optional comes as extensions: a chained list, each with a type and a size.
//
// tests/native/test_pjrt_abi.py compares every number with a published table (abi_table.cc lists them).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tpu_sync_native::pjrt {

struct Buffer;
struct Client;
struct Error;
struct Event;
struct RawBuffer;

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  struct Version {
    size_t struct_size;
    Extension* extensions;
    int32_t major;
    int32_t minor;
  } version;
  // The slots follow.
  void* const* slots() const { return reinterpret_cast<void* const*>(this + 1); }
};

// What a struct of arguments belongs to.
struct Call {
  const char* name;
  size_t slot;
  size_t struct_size;
};

// ---- errors: these two answer nothing ----
struct ErrorDestroy {
  static constexpr Call kCall{"PJRT_Error_Destroy", 0, 24};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Error* error = nullptr;
};

struct ErrorMessage {
  static constexpr Call kCall{"PJRT_Error_Message", 1, 40};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  const Error* error = nullptr;
  const char* message = nullptr;  // lives as long as the error
  size_t message_size = 0;
};

// ---- all others answer an error, which the caller destroys, or null ----
struct EventDestroy {
  static constexpr Call kCall{"PJRT_Event_Destroy", 5, 24};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Event* event = nullptr;
};

struct EventAwait {
  static constexpr Call kCall{"PJRT_Event_Await", 8, 24};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Event* event = nullptr;
};

struct EventOnReady {
  static constexpr Call kCall{"PJRT_Event_OnReady", 9, 40};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Event* event = nullptr;
  void (*callback)(Error* error, void* user) = nullptr;  // owns the error; called once, on any thread
  void* user = nullptr;
};

struct ClientPlatformName {
  static constexpr Call kCall{"PJRT_Client_PlatformName", 12, 40};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Client* client = nullptr;
  const char* name = nullptr;  // lives as long as the client
  size_t name_size = 0;
};

// How a buffer's dimensions lie in memory. A runtime fills in the variant that `type` names.
struct MemoryLayout {
  enum Type : int32_t { kTiled = 0, kStrides = 1 };
  struct Tiled {
    static constexpr size_t kStructSize = 56;
    size_t struct_size;
    Extension* extensions;
    const int64_t* minor_to_major;
    size_t minor_to_major_size;
    const int64_t* tile_dims;  // of all tiles, one after another
    const size_t* tile_dim_sizes;
    size_t tiles;
  };
  struct Strides {
    static constexpr size_t kStructSize = 32;
    size_t struct_size;
    Extension* extensions;
    const int64_t* byte_strides;
    size_t count;
  };
  static constexpr size_t kStructSize = 76;
  size_t struct_size = kStructSize;
  Extension* extensions = nullptr;
  union {
    Tiled tiled = {};
    Strides strides;
  };
  Type type = kTiled;
};

struct BufferDimensions {
  static constexpr Call kCall{"PJRT_Buffer_Dimensions", 60, 40};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
  const int64_t* dims = nullptr;  // live as long as the buffer
  size_t num_dims = 0;
};

struct BufferGetMemoryLayout {
  static constexpr Call kCall{"PJRT_Buffer_GetMemoryLayout", 63, 104};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
  MemoryLayout layout;  // its arrays live as long as the buffer
};

struct BufferOnDeviceSize {
  static constexpr Call kCall{"PJRT_Buffer_OnDeviceSizeInBytes", 64, 32};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
  size_t bytes = 0;
};

struct BufferIsDeleted {
  static constexpr Call kCall{"PJRT_Buffer_IsDeleted", 68, 25};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
  bool deleted = false;
};

struct BufferReadyEvent {
  static constexpr Call kCall{"PJRT_Buffer_ReadyEvent", 72, 32};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
  Event* event = nullptr;
};

struct ClientDmaMap {
  static constexpr Call kCall{"PJRT_Client_DmaMap", 110, 40};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Client* client = nullptr;
  void* data = nullptr;
  size_t size = 0;
};

struct ClientDmaUnmap {
  static constexpr Call kCall{"PJRT_Client_DmaUnmap", 111, 32};
  size_t struct_size = kCall.struct_size;
  Extension* extensions = nullptr;
  Client* client = nullptr;
  void* data = nullptr;
};

// ---- the RawBuffer extension: bytes of a buffer's memory, at an offset, written in place ----
inline constexpr int32_t kRawBufferExtensionType = 8;

struct RawCreateAlias {
  static constexpr size_t kStructSize = 32;
  size_t struct_size = kStructSize;
  Extension* extensions = nullptr;
  Buffer* buffer = nullptr;
  RawBuffer* raw = nullptr;  // keeps the memory, whatever becomes of the buffer
};

struct RawDestroy {
  static constexpr size_t kStructSize = 24;
  size_t struct_size = kStructSize;
  Extension* extensions = nullptr;
  RawBuffer* raw = nullptr;
};

// Of both directions.
struct RawCopy {
  static constexpr size_t kStructSize = 56;
  size_t struct_size = kStructSize;
  Extension* extensions = nullptr;
  RawBuffer* raw = nullptr;
  void* host = nullptr;
  int64_t offset = 0;
  int64_t bytes = 0;
  Event* event = nullptr;
};

struct RawBufferExtension {
  Extension base;
  Error* (*create_alias)(RawCreateAlias*);
  Error* (*destroy)(RawDestroy*);
  void* on_device_size;
  void* memory_space;
  Error* (*copy_host_to_device)(RawCopy*);
  Error* (*copy_device_to_host)(RawCopy*);
  void* host_pointer;
  // Newer ones go on here.
};

}  // namespace tpu_sync_native::pjrt
