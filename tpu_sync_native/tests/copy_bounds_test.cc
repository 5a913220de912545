// What a caller may not ask for: every violation is refused at Submit, and nothing was queued.
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "check.h"
#include "copy_fakes.h"
#include "tpu_sync_native/copy_engine.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kPage = 256;
constexpr uint64_t kBlocks = 8;
constexpr uint32_t kPerChunk = 2;

struct Arguments {
  std::vector<int64_t> layouts = {0};
  std::vector<int64_t> sizes = {2};
  std::vector<int64_t> blocks = {0, 1};
  std::vector<int64_t> positions = {0, 1};
  std::vector<uint32_t> slots = {0};
  std::vector<uint32_t> generations = {1};
  std::vector<uint64_t> offsets = {0};
};

class Bounds {
 public:
  explicit Bounds(std::shared_ptr<const SlotGuard> guard = nullptr, uint64_t chunk_offset = 0)
      : device_(kPage * kBlocks), arena_(kPage * kPerChunk * 4) {
    engine_ = std::make_unique<CopyEngine>(CopyEngineOptions{
        .threads = 1, .arena = arena_.data(), .arena_bytes = arena_.size(), .guard = std::move(guard)});
    engine_->AddLayout(
        {{{reinterpret_cast<uint64_t>(device_.data()), kPage, kPage}}, kBlocks, kPerChunk, chunk_offset});
  }

  void Submit(const std::function<void(Arguments*)>& change) {
    Arguments with;
    change(&with);
    engine_->Submit({7, CopyDirection::kStore, with.layouts, with.sizes, with.blocks, with.positions,
                     with.slots, with.generations, with.offsets});
  }

  CopyEngine& engine() { return *engine_; }
  uint64_t arena_bytes() const { return arena_.size(); }

 private:
  std::vector<uint8_t> device_;
  std::vector<uint8_t> arena_;
  std::unique_ptr<CopyEngine> engine_;
};

TEST(WhatIsOutOfBoundsIsRefused) {
  Bounds bounds;
  using A = Arguments*;
  const uint64_t chunk = kPage * kPerChunk;
  CHECK_THROWS(bounds.Submit([](A a) { a->layouts = {1}; }), "add_layout never gave");
  CHECK_THROWS(bounds.Submit([](A a) { a->layouts = {-1}; }), "add_layout never gave");
  CHECK_THROWS(bounds.Submit([](A a) { a->layouts = {}; }), "layouts and group_sizes");
  CHECK_THROWS(bounds.Submit([](A a) { a->sizes = {3}; }), "group_sizes");
  CHECK_THROWS(bounds.Submit([](A a) { a->sizes = {-1}; }), "group_sizes");
  CHECK_THROWS(bounds.Submit([](A a) { a->sizes = {1}; }), "group_sizes");
  CHECK_THROWS(bounds.Submit([](A a) { a->blocks = {0, kBlocks}; }), "block_ids has 8");
  CHECK_THROWS(bounds.Submit([](A a) { a->blocks = {-1, 0}; }), "block_ids has -1");
  CHECK_THROWS(bounds.Submit([](A a) { a->blocks = {INT64_MAX, 0}; }), "block_ids");
  CHECK_THROWS(bounds.Submit([](A a) { a->blocks = {0}; }), "block_ids and block_positions");
  CHECK_THROWS(bounds.Submit([](A a) { a->positions = {0, 2}; }), "block_positions has 2");
  CHECK_THROWS(bounds.Submit([](A a) { a->positions = {-1, 0}; }), "block_positions has -1");
  CHECK_THROWS(bounds.Submit([](A a) { a->slots = {}; }), "not the same number");
  CHECK_THROWS(bounds.Submit([](A a) { a->generations = {1, 2}; }), "not the same number");
  CHECK_THROWS(bounds.Submit([](A a) { a->offsets = {}; }), "not the same number");
  CHECK_THROWS(bounds.Submit([&](A a) { a->offsets = {bounds.arena_bytes() - chunk + 1}; }),
               "outside the arena");
  CHECK_THROWS(bounds.Submit([](A a) { a->offsets = {UINT64_MAX}; }), "outside the arena");
  // The second chunk of the job, reached from the first without a break in the blocks.
  CHECK_THROWS(bounds.Submit([](A a) {
    a->positions = {1, 2};
    a->slots = {0, 1};
    a->generations = {1, 1};
    a->offsets = {0, UINT64_MAX - 100};
  }),
               "outside the arena");
  CHECK(bounds.engine().pending() == 0);
  CHECK(bounds.engine().Poll().empty());
}

TEST(NoLayoutReachesIntoTheNextSlot) {
  const auto nothing = [](Arguments*) {};
  const uint64_t chunk = kPage * kPerChunk;
  Bounds fits(std::make_shared<SwitchedGuard>(chunk));
  fits.Submit(nothing);
  CHECK(fits.engine().Wait(std::vector<uint64_t>{7}, 60));
  CHECK(fits.engine().Poll()[0].ok);

  Bounds larger(std::make_shared<SwitchedGuard>(chunk - 1));
  CHECK_THROWS(larger.Submit(nothing), "takes 512 bytes of a slot, whose chunk has 511 bytes");
  Bounds behind(std::make_shared<SwitchedGuard>(chunk), /*chunk_offset=*/1);
  CHECK_THROWS(behind.Submit(nothing), "takes 513 bytes of a slot, whose chunk has 512 bytes");
  CHECK(behind.engine().pending() == 0);

  // A slot that is lost already has no size any more: that is a failed copy, not a mistake.
  const auto guard = std::make_shared<SwitchedGuard>(chunk - 1);
  guard->Take(0);
  Bounds lost(guard);
  lost.Submit(nothing);
  CHECK(lost.engine().Wait(std::vector<uint64_t>{7}, 60));
  CHECK(!lost.engine().Poll()[0].ok);
}

TEST(TheLastSlotIsInBounds) {
  Bounds bounds;
  bounds.Submit([&](Arguments* a) { a->offsets = {bounds.arena_bytes() - kPage * kPerChunk}; });
  CHECK(bounds.engine().Wait(std::vector<uint64_t>{7}, 60));
  CHECK(bounds.engine().Poll()[0].ok);
}

TEST(AnOptionThatMakesNoSenseIsRefused) {
  CHECK_THROWS(CopyEngine(CopyEngineOptions{.threads = -1}), "threads is -1");
  CHECK_THROWS(CopyEngine(CopyEngineOptions{.threads = 1000}), "threads is 1000");
  CHECK_THROWS(CopyEngine(CopyEngineOptions{.arena = nullptr, .arena_bytes = 1}), "arena is null");
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
