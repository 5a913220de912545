#include "storage/own_lease.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "segment/names.h"
#include "segment/segment_codec.h"

namespace tpu_sync_native {
namespace {

constexpr int kIdsTried = 4;

std::string LeasePath(const std::string& directory) { return directory + "/" + std::string(kLeaseName); }

// What the other hosts are to count as this one's: the segments in its own directory and in adopted ones.
uint64_t OwnBytes(const StorageContext& context, const StorageNamespace& ns) {
  const bool adopts = context.files->traits().renames;
  const std::string directory = context.host_directory(ns);
  uint64_t bytes = 0;
  for (const auto& segment : context.segments->All()) {
    if (segment->ns.load() != ns.ns || !segment->own.load() || segment->retired.load()) continue;
    // Where nothing can be renamed, segments of dead hosts are everybody's and nobody's.
    if (!adopts && context.segments->Directory(*segment) != directory) continue;
    bytes += segment->taken_bytes();
  }
  return bytes;
}

}  // namespace

void MakeHostId(uint8_t id[16]) {
  size_t filled = 0;
  while (filled < 16) {
    const ssize_t got = getrandom(id + filled, 16 - filled, 0);
    if (got > 0) {
      filled += static_cast<size_t>(got);
    } else if (errno != EINTR) {  // no such system call in this sandbox
      std::random_device device;
      for (; filled < 16; ++filled) id[filled] = static_cast<uint8_t>(device());
    }
  }
}

OwnLease::Check OwnLease::CheckOurs(StorageContext& context, const std::string& path, IoError* error) const {
  std::string file;
  *error = context.files->ReadAll(path, kStorageUnit, &file);
  if (error->not_found()) return Check::kLost;
  if (!error->ok()) return Check::kUnknown;
  LeaseFile lease{};
  if (!DecodeLease(file, &lease).empty()) return Check::kLost;
  const bool ours = std::memcmp(lease.host_id, host_id_, sizeof(host_id_)) == 0 &&
                    lease.boot_id == context.options.boot_id && lease.counter >= confirmed_ &&
                    lease.counter <= attempted_;  // a clone of this process moved it otherwise
  return ours ? Check::kOurs : Check::kLost;
}

void OwnLease::BecomeAnother(StorageContext& context, StorageNamespace& ns) {
  stands_.store(false, std::memory_order_release);
  directory_made_ = false;
  confirmed_ = 0;
  {
    const std::lock_guard lock(ns.host_mutex);
    MakeHostId(ns.host_id);
    std::memcpy(host_id_, ns.host_id, sizeof(host_id_));
  }
  ns.host_changes.fetch_add(1);
  // They are others' now; where they lie, the next poll finds out.
  for (const auto& segment : context.segments->All()) {
    if (segment->ns.load() == ns.ns) segment->own.store(false);
  }
}

// Whether this host id was in use before, and is another host's now.
IoError OwnLease::WasAdopted(StorageContext& context, const StorageNamespace& ns, bool* adopted) const {
  if (!context.files->traits().renames)
    return {};  // nobody adopts there, and nothing to be listed may be there
  std::vector<DirEntry> entries;
  const IoError error = context.files->List(HostsDirectory(ns.id), &entries);
  for (const DirEntry& entry : entries) {
    HostDirectoryName name;
    if (entry.directory && ParseHostDirectory(entry.name, &name) && name.adopted &&
        std::memcmp(name.host_id, host_id_, sizeof(host_id_)) == 0) {
      *adopted = true;
    }
  }
  return error;
}

IoError OwnLease::MakeHostDirectory(StorageContext& context, StorageNamespace& ns) {
  IoError error = context.files->MakeDirectory(HostsDirectory(ns.id), false);
  if (!error.ok() && error.code != EEXIST) return error;
  for (int i = 0; i < kIdsTried; ++i) {
    {
      const std::lock_guard lock(ns.host_mutex);
      std::memcpy(host_id_, ns.host_id, sizeof(host_id_));
    }
    error = context.files->MakeDirectory(context.host_directory(ns), true);
    if (!error.ok() && error.code != EEXIST) break;
    if (error.ok()) {
      bool adopted = false;
      error = WasAdopted(context, ns, &adopted);
      if (!error.ok() || !adopted) break;
      // Its segments would have the identities of those that others took over.
      context.files->Remove(context.host_directory(ns));
      error = {EEXIST};
    }
    BecomeAnother(context, ns);  // a clone has this id, or an attempt that failed halfway
  }
  directory_made_ = error.ok();
  return error;
}

IoError OwnLease::Beat(StorageContext& context, StorageNamespace& ns, bool leaving) {
  IoError error;
  for (int i = 0; i < kIdsTried; ++i) {
    if (!directory_made_) {
      if (leaving) return {};  // was never here
      error = MakeHostDirectory(context, ns);
      if (!error.ok()) return error;
    }
    const std::string path = LeasePath(context.host_directory(ns));
    const Check check = confirmed_ == 0 ? Check::kOurs : CheckOurs(context, path, &error);
    if (check == Check::kUnknown) return error;
    if (check == Check::kOurs) {
      LeaseFile lease{};
      std::memcpy(lease.host_id, host_id_, sizeof(host_id_));
      lease.boot_id = context.options.boot_id;
      // Before the bytes: who sees these changes, and looks, finds at least what they tell of.
      lease.changes = ns.changes.load();
      lease.counter = ++attempted_;
      lease.bytes = OwnBytes(context, ns);
      lease.leaving = leaving ? 1 : 0;
      error = context.files->Publish(path, EncodeLease(lease), false);
      if (error.ok()) {
        confirmed_ = lease.counter;
        stands_.store(!leaving, std::memory_order_release);
        return error;
      }
      if (!error.not_found()) return error;
    }
    if (leaving) return {};  // adopted already
    context.counters.times_adopted.fetch_add(1);
    BecomeAnother(context, ns);
  }
  return error;
}

}  // namespace tpu_sync_native
