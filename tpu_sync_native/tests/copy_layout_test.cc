#include <cstdint>
#include <tuple>
#include <vector>

#include "check.h"
#include "copy/layout.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kArenaBytes = 1 << 20;

CopyCapabilities PlainMemory() {
  CopyCapabilities can;
  can.name = "plain";
  can.plain_memory = true;
  return can;
}

CopyLayout MakeLayout(std::vector<CopyRegion> regions, uint64_t num_blocks, uint32_t blocks_per_chunk,
                      uint64_t chunk_offset = 0) {
  return CopyLayout({std::move(regions), num_blocks, blocks_per_chunk, chunk_offset}, PlainMemory(),
                    kArenaBytes);
}

using Extent = std::tuple<uint64_t, uint64_t, uint64_t>;

std::vector<Extent> ExtentsOf(const CopyLayout& layout, const BlockRun& run, uint64_t begin, uint64_t end) {
  std::vector<Extent> extents;
  layout.ForEachExtent(run, 10'000, begin, end, [&](uint64_t device, uint64_t arena, uint64_t bytes) {
    extents.emplace_back(device, arena, bytes);
  });
  return extents;
}

TEST(PagesOfOneRegionStandTogetherInASlot) {
  // Two regions, pages of 100 and 10 bytes, four blocks a chunk, this worker's part 7 bytes into the slot.
  const CopyLayout layout = MakeLayout({{1000, 100, 100}, {5000, 10, 10}}, 8, 4, 7);
  CHECK(layout.block_bytes() == 110);
  CHECK(layout.chunk_bytes() == 440);
  const BlockRun run{.first_in_chunk = 1, .count = 2, .first_block = 3};
  const std::vector<Extent> expected = {{1300, 10'000 + 7 + 100, 200}, {5030, 10'000 + 7 + 400 + 10, 20}};
  CHECK(ExtentsOf(layout, run, 0, 220) == expected);
}

TEST(StridedPagesAreExtentsOfTheirOwn) {
  const CopyLayout layout = MakeLayout({{1000, 150, 100}}, 8, 4);
  const BlockRun run{.count = 2, .first_block = 2};
  const std::vector<Extent> expected = {{1300, 10'000, 100}, {1450, 10'100, 100}};
  CHECK(ExtentsOf(layout, run, 0, 200) == expected);
}

// Cut anywhere, the parts are the whole: the byte at position p of a run has one place on either side.
TEST(ARunCanBeCutAnywhere) {
  const CopyLayout layout = MakeLayout({{1000, 150, 100}, {9000, 40, 40}, {20'000, 33, 7}}, 16, 4, 64);
  const BlockRun run{.first_in_chunk = 1, .count = 3, .first_block = 5};
  const uint64_t bytes = 3 * layout.block_bytes();
  const auto places = [&](uint64_t begin, uint64_t end) {
    std::vector<std::pair<uint64_t, uint64_t>> pairs;
    for (const auto& [device, arena, length] : ExtentsOf(layout, run, begin, end)) {
      for (uint64_t i = 0; i < length; ++i) pairs.emplace_back(device + i, arena + i);
    }
    return pairs;
  };
  const auto whole = places(0, bytes);
  CHECK(whole.size() == bytes);
  for (uint64_t cut = 1; cut < bytes; ++cut) {
    auto parts = places(0, cut);
    CHECK(parts.size() == cut);
    const auto rest = places(cut, bytes);
    parts.insert(parts.end(), rest.begin(), rest.end());
    CHECK(parts == whole);
  }
}

TEST(NeighboursOnBothSidesBecomeOneExtent) {
  std::vector<uint8_t> arena(1000);
  ExtentList list(8);
  list.Add(100, arena.data(), 10);
  list.Add(110, arena.data() + 10, 10);  // both: merged
  list.Add(120, arena.data() + 30, 10);  // device only
  list.Add(140, arena.data() + 40, 10);  // arena only
  CHECK(list.view().size() == 3);
  CHECK(list.view()[0].bytes == 20);
}

TEST(AGeometryThatDoesNotFitIsRefused) {
  const auto make = [](std::vector<CopyRegion> regions, uint64_t num_blocks, uint32_t blocks_per_chunk,
                       uint64_t chunk_offset) {
    MakeLayout(std::move(regions), num_blocks, blocks_per_chunk, chunk_offset);
  };
  const uint64_t huge = uint64_t{1} << 63;
  CHECK_THROWS(make({}, 1, 1, 0), "regions is empty");
  CHECK_THROWS(make({{1000, 8, 8}}, 0, 1, 0), "num_blocks is 0");
  CHECK_THROWS(make({{1000, 8, 8}}, 1, 0, 0), "blocks_per_chunk is 0");
  CHECK_THROWS(make({{1000, 8, 0}}, 1, 1, 0), "pages of 0 bytes");
  CHECK_THROWS(make({{1000, 7, 8}}, 1, 1, 0), "below page_bytes");
  CHECK_THROWS(make({{0, 8, 8}}, 1, 1, 0), "has no address");
  CHECK_THROWS(make({{1000, 8, 8}}, huge, 1, 0), "too large");
  CHECK_THROWS(make({{1000, huge, huge}}, 1, 4, 0), "too large");
  CHECK_THROWS(make({{1000, 8, 8}}, 1, 1, ~uint64_t{0}), "too large");
  CHECK_THROWS(make({{1000, 8, 8}}, 1, 1, kArenaBytes - 7), "does not fit an arena");
  CHECK_THROWS(make({{1000, 4096, 4096}}, 1, 257, 0), "does not fit an arena");
  CopyCapabilities aligned = PlainMemory();
  aligned.alignment_bytes = 512;
  CHECK_THROWS(CopyLayout({{{1024, 512, 100}}, 1, 1, 0}, aligned, kArenaBytes), "not aligned");
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
