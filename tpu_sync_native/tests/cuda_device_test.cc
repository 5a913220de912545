// The CUDA backend on this machine's GPU, where there is one.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "copy_engine_kit.h"
#include "cuda/cuda_backend.h"
#include "cuda_library.h"

namespace tpu_sync_native::testing {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// Null, said where people look, when there is none.
std::shared_ptr<CudaLibrary> Gpu() {
  try {
    return std::make_shared<CudaLibrary>(kLibrary);
  } catch (const std::runtime_error& absent) {
    std::fprintf(stderr, "NOT RUN on a real GPU: %s\n", absent.what());
    return nullptr;
  }
}

TEST(PassesTheKit) {
  const auto gpu = Gpu();
  if (!gpu) return;
  RunBackendKit(
      {[] { return MakeCudaBackend(); }, [gpu](uint64_t bytes) { return MakeCudaMemory(gpu, bytes); }});
  std::fprintf(stderr, "kit passed on %s\n", MakeCudaBackend()->capabilities().kernel.c_str());
}

// Fills a large buffer again and again, as a step that takes milliseconds; a store fenced behind it reads the
// last value everywhere.
TEST(AFencedStoreReadsWhatTheStreamWrote) {
  const auto gpu = Gpu();
  if (!gpu) return;
  constexpr uint64_t kBytes = 64 << 20;
  constexpr int kFills = 200;
  const auto fill = reinterpret_cast<cuda::Result (*)(cuda::DevicePtr, unsigned char, size_t, cuda::Stream)>(
      dlsym(dlopen(kLibrary, RTLD_NOW), "cuMemsetD8Async"));
  CHECK(fill != nullptr);
  const auto backend = MakeCudaBackend();
  std::vector<uint8_t> arena(kBytes);
  CHECK(backend->RegisterArena(arena.data(), kBytes));
  const cuda::DevicePtr device = gpu->Allocate(kBytes);
  const cuda::Stream stream = gpu->MakeStream();
  {
    const cuda::CurrentContext current(gpu->driver(), gpu->context());
    for (int i = 1; i <= kFills; ++i) {
      CHECK(fill(device, static_cast<unsigned char>(i), kBytes, stream) == cuda::kSuccess);
    }
  }
  const auto fence = backend->Fence(reinterpret_cast<uint64_t>(stream));
  CHECK(fence != nullptr);
  while (!fence->Ready()) std::this_thread::yield();
  const CopyExtent all{device, arena.data(), kBytes};
  CHECK(backend->Copy(CopyDirection::kStore, {&all, 1}, fence.get()));
  CHECK(std::ranges::all_of(arena, [](uint8_t byte) { return byte == kFills; }));
  backend->UnregisterArena(arena.data(), kBytes);
  gpu->DestroyStream(stream);
  gpu->Free(device);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
