// The test plugin as a device of the kit.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "copy_backend_kit.h"
#include "pjrt/pjrt_backend.h"
#include "pjrt_host.h"

namespace tpu_sync_native::testing {

class PjrtKit final : public KitDevice {
 public:
  PjrtKit() { plugin_.Set("strict", 1); }
  ~PjrtKit() override {
    for (const uint64_t buffer : buffers_) plugin_.Destroy(buffer);
    for (const char* setting : {"strict", "ready_gate"}) plugin_.Set(setting, 0);
  }

  std::shared_ptr<CopyBackend> backend() override {
    PjrtOptions options;
    options.api = reinterpret_cast<uint64_t>(plugin_.api());
    options.client = reinterpret_cast<uint64_t>(plugin_.client());
    options.piece_bytes_max = 64 << 10;
    options.inflight_bytes_max = 128 << 10;
    return MakePjrtBackend(options);
  }
  uint64_t MakeBuffer(uint64_t bytes) override {
    const std::vector<uint8_t> zeros(bytes);
    return *buffers_.insert(plugin_.MakeBuffer(zeros)).first;
  }
  std::vector<uint8_t> Read(uint64_t buffer) override {
    const std::span<const uint8_t> memory = plugin_.MemoryOf(buffer);
    return {memory.begin(), memory.end()};
  }
  void Write(uint64_t buffer, std::span<const uint8_t> bytes) override {
    std::ranges::copy(bytes, plugin_.MemoryOf(buffer).begin());
  }
  uint64_t Step(uint64_t buffer, std::span<const uint8_t> bytes) override {
    const uint64_t next = plugin_.Replace(buffer);
    buffers_.erase(buffer);
    buffers_.insert(next);
    if (!held_) Write(next, bytes);
    if (held_) to_write_.emplace_back(next, std::vector<uint8_t>(bytes.begin(), bytes.end()));
    return next;
  }
  bool HoldSteps() override {
    plugin_.Set("ready_gate", 1);
    held_ = true;
    return true;
  }
  // Only now the steps write, and whoever was not made to wait has read what was there before.
  void ReleaseSteps() override {
    for (const auto& [buffer, bytes] : to_write_) Write(buffer, bytes);
    to_write_.clear();
    held_ = false;
    plugin_.Set("ready_gate", 0);
  }
  bool FailACopy() override {
    plugin_.Set("fail:copy", 1);
    return true;
  }
  bool refuses_other_memory() const override { return true; }

 private:
  PjrtHost& plugin_ = PjrtHost::Get();
  std::set<uint64_t> buffers_;
  bool held_ = false;
  std::vector<std::pair<uint64_t, std::vector<uint8_t>>> to_write_;
};

}  // namespace tpu_sync_native::testing
