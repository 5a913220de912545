// The policies by name. A new one is a file of its own, a line in registry.cc, and passes the contract's
// tests.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "policy/eviction_policy.h"

namespace tpu_sync_native {

struct PolicyFactory {
  // Makes one policy for one size class of the store it belongs to.
  std::function<std::unique_ptr<EvictionPolicy>()> make;
  // What all of them together need beside the cells; part of the index's memory.
  uint64_t shared_bytes = 0;
};

std::span<const std::string_view> PolicyNames();

// For a store with these cells. Throws std::invalid_argument naming the known policies.
PolicyFactory FindPolicy(std::string_view name, SlotCell* cells, uint32_t slots_max);

}  // namespace tpu_sync_native
