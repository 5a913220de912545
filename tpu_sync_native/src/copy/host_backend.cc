#include <algorithm>
#include <string>

#include "copy/backend.h"
#include "copy/kernels.h"

namespace tpu_sync_native {

bool CopyBackend::RegisterArena(uint8_t*, uint64_t) { return true; }
void CopyBackend::UnregisterArena(uint8_t*, uint64_t) {}
std::shared_ptr<CopyHold> CopyBackend::Hold(std::span<const uint64_t>) { return nullptr; }
std::shared_ptr<CopyHold> CopyBackend::Fence(uint64_t) { return nullptr; }

namespace {

// Shorter extents go by memcpy: they fit the caches, and a non-temporal head and tail cost more than they
// save (benchmarks/README.md has the measurement).
constexpr uint64_t kPrefetchBytes = 1024;
constexpr uint64_t kNonTemporalBytesMin = 2 * 1024;

// Hardware prefetchers start anew at every extent; this hides the first misses of the next one.
void PrefetchStart(CopyDirection direction, const CopyExtent& extent) {
  const auto* source =
      direction == CopyDirection::kStore ? reinterpret_cast<const uint8_t*>(extent.device) : extent.arena;
  for (uint64_t i = 0; i < std::min(extent.bytes, kPrefetchBytes); i += 64) __builtin_prefetch(source + i);
}

class HostBackend final : public CopyBackend {
 public:
  HostBackend() {
    capabilities_.name = "host";
    capabilities_.kernel = NonTemporalKernelName();
    capabilities_.plain_memory = true;
  }

  const CopyCapabilities& capabilities() const override { return capabilities_; }

  bool Copy(CopyDirection direction, std::span<const CopyExtent> extents, const CopyHold*) override {
    for (size_t i = 0; i < extents.size(); ++i) {
      const CopyExtent& extent = extents[i];
      if (i + 1 < extents.size()) PrefetchStart(direction, extents[i + 1]);
      auto* device = reinterpret_cast<uint8_t*>(extent.device);
      uint8_t* target = direction == CopyDirection::kStore ? extent.arena : device;
      const uint8_t* source = direction == CopyDirection::kStore ? device : extent.arena;
      if (extent.bytes < kNonTemporalBytesMin) {
        CopyCached(target, source, extent.bytes);
      } else {
        CopyNonTemporal(target, source, extent.bytes);
      }
    }
    NonTemporalFence();
    return true;
  }

 private:
  CopyCapabilities capabilities_;
};

}  // namespace

std::shared_ptr<CopyBackend> MakeHostBackend() { return std::make_shared<HostBackend>(); }

}  // namespace tpu_sync_native
