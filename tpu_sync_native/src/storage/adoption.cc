#include "storage/adoption.h"

#include <cerrno>
#include <cstring>

#include "segment/scan.h"
#include "segment/segment_codec.h"
#include "storage/retire.h"

namespace tpu_sync_native {
namespace {

IoError RemoveIfThere(StorageContext& context, const std::string& path) {
  const IoError error = context.files->Remove(path);
  IoPool::Progress();
  return error.not_found() ? IoError{} : error;
}

// Rebuilds the index of a segment that its host did not live to seal, from the records that verify.
IoError SealOrphan(const DirectoryLook& look, uint64_t number) {
  const auto known = look.context.segments->FindByIdentity(look.seen.name.host_id, look.ns.id, number);
  if (known != nullptr && known->retired.load()) return IoError{EAGAIN};  // it is being removed
  ScanResult scan;
  IoError error = ScanSegment(*look.context.files, look.path + "/" + SegmentName(number), true, &scan);
  IoPool::Progress();
  if (error.not_found()) return {};
  if (!error.ok()) return error;
  const bool fits = !scan.entries.empty() && scan.identity.number == number &&
                    scan.identity.chunk_bytes == look.ns.chunk_bytes &&
                    std::memcmp(scan.identity.namespace_id, look.ns.id, 16) == 0 &&
                    std::memcmp(scan.identity.host_id, look.seen.name.host_id, 16) == 0;
  if (!fits || scan.identity.epoch < look.ns.epoch.load()) {  // nothing in it can ever be a hit
    if (known != nullptr) RetireSegment(look.context, *known);
    look.seen.segments.erase(number);
    look.seen.complete = false;  // the directory may be empty now: the next look tells
    return RemoveSegmentFiles(look.context, look.path, number);
  }
  error =
      look.context.files->Publish(look.path + "/" + IndexName(number),
                                  EncodeIndex(scan.identity, scan.valid_bytes, true, scan.entries), false);
  IoPool::Progress();
  if (!error.ok()) return error;
  look.ns.changes.fetch_add(1);
  if (!LoadIndex(look, number, &error)) return error.ok() ? IoError{EAGAIN} : error;
  // Torn bytes behind the last record take space too, until the segment is reclaimed, and so does what its
  // host had reserved: as much as this one would, because nobody knows.
  if (const auto segment = look.context.segments->Get(look.seen.segments[number].id)) {
    segment->bytes.store(scan.file_bytes);
    segment->reserved_bytes.store(look.context.options.segment_bytes);
  }
  return {};
}

}  // namespace

IoError AdoptDirectory(StorageContext& context, StorageNamespace& ns, const SeenDirectory& seen,
                       const std::string& name, std::string* adopted) {
  uint8_t me[16];
  {
    const std::lock_guard lock(ns.host_mutex);
    std::memcpy(me, ns.host_id, sizeof(me));
  }
  const std::string hosts = HostsDirectory(ns.id) + "/";
  *adopted = AdoptedName(seen.name.host_id, me);
  for (const auto& [number, segment] : seen.segments) {
    if (segment.id != 0) context.segments->WillMove(segment.id, hosts + *adopted);
  }
  const IoError error = context.files->Rename(hosts + name, hosts + *adopted);
  IoPool::Progress();
  for (const auto& [number, segment] : seen.segments) {
    if (segment.id == 0) continue;
    context.segments->Move(segment.id, hosts + (error.ok() ? *adopted : name), error.ok());
    context.counters.adopted_segments.fetch_add(error.ok() ? 1 : 0);
  }
  if (!error.ok()) return error;
  ns.changes.fetch_add(1);
  return error;
}

IoError TidyDirectory(const DirectoryLook& look, const std::set<uint64_t>& segments,
                      const std::set<uint64_t>& indexes, bool tail) {
  IoError first = RemoveIfThere(look.context, look.path + "/" + std::string(kLeaseName));
  const auto note = [&first](const IoError& error) {
    if (first.ok()) first = error;
  };
  uint64_t removed = 0;
  note(look.context.files->RemoveTemporaries(look.path, &removed));
  look.context.counters.temporaries_removed.fetch_add(removed);
  for (const uint64_t number : segments) {
    if (!indexes.contains(number)) note(SealOrphan(look, number));
  }
  // An index whose segment is gone: a reclaim that was cut short. A listing may be old, so the file is asked
  // for.
  for (const uint64_t number : indexes) {
    if (segments.contains(number)) continue;
    std::unique_ptr<ReadFile> file;
    const IoError error = look.context.files->OpenRead(look.path + "/" + SegmentName(number), &file);
    if (error.not_found()) note(RemoveIfThere(look.context, look.path + "/" + IndexName(number)));
  }
  if (tail && first.ok()) note(RemoveIfThere(look.context, look.path + "/" + std::string(kTailName)));
  if (first.ok() && look.seen.segments.empty() && segments.empty()) {
    // ENOTEMPTY: something is in it that is not ours, or that the listing did not show.
    const IoError error = RemoveIfThere(look.context, look.path);
    if (error.ok()) look.ns.changes.fetch_add(1);
  }
  return first;
}

}  // namespace tpu_sync_native
