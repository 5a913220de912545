#include "storage/strangers.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "segment/segment_codec.h"
#include "storage/own_lease.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kLookPolls = 16;
// A host that restarts opens its namespace again when its engine is there, minutes later: until then what it
// left is no more worthless than anything else.
constexpr uint64_t kAbandonedDeaths = 10;

// Bytes of the segments in a directory.
uint64_t BytesIn(StorageContext& context, const std::string& path) {
  std::vector<DirEntry> entries;
  uint64_t bytes = 0;
  if (!context.files->List(path, &entries).ok()) return 0;
  for (const DirEntry& entry : entries) {
    uint64_t number = 0, size = 0;
    std::unique_ptr<ReadFile> file;
    if (!ParseSegmentName(entry.name, &number)) continue;
    if (context.files->OpenRead(path + "/" + entry.name, &file).ok() && file->Size(&size).ok()) bytes += size;
    IoPool::Progress();
  }
  return bytes;
}

// It is open here, or about to be. One that was refused takes space all the same.
bool CountsItself(const StorageContext& context, const uint8_t id[16]) {
  const auto ns = context.NamespaceById(id);
  return ns != nullptr && ns->state.load() != StorageNamespace::State::kRefused;
}

bool OursToRemove(const std::string& name) {
  uint64_t number = 0;
  return ParseSegmentName(name, &number) || ParseIndexName(name, &number) || name == kTailName ||
         name == kLeaseName;
}

}  // namespace

IoError Strangers::Look(StorageContext& context, uint64_t now_ms) {
  if (looked_ms_ != 0 && now_ms - looked_ms_ < kLookPolls * context.options.poll_ms) return {};
  looked_ms_ = std::max<uint64_t>(now_ms, 1);
  std::vector<DirEntry> entries;
  IoError error = context.files->List(std::string(kVersionName), &entries);
  IoPool::Progress();
  if (error.not_found()) return {};
  if (!error.ok()) return error;
  for (auto& [name, place] : places_) place.listed = false;
  for (const DirEntry& entry : entries) {
    uint8_t id[16];
    if (!entry.directory || !ParseHexId(entry.name, id)) continue;
    if (CountsItself(context, id)) continue;
    Place& place = places_[entry.name];
    std::memcpy(place.id, id, sizeof(id));
    place.listed = true;
  }
  std::erase_if(places_, [](const auto& known) { return !known.second.listed; });
  for (auto& [name, place] : places_) {
    const IoError looked = LookAt(context, place, now_ms);
    if (error.ok()) error = looked;
  }
  return error;
}

IoError Strangers::LookAt(StorageContext& context, Place& place, uint64_t now_ms) {
  std::vector<DirEntry> entries;
  const std::string hosts = HostsDirectory(place.id);
  const IoError error = context.files->List(hosts, &entries);
  IoPool::Progress();
  if (error.not_found()) place.directories.clear();
  if (!error.ok()) return error.not_found() ? IoError{} : error;
  for (auto& [name, watch] : place.directories) watch.listed = false;
  bool alive = false;
  for (const DirEntry& entry : entries) {
    HostDirectoryName parsed;
    if (!entry.directory || !ParseHostDirectory(entry.name, &parsed)) continue;
    const bool fresh = !place.directories.contains(entry.name);
    Watch& watch = place.directories[entry.name];
    watch.listed = true;
    const std::string path = hosts + "/" + entry.name;
    std::string file;
    LeaseFile lease{};
    const IoError read = context.files->ReadAll(path + "/" + std::string(kLeaseName), kStorageUnit, &file);
    IoPool::Progress();
    const bool leased = read.ok() && DecodeLease(file, &lease).empty();
    if (!read.ok() && !read.not_found()) alive = true;  // who knows
    if (fresh || lease.counter != watch.counter) watch.since_ms = now_ms;
    watch.counter = lease.counter;
    if (leased) {
      watch.bytes = lease.bytes;
    } else if (fresh) {
      // An adopted directory is in its adopter's count, as long as that one has a lease.
      watch.bytes = parsed.adopted ? 0 : BytesIn(context, path);
    }
    if (now_ms - watch.since_ms < kAbandonedDeaths * context.options.dead_after_ms) alive = true;
  }
  std::erase_if(place.directories, [](const auto& known) { return !known.second.listed; });
  // As long as one host lives here it takes over what the others left.
  for (auto& [name, watch] : place.directories) watch.abandoned = !alive;
  return {};
}

uint64_t Strangers::bytes(const StorageContext& context) const {
  uint64_t bytes = 0;
  for (const auto& [name, place] : places_) {
    const auto ns = context.NamespaceById(place.id);
    if (ns != nullptr && ns->state.load() == StorageNamespace::State::kReady) continue;
    for (const auto& [directory, watch] : place.directories) bytes += watch.bytes;
  }
  return bytes;
}

uint64_t Strangers::Free(StorageContext& context, uint64_t bytes, IoError* error) {
  uint64_t freed = 0;
  for (auto& [id, place] : places_) {
    if (context.NamespaceById(place.id) != nullptr) continue;  // opened meanwhile
    for (auto it = place.directories.begin(); it != place.directories.end();) {
      if (freed >= bytes || !error->ok()) return freed;
      if (!it->second.abandoned) break;
      freed += FreeDirectory(context, place, it->first, error);
      it = place.directories.erase(it);
    }
  }
  return freed;
}

uint64_t Strangers::FreeDirectory(StorageContext& context, const Place& place, const std::string& name,
                                  IoError* error) {
  HostDirectoryName parsed;
  if (!ParseHostDirectory(name, &parsed)) return 0;
  std::string path = HostsDirectory(place.id) + "/" + name;
  if (context.files->traits().renames) {
    // One host removes it, and a host that only slept finds out.
    uint8_t nobody[16];
    MakeHostId(nobody);
    const std::string taken = HostsDirectory(place.id) + "/" + AdoptedName(parsed.host_id, nobody);
    const IoError renamed = context.files->Rename(path, taken);
    if (!renamed.ok()) {
      if (!renamed.not_found()) *error = renamed;
      return 0;
    }
    path = taken;
  }
  std::vector<DirEntry> entries;
  *error = context.files->List(path, &entries);
  // Indexes and the lease before segments.
  std::sort(entries.begin(), entries.end(), [](const DirEntry& a, const DirEntry& b) {
    return a.name.ends_with(".kvs") < b.name.ends_with(".kvs");
  });
  uint64_t freed = 0;
  for (const DirEntry& entry : entries) {
    if (!error->ok()) return freed;
    if (entry.directory || !OursToRemove(entry.name)) continue;
    uint64_t size = 0, number = 0;
    std::unique_ptr<ReadFile> file;
    const bool segment = ParseSegmentName(entry.name, &number);
    if (segment && context.files->OpenRead(path + "/" + entry.name, &file).ok()) file->Size(&size);
    file.reset();
    *error = context.files->Remove(path + "/" + entry.name);
    IoPool::Progress();
    if (error->not_found()) *error = {};
    if (!error->ok() || !segment) continue;
    freed += size;
    context.counters.deleted_segments.fetch_add(1);
    context.counters.deleted_bytes.fetch_add(size);
  }
  uint64_t removed = 0;
  context.files->RemoveTemporaries(path, &removed);
  context.counters.temporaries_removed.fetch_add(removed);
  context.files->Remove(path);  // stays if foreign files are in it
  return freed;
}

}  // namespace tpu_sync_native
