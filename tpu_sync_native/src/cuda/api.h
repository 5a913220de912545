// The part of the CUDA driver API that the backend calls, so that no toolkit is needed to build it.
//
// The names that a library exports have versions, and so have these declarations: cuda_header_test.cc
// compares them with cuda.h where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tpu_sync_native::cuda {

using Result = int;
using Device = int;
using DevicePtr = unsigned long long;  // NOLINT(runtime/int): as the driver has it
struct ContextObject;
struct StreamObject;
struct EventObject;
using Context = ContextObject*;
using Stream = StreamObject*;  // null: the context's default stream
using Event = EventObject*;
using HostFunction = void (*)(void*);

constexpr Result kSuccess = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNoDevice = 100;
constexpr Result kInvalidContext = 201;
constexpr Result kAlreadyRegistered = 712;
constexpr Result kNotReady = 600;
constexpr Result kIllegalAddress = 700;
constexpr Result kCaptureUnsupported = 900;

constexpr unsigned kRegisterPortable = 1;
constexpr unsigned kRegisterDeviceMap = 2;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventBlockingSync = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr int kCaptureModeRelaxed = 2;
constexpr int kSourceInStreamOrder = 1;

struct Location {
  int type;
  int id;
};

struct CopyAttributes {
  int source_order;
  Location source_hint;
  Location target_hint;
  unsigned flags;
};

// Named like the driver's functions, without their cu.
struct Functions {
  Result (*Init)(unsigned flags);
  Result (*GetErrorName)(Result result, const char** name);
  Result (*GetErrorString)(Result result, const char** text);
  Result (*DeviceGet)(Device* device, int ordinal);
  Result (*DeviceGetName)(char* name, int bytes, Device device);
  Result (*DevicePrimaryCtxRetain)(Context* context, Device device);
  Result (*DevicePrimaryCtxRelease)(Device device);
  Result (*CtxPushCurrent)(Context context);
  Result (*CtxPopCurrent)(Context* context);
  Result (*ThreadExchangeStreamCaptureMode)(int* mode);
  Result (*MemHostRegister)(void* address, size_t bytes, unsigned flags);
  Result (*MemHostUnregister)(void* address);
  Result (*StreamCreate)(Stream* stream, unsigned flags);
  Result (*StreamDestroy)(Stream stream);
  Result (*StreamQuery)(Stream stream);
  Result (*StreamSynchronize)(Stream stream);
  Result (*StreamWaitEvent)(Stream stream, Event event, unsigned flags);
  Result (*LaunchHostFunc)(Stream stream, HostFunction call, void* argument);
  Result (*EventCreate)(Event* event, unsigned flags);
  Result (*EventDestroy)(Event event);
  Result (*EventRecord)(Event event, Stream stream);
  Result (*EventQuery)(Event event);
  Result (*EventSynchronize)(Event event);
  Result (*MemcpyDtoHAsync)(void* target, DevicePtr source, size_t bytes, Stream stream);
  Result (*MemcpyHtoDAsync)(DevicePtr target, const void* source, size_t bytes, Stream stream);
  // Null in drivers older than 13.0.
  Result (*MemcpyBatchAsync)(DevicePtr* targets, DevicePtr* sources, size_t* bytes, size_t count,
                             CopyAttributes* attributes, size_t* first_of_attributes, size_t num_attributes,
                             Stream stream);
};

}  // namespace tpu_sync_native::cuda
