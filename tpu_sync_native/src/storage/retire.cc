#include "storage/retire.h"

#include <algorithm>
#include <string>
#include <vector>

#include "segment/names.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kCellsPerStep = 1 << 16;  // some 100 us of the catalog's mutex

}  // namespace

bool Outdated(const StorageContext& context, const Segment& segment) {
  const auto ns = context.Namespace(segment.ns.load());
  return ns != nullptr && segment.identity.epoch < ns->epoch.load();
}

void RetireSegment(StorageContext& context, const Segment& segment) {
  context.catalog->MarkDead(segment.id);
  context.segments->Retire(segment.id);
}

void SweepRetired(StorageContext& context) {
  std::vector<uint32_t> retired, swept;
  for (const auto& segment : context.segments->All()) {
    if (segment->retired.load()) retired.push_back(segment->id);
    if (segment->retired.load() || Outdated(context, *segment)) swept.push_back(segment->id);
  }
  if (swept.empty()) return;
  std::sort(swept.begin(), swept.end());
  uint64_t cursor = 0, removed = 0;
  do {
    cursor = context.catalog->Sweep(swept, cursor, kCellsPerStep, &removed);
  } while (cursor != 0);
  for (const uint32_t id : retired) context.segments->Forget(id);
}

IoError RemoveSegmentFiles(StorageContext& context, const std::string& directory, uint64_t number) {
  for (const std::string& name : {IndexName(number), SegmentName(number)}) {
    const IoError error = context.files->Remove(directory + "/" + name);
    if (!error.ok() && !error.not_found()) return error;
    IoPool::Progress();
  }
  return {};
}

}  // namespace tpu_sync_native
