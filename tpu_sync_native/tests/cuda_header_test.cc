// Our declarations of the driver API against cuda.h of this machine, where there is one. Nothing is called.
#include <cstdio>
#include <type_traits>

#include "check.h"
#include "cuda/api.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

namespace tpu_sync_native::testing {
namespace {

// The same to the calling convention: a number of the same size, or a pointer for a pointer.
template <typename Ours, typename Theirs>
constexpr bool kPassedAlike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;

template <typename Ours, typename Theirs>
struct Alike : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
  requires(sizeof...(A) == sizeof...(B))
struct Alike<R (*)(A...), S (*)(B...)>
    : std::bool_constant<kPassedAlike<R, S> && (kPassedAlike<A, B> && ...)> {};

#define SAME(ours, theirs) \
  static_assert(Alike<decltype(cuda::Functions::ours), decltype(&::theirs)>::value, #theirs)

SAME(Init, cuInit);
SAME(GetErrorName, cuGetErrorName);
SAME(GetErrorString, cuGetErrorString);
SAME(DeviceGet, cuDeviceGet);
SAME(DeviceGetName, cuDeviceGetName);
SAME(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
SAME(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease);
SAME(CtxPushCurrent, cuCtxPushCurrent);
SAME(CtxPopCurrent, cuCtxPopCurrent);
SAME(ThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode);
SAME(MemHostRegister, cuMemHostRegister);
SAME(MemHostUnregister, cuMemHostUnregister);
SAME(StreamCreate, cuStreamCreate);
SAME(StreamDestroy, cuStreamDestroy);
SAME(StreamQuery, cuStreamQuery);
SAME(StreamSynchronize, cuStreamSynchronize);
SAME(StreamWaitEvent, cuStreamWaitEvent);
SAME(LaunchHostFunc, cuLaunchHostFunc);
SAME(EventCreate, cuEventCreate);
SAME(EventDestroy, cuEventDestroy);
SAME(EventRecord, cuEventRecord);
SAME(EventQuery, cuEventQuery);
SAME(EventSynchronize, cuEventSynchronize);
SAME(MemcpyDtoHAsync, cuMemcpyDtoHAsync);
SAME(MemcpyHtoDAsync, cuMemcpyHtoDAsync);

static_assert(cuda::kSuccess == CUDA_SUCCESS);
static_assert(cuda::kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(cuda::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(cuda::kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(cuda::kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(cuda::kAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(cuda::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(cuda::kIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(cuda::kCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(cuda::kRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(cuda::kRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cuda::kEventBlockingSync == CU_EVENT_BLOCKING_SYNC);
static_assert(cuda::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(cuda::kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

#if CUDA_VERSION >= 13000
SAME(MemcpyBatchAsync, cuMemcpyBatchAsync);
static_assert(cuda::kSourceInStreamOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(sizeof(cuda::CopyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(offsetof(cuda::CopyAttributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint));
static_assert(offsetof(cuda::CopyAttributes, target_hint) == offsetof(CUmemcpyAttributes, dstLocHint));
static_assert(offsetof(cuda::CopyAttributes, flags) == offsetof(CUmemcpyAttributes, flags));
#endif

#define TEXT_OF(macro) TEXT(macro)
#define TEXT(word) #word

// The symbols that driver.cc looks for are what cuda.h makes of the names.
TEST(SymbolsAreOfTheseVersions) {
  CHECK(std::string(TEXT_OF(cuDevicePrimaryCtxRelease)) == "cuDevicePrimaryCtxRelease_v2");
  CHECK(std::string(TEXT_OF(cuCtxPushCurrent)) == "cuCtxPushCurrent_v2");
  CHECK(std::string(TEXT_OF(cuCtxPopCurrent)) == "cuCtxPopCurrent_v2");
  CHECK(std::string(TEXT_OF(cuMemHostRegister)) == "cuMemHostRegister_v2");
  CHECK(std::string(TEXT_OF(cuMemHostUnregister)) == "cuMemHostUnregister");
  CHECK(std::string(TEXT_OF(cuStreamCreate)) == "cuStreamCreate");
  CHECK(std::string(TEXT_OF(cuStreamDestroy)) == "cuStreamDestroy_v2");
  CHECK(std::string(TEXT_OF(cuEventCreate)) == "cuEventCreate");
  CHECK(std::string(TEXT_OF(cuEventDestroy)) == "cuEventDestroy_v2");
  CHECK(std::string(TEXT_OF(cuEventRecord)) == "cuEventRecord");
  CHECK(std::string(TEXT_OF(cuMemcpyDtoHAsync)) == "cuMemcpyDtoHAsync_v2");
  CHECK(std::string(TEXT_OF(cuMemcpyHtoDAsync)) == "cuMemcpyHtoDAsync_v2");
#if CUDA_VERSION >= 13000
  CHECK(std::string(TEXT_OF(cuMemcpyBatchAsync)) == "cuMemcpyBatchAsync_v2");
#endif
  std::fprintf(stderr, "compared with cuda.h of CUDA %d\n", CUDA_VERSION);
}

}  // namespace
}  // namespace tpu_sync_native::testing

#else

TEST(NotRun) { std::fprintf(stderr, "NOT RUN: no cuda.h on this machine\n"); }

#endif

CHECK_MAIN()
