#include "pjrt/pjrt_backend.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "pjrt/event.h"
#include "pjrt/hold.h"
#include "pjrt/library.h"

namespace tpu_sync_native {
namespace {

using pjrt::Library;

constexpr uint64_t kTileBytes = 4096;
constexpr uint64_t kOffsetMask = (uint64_t{1} << kDeviceBufferShift) - 1;

// The copies of one call, waited for together.
class Batch {
 public:
  void Issued() {
    const std::lock_guard lock(mutex_);
    ++pending_;
  }
  void Came(const std::string& error) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = error;
    // Told under the lock: who waits may destroy this as soon as he has it.
    if (--pending_ == 0) none_.notify_all();
  }
  std::string Wait() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [this] { return pending_ == 0; });
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  uint64_t pending_ = 0;
  std::string failure_;
};

bool IsTpu(const Library& library, pjrt::Client* client) {
  if (client == nullptr) return false;
  pjrt::ClientPlatformName platform;
  platform.client = client;
  return library.Try(&platform).empty() && std::string_view(platform.name, platform.name_size) == "tpu";
}

class PjrtBackend final : public CopyBackend {
 public:
  explicit PjrtBackend(const PjrtOptions& options)
      : library_(options.api != 0 ? Library::Adopt(reinterpret_cast<const pjrt::Api*>(options.api))
                                  : Library::Open(options.library)),
        client_(reinterpret_cast<pjrt::Client*>(options.client)),
        dma_map_(options.dma_map) {
    const bool tpu = IsTpu(*library_, client_);
    capabilities_.name = "pjrt";
    capabilities_.kernel = "RawBuffer of PJRT " + library_->version();
    capabilities_.buffers = true;
    capabilities_.replaces_buffers = true;
    capabilities_.in_order_queue = options.in_order_queue.value_or(tpu);
    capabilities_.alignment_bytes = options.alignment_bytes;
    if (options.alignment_bytes == 0) capabilities_.alignment_bytes = tpu ? kTileBytes : 1;
    capabilities_.piece_bytes_max = options.piece_bytes_max;
    capabilities_.inflight_bytes_max = options.inflight_bytes_max;
  }

  const CopyCapabilities& capabilities() const override { return capabilities_; }

  bool RegisterArena(uint8_t* arena, uint64_t bytes) override {
    capabilities_.kernel += ", arena " + Map(arena, bytes);
    return true;
  }

  void UnregisterArena(uint8_t*, uint64_t) override { Unmap(); }

  std::shared_ptr<CopyHold> Hold(std::span<const uint64_t> buffers) override {
    std::string error;
    auto hold = pjrt::Hold::Take(library_, buffers, &error);
    if (!hold) Remember(error);
    return hold;
  }

  bool Copy(CopyDirection direction, std::span<const CopyExtent> extents, const CopyHold* of) override {
    if (extents.empty()) return true;
    const auto* hold = static_cast<const pjrt::Hold*>(of);
    std::string error = Refusal(extents, hold);
    if (error.empty()) {
      Batch batch;
      error = Issue(direction, extents, *hold, &batch);
      const std::string failed = batch.Wait();
      if (error.empty()) error = failed;
    }
    if (!error.empty()) Remember(error);
    return error.empty();
  }

  std::string last_error() const override {
    const std::lock_guard lock(mutex_);
    return last_error_;
  }

 private:
  // What a person reads of it.
  std::string Map(uint8_t* arena, uint64_t bytes) {
    if (!dma_map_) return "not mapped";
    if (client_ == nullptr) return "not mapped: the client is not known";
    if (bytes == 0) return "empty";
    pjrt::ClientDmaMap map;
    map.client = client_;
    map.data = arena;
    map.size = bytes;
    const std::string refused = library_->Try(&map);
    if (!refused.empty()) return "not mapped: " + refused;
    mapped_ = arena;
    return "mapped";
  }

  void Unmap() {
    if (mapped_ == nullptr) return;
    pjrt::ClientDmaUnmap unmap;
    unmap.client = client_;
    unmap.data = std::exchange(mapped_, nullptr);
    const std::string refused = library_->Try(&unmap);
    if (!refused.empty()) Remember(refused);
  }

  // Why no byte of these may be moved; empty when all may.
  std::string Refusal(std::span<const CopyExtent> extents, const pjrt::Hold* hold) const {
    if (hold == nullptr) return "a copy without a hold";
    std::string failure = hold->failure();
    if (!failure.empty()) return "the buffers were not written: " + failure;
    for (const CopyExtent& extent : extents) {
      const uint64_t ordinal = extent.device >> kDeviceBufferShift;
      const uint64_t offset = extent.device & kOffsetMask;
      const uint64_t bytes = hold->BufferBytes(ordinal);
      if (extent.bytes > bytes || offset > bytes - extent.bytes) {
        return std::to_string(extent.bytes) + " bytes at " + std::to_string(offset) + " are outside buffer " +
               std::to_string(ordinal) + " of " + std::to_string(bytes) + " bytes";
      }
    }
    return {};
  }

  // Stops at the first that the runtime refuses.
  std::string Issue(CopyDirection direction, std::span<const CopyExtent> extents, const pjrt::Hold& hold,
                    Batch* batch) const {
    for (const CopyExtent& extent : extents) {
      if (extent.bytes == 0) continue;
      std::string error;
      pjrt::Event* const event =
          hold.alias(extent.device >> kDeviceBufferShift)
              .Copy(direction, extent.arena, extent.device & kOffsetMask, extent.bytes, &error);
      if (event == nullptr) return error;
      batch->Issued();
      pjrt::OnReady(library_, event, [batch](const std::string& failed) { batch->Came(failed); });
    }
    return {};
  }

  void Remember(const std::string& error) {
    const std::lock_guard lock(mutex_);
    last_error_ = error;
  }

  const std::shared_ptr<const Library> library_;
  pjrt::Client* const client_;
  const bool dma_map_;
  CopyCapabilities capabilities_;
  uint8_t* mapped_ = nullptr;
  mutable std::mutex mutex_;
  std::string last_error_;
};

}  // namespace

std::shared_ptr<CopyBackend> MakePjrtBackend(const PjrtOptions& options) {
  return std::make_shared<PjrtBackend>(options);
}

}  // namespace tpu_sync_native
