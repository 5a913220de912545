// The PJRT buffers of one moment, and the fence of what was launched before it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "copy/backend.h"
#include "pjrt/raw_buffer.h"

namespace tpu_sync_native::pjrt {

class Hold final : public CopyHold {
 public:
  // Null and a text when one of the buffers cannot be used.
  static std::shared_ptr<Hold> Take(const std::shared_ptr<const Library>& library,
                                    std::span<const uint64_t> buffers, std::string* error);

  bool Ready() const override;
  void OnReady(std::function<void()> ready) override;
  uint64_t BufferBytes(uint64_t ordinal) const override;

  const RawAlias& alias(uint64_t ordinal) const { return *aliases_[ordinal]; }
  // Of what was to write the buffers; empty when it succeeded. Once ready.
  std::string failure() const;

 private:
  // Outlives the hold when events are still to come.
  struct Fence;

  Hold();

  const std::shared_ptr<Fence> fence_;
  std::vector<std::unique_ptr<RawAlias>> aliases_;
};

}  // namespace tpu_sync_native::pjrt
