// What may be copied out of a slot under one generation.
#pragma once

#include <cstdint>

namespace tpu_sync_native {

enum class Readiness : uint8_t {
  kReady,    // committed; or reserved, for those who are writing it
  kPending,  // on its way from storage: it becomes ready or lost
  kLost,     // of another generation: it never becomes ready
};

}  // namespace tpu_sync_native
