#include "storage/epochs.h"

#include <algorithm>
#include <vector>

#include "segment/names.h"
#include "storage/retire.h"

namespace tpu_sync_native {

IoError ReadEpoch(FileSystem& files, const uint8_t namespace_id[16], uint64_t* epoch) {
  std::vector<DirEntry> entries;
  const IoError error = files.List(NamespaceDirectory(namespace_id), &entries);
  uint64_t highest = 0, number = 0;
  for (const DirEntry& entry : entries) {
    if (ParseEpochName(entry.name, &number)) highest = std::max(highest, number);
  }
  if (error.ok()) *epoch = highest;
  return error;
}

void SawEpoch(StorageNamespace& ns, uint64_t epoch) {
  uint64_t seen = ns.root_epoch.load();
  while (epoch > seen && !ns.root_epoch.compare_exchange_weak(seen, epoch)) continue;
}

bool RaiseEpoch(StorageContext& context, StorageNamespace& ns, uint64_t epoch) {
  SawEpoch(ns, epoch);
  uint64_t now = ns.epoch.load();
  do {
    if (epoch <= now) return false;
  } while (!ns.epoch.compare_exchange_weak(now, epoch));
  for (const auto& segment : context.segments->All()) {
    if (segment->ns.load() != ns.ns || segment->identity.epoch >= epoch || segment->retired.load()) continue;
    // What lies in own directories stays known to the reclaimer, which removes the files.
    context.catalog->MarkDead(segment->id);
    if (!segment->own.load()) RetireSegment(context, *segment);
  }
  return true;
}

}  // namespace tpu_sync_native
