#include "storage/copy_forward.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "segment/names.h"
#include "segment/segment_codec.h"
#include "storage/segment_reader.h"

namespace tpu_sync_native {
namespace {

struct HotChunk {
  IndexEntry entry;
  CatalogKey key;
  uint32_t last_use_s;

  std::string_view name() const { return {reinterpret_cast<const char*>(entry.key), entry.key_bytes}; }
  uint64_t stored_bytes() const { return uint64_t{entry.stored_units} * kStorageUnit; }
};

std::vector<HotChunk> HotChunks(StorageContext& context, const Segment& segment, uint32_t used_after_s,
                                bool* more) {
  std::vector<HotChunk> hot;
  std::string file;
  const std::string path = context.segments->Directory(segment) + "/" + IndexName(segment.identity.number);
  if (!context.files->ReadAll(path, 1ull << 30, &file).ok()) return hot;
  IoPool::Progress();
  SegmentIdentity identity;
  uint64_t segment_bytes = 0;
  bool sealed = false;
  std::vector<IndexEntry> entries;
  if (!DecodeIndex(file, &identity, &segment_bytes, &sealed, &entries).empty()) return hot;
  for (const IndexEntry& entry : entries) {
    HotChunk chunk{entry, {}, 0};
    chunk.key = MakeCatalogKey(segment.identity.namespace_id, chunk.name());
    if (context.catalog->Find(chunk.key) != PackWhere({segment.id, entry.offset, chunk.stored_bytes()}))
      continue;
    chunk.last_use_s = context.catalog->LastUse(chunk.key);
    if (chunk.last_use_s != 0 && chunk.last_use_s >= used_after_s) hot.push_back(chunk);
  }
  std::sort(hot.begin(), hot.end(), [](const auto& a, const auto& b) { return a.last_use_s > b.last_use_s; });
  const auto most = static_cast<uint64_t>(static_cast<double>(segment.bytes.load()) *
                                          std::clamp(context.options.copy_forward_share, 0.0, 1.0));
  uint64_t bytes = 0;
  size_t count = 0;
  while (count < hot.size() && bytes + hot[count].stored_bytes() + kStorageUnit <= most) {
    bytes += hot[count++].stored_bytes() + kStorageUnit;
  }
  *more = count < hot.size();
  hot.resize(count);
  // In the order in which they lie, so that a prompt's chunks lie together again.
  std::sort(hot.begin(), hot.end(),
            [](const auto& a, const auto& b) { return a.entry.offset < b.entry.offset; });
  return hot;
}

}  // namespace

uint64_t CopyForward(StorageContext& context, Demoter& demoter, Segment& segment, uint32_t used_after_s,
                     bool* too_hot) {
  bool more = false;
  const std::vector<HotChunk> hot = HotChunks(context, segment, used_after_s, &more);
  if (more && too_hot != nullptr) {
    *too_hot = true;
    return 0;
  }
  const uint64_t chunk_bytes = RoundToUnit(segment.identity.chunk_bytes);
  const size_t step = std::max<uint64_t>(1, context.options.io_bytes / (chunk_bytes + kStorageUnit));
  uint64_t copied = 0;
  for (size_t first = 0; first < hot.size(); first += step) {
    const size_t count = std::min(step, hot.size() - first);
    std::vector<std::shared_ptr<uint8_t[]>> buffers;
    std::vector<WantedChunk> wanted;
    for (size_t i = first; i < first + count; ++i) {
      buffers.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(kStorageUnit, chunk_bytes)),
                           [](uint8_t* data) { std::free(data); });
      if (buffers.back() == nullptr) return copied;
      wanted.push_back({hot[i].entry.offset, hot[i].stored_bytes(), hot[i].name(), buffers.back().get()});
    }
    ReadChunks(
        context, segment, wanted,
        [&](size_t i, ReadVerdict verdict) {
          const HotChunk& chunk = hot[first + i];
          if (verdict != ReadVerdict::kOk) return;
          context.catalog->Remove(chunk.key, {segment.id, chunk.entry.offset, chunk.stored_bytes()});
          if (!demoter.OfferBytes(segment.ns.load(), segment.identity.epoch, chunk.name(), buffers[i]))
            return;
          copied += chunk.stored_bytes();
        },
        context.control.get());
    IoPool::Progress();
  }
  context.counters.copied_forward_bytes.fetch_add(copied);
  return copied;
}

}  // namespace tpu_sync_native
