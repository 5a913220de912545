#include "pjrt/abi_table.h"

#include "pjrt/api.h"

// The published name of a member and ours.
#define FIELD(type, name, member) \
  AbiField { name, offsetof(type, member), sizeof(type::member) }
#define HEAD(type) FIELD(type, "struct_size", struct_size), FIELD(type, "extension_start", extensions)

namespace tpu_sync_native::pjrt {
namespace {

// Every struct of arguments begins alike.
#define ARGS(type, name, size, ...)                               \
  AbiStruct {                                                     \
    name "_Args", size, sizeof(type), { HEAD(type), __VA_ARGS__ } \
  }

std::vector<AbiStruct> Structs() {
  return {
      {"PJRT_Extension_Base",
       sizeof(Extension),
       sizeof(Extension),
       {FIELD(Extension, "struct_size", struct_size), FIELD(Extension, "type", type),
        FIELD(Extension, "next", next)}},
      {"PJRT_Api_Version",
       sizeof(Api::Version),
       sizeof(Api::Version),
       {HEAD(Api::Version), FIELD(Api::Version, "major_version", major),
        FIELD(Api::Version, "minor_version", minor)}},
      ARGS(ErrorDestroy, "PJRT_Error_Destroy", ErrorDestroy::kCall.struct_size,
           FIELD(ErrorDestroy, "error", error)),
      ARGS(ErrorMessage, "PJRT_Error_Message", ErrorMessage::kCall.struct_size,
           FIELD(ErrorMessage, "error", error), FIELD(ErrorMessage, "message", message),
           FIELD(ErrorMessage, "message_size", message_size)),
      ARGS(EventDestroy, "PJRT_Event_Destroy", EventDestroy::kCall.struct_size,
           FIELD(EventDestroy, "event", event)),
      ARGS(EventAwait, "PJRT_Event_Await", EventAwait::kCall.struct_size, FIELD(EventAwait, "event", event)),
      ARGS(EventOnReady, "PJRT_Event_OnReady", EventOnReady::kCall.struct_size,
           FIELD(EventOnReady, "event", event), FIELD(EventOnReady, "callback", callback),
           FIELD(EventOnReady, "user_arg", user)),
      ARGS(ClientPlatformName, "PJRT_Client_PlatformName", ClientPlatformName::kCall.struct_size,
           FIELD(ClientPlatformName, "client", client), FIELD(ClientPlatformName, "platform_name", name),
           FIELD(ClientPlatformName, "platform_name_size", name_size)),
      ARGS(BufferDimensions, "PJRT_Buffer_Dimensions", BufferDimensions::kCall.struct_size,
           FIELD(BufferDimensions, "buffer", buffer), FIELD(BufferDimensions, "dims", dims),
           FIELD(BufferDimensions, "num_dims", num_dims)),
      {"PJRT_Buffer_MemoryLayout_Tiled",
       MemoryLayout::Tiled::kStructSize,
       sizeof(MemoryLayout::Tiled),
       {HEAD(MemoryLayout::Tiled), FIELD(MemoryLayout::Tiled, "minor_to_major", minor_to_major),
        FIELD(MemoryLayout::Tiled, "minor_to_major_size", minor_to_major_size),
        FIELD(MemoryLayout::Tiled, "tile_dims", tile_dims),
        FIELD(MemoryLayout::Tiled, "tile_dim_sizes", tile_dim_sizes),
        FIELD(MemoryLayout::Tiled, "num_tiles", tiles)}},
      {"PJRT_Buffer_MemoryLayout_Strides",
       MemoryLayout::Strides::kStructSize,
       sizeof(MemoryLayout::Strides),
       {HEAD(MemoryLayout::Strides), FIELD(MemoryLayout::Strides, "byte_strides", byte_strides),
        FIELD(MemoryLayout::Strides, "num_byte_strides", count)}},
      {"PJRT_Buffer_MemoryLayout",
       MemoryLayout::kStructSize,
       sizeof(MemoryLayout),
       {HEAD(MemoryLayout), FIELD(MemoryLayout, "_anon2", tiled), FIELD(MemoryLayout, "type", type)}},
      ARGS(BufferGetMemoryLayout, "PJRT_Buffer_GetMemoryLayout", BufferGetMemoryLayout::kCall.struct_size,
           FIELD(BufferGetMemoryLayout, "buffer", buffer), FIELD(BufferGetMemoryLayout, "layout", layout)),
      ARGS(BufferOnDeviceSize, "PJRT_Buffer_OnDeviceSizeInBytes", BufferOnDeviceSize::kCall.struct_size,
           FIELD(BufferOnDeviceSize, "buffer", buffer),
           FIELD(BufferOnDeviceSize, "on_device_size_in_bytes", bytes)),
      ARGS(BufferIsDeleted, "PJRT_Buffer_IsDeleted", BufferIsDeleted::kCall.struct_size,
           FIELD(BufferIsDeleted, "buffer", buffer), FIELD(BufferIsDeleted, "is_deleted", deleted)),
      ARGS(BufferReadyEvent, "PJRT_Buffer_ReadyEvent", BufferReadyEvent::kCall.struct_size,
           FIELD(BufferReadyEvent, "buffer", buffer), FIELD(BufferReadyEvent, "event", event)),
      ARGS(ClientDmaMap, "PJRT_Client_DmaMap", ClientDmaMap::kCall.struct_size,
           FIELD(ClientDmaMap, "client", client), FIELD(ClientDmaMap, "data", data),
           FIELD(ClientDmaMap, "size", size)),
      ARGS(ClientDmaUnmap, "PJRT_Client_DmaUnmap", ClientDmaUnmap::kCall.struct_size,
           FIELD(ClientDmaUnmap, "client", client), FIELD(ClientDmaUnmap, "data", data)),
      ARGS(RawCreateAlias, "PJRT_RawBuffer_CreateRawAliasOfBuffer", RawCreateAlias::kStructSize,
           FIELD(RawCreateAlias, "buffer", buffer), FIELD(RawCreateAlias, "raw_buffer", raw)),
      ARGS(RawDestroy, "PJRT_RawBuffer_Destroy", RawDestroy::kStructSize, FIELD(RawDestroy, "buffer", raw)),
      ARGS(RawCopy, "PJRT_RawBuffer_CopyRawHostToDevice", RawCopy::kStructSize, FIELD(RawCopy, "buffer", raw),
           FIELD(RawCopy, "src", host), FIELD(RawCopy, "offset", offset),
           FIELD(RawCopy, "transfer_size", bytes), FIELD(RawCopy, "event", event)),
      ARGS(RawCopy, "PJRT_RawBuffer_CopyRawDeviceToHost", RawCopy::kStructSize, FIELD(RawCopy, "buffer", raw),
           FIELD(RawCopy, "dst", host), FIELD(RawCopy, "offset", offset),
           FIELD(RawCopy, "transfer_size", bytes), FIELD(RawCopy, "event", event)),
      {"PJRT_RawBuffer_Extension",
       sizeof(RawBufferExtension),
       sizeof(RawBufferExtension),
       {FIELD(RawBufferExtension, "base", base),
        FIELD(RawBufferExtension, "PJRT_RawBuffer_CreateRawAliasOfBuffer", create_alias),
        FIELD(RawBufferExtension, "PJRT_RawBuffer_Destroy", destroy),
        FIELD(RawBufferExtension, "PJRT_RawBuffer_GetOnDeviceSizeInBytes", on_device_size),
        FIELD(RawBufferExtension, "PJRT_RawBuffer_GetMemorySpace", memory_space),
        FIELD(RawBufferExtension, "PJRT_RawBuffer_CopyRawHostToDevice", copy_host_to_device),
        FIELD(RawBufferExtension, "PJRT_RawBuffer_CopyRawDeviceToHost", copy_device_to_host),
        FIELD(RawBufferExtension, "PJRT_RawBuffer_GetHostPointer", host_pointer)}},
  };
}

#undef ARGS
#undef HEAD
#undef FIELD

}  // namespace

AbiTable DescribeAbi() {
  AbiTable table{Structs(), {}, kRawBufferExtensionType};
  for (const Call& call : {ErrorDestroy::kCall, ErrorMessage::kCall, EventDestroy::kCall, EventAwait::kCall,
                           EventOnReady::kCall, ClientPlatformName::kCall, BufferDimensions::kCall,
                           BufferGetMemoryLayout::kCall, BufferOnDeviceSize::kCall, BufferIsDeleted::kCall,
                           BufferReadyEvent::kCall, ClientDmaMap::kCall, ClientDmaUnmap::kCall}) {
    table.slots.push_back({call.name, sizeof(Api) + call.slot * sizeof(void*), sizeof(void*)});
  }
  return table;
}

}  // namespace tpu_sync_native::pjrt
