#include "policy/registry.h"

#include <stdexcept>
#include <string>

#include "policy/lru.h"
#include "policy/s3fifo.h"

namespace tpu_sync_native {
namespace {

PolicyFactory Lru(SlotCell* cells, uint32_t /*slots_max*/) {
  return {.make = [cells] { return std::make_unique<LruPolicy>(cells); }};
}

PolicyFactory S3Fifo(SlotCell* cells, uint32_t slots_max) {
  // Half a ghost for every slot keeps the index within 96 bytes a chunk.
  const auto ghosts = std::make_shared<Ghosts>(slots_max / 2 + 1);
  return {.make = [cells, ghosts] { return std::make_unique<S3FifoPolicy>(cells, ghosts); },
          .shared_bytes = ghosts->bytes()};
}

constexpr std::string_view kNames[] = {"lru", "s3fifo"};
constexpr PolicyFactory (*kFactories[])(SlotCell*, uint32_t) = {Lru, S3Fifo};
static_assert(std::size(kNames) == std::size(kFactories));

}  // namespace

std::span<const std::string_view> PolicyNames() { return kNames; }

PolicyFactory FindPolicy(std::string_view name, SlotCell* cells, uint32_t slots_max) {
  std::string known;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return kFactories[i](cells, slots_max);
    known += (i == 0 ? "" : ", ") + std::string(kNames[i]);
  }
  throw std::invalid_argument("policy must be one of " + known + ", not \"" + std::string(name) + "\"");
}

}  // namespace tpu_sync_native
