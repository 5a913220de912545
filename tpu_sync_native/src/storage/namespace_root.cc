#include "storage/namespace_root.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <vector>

#include "base/futex.h"
#include "segment/names.h"
#include "storage/epochs.h"
#include "tpu_sync_native/meta_layout.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kFormat = 1;
constexpr uint64_t kMarkerBytesMax = 4096;
constexpr uint64_t kMetaBytesMax = 4 << 20;
constexpr int kEpochsTried = 64;
// Older ones say nothing any more; those left are more than a listing that runs beside can miss.
constexpr uint64_t kEpochsKept = 16;

// {"format": N} with any white space; false for everything else.
bool ParseMarker(std::string_view text, uint64_t* format) {
  std::string packed;
  for (const char c : text) {
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') packed += c;
  }
  constexpr std::string_view kStart = "{\"format\":";
  if (!packed.starts_with(kStart) || packed.back() != '}') return false;
  const char* first = packed.data() + kStart.size();
  const char* last = packed.data() + packed.size() - 1;
  const auto [end, error] = std::from_chars(first, last, *format);
  return error == std::errc() && end == last && *first != '0';
}

std::string CannotUse(const std::string& what, const IoError& error) {
  return std::string(kMarkerName) + " in it cannot be " + what + ": " + error.text();
}

// Where two texts part, with what stands there.
std::string Difference(std::string_view here, std::string_view there) {
  const auto parts = std::mismatch(here.begin(), here.end(), there.begin(), there.end());
  const auto at = static_cast<size_t>(parts.first - here.begin());
  const size_t from = at < 20 ? 0 : at - 20;
  const auto excerpt = [from](std::string_view text) {
    std::string shown;
    for (const char c : text.substr(std::min(from, text.size()), 80)) {
      shown += c >= ' ' && c <= '~' ? c : '?';
    }
    return "'" + shown + "'";
  };
  return "they differ at byte " + std::to_string(at) + ": here " + excerpt(here) + ", there " +
         excerpt(there);
}

// What stands before the seal of a meta.json, which is its last field.
std::string_view WithoutSeal(std::string_view meta) {
  const size_t seal = meta.rfind(",\"seal\":");
  return meta.substr(0, seal != std::string_view::npos ? seal : meta.rfind('}'));
}

IoError ReadMeta(FileSystem& files, const StorageNamespace& ns, const std::string& path,
                 std::string* refused) {
  std::string there;
  const IoError error = files.ReadAll(path, kMetaBytesMax, &there);
  if (error.code == EFBIG) {
    *refused = path + " is larger than " + std::to_string(kMetaBytesMax) + " bytes";
    return {};
  }
  if (error.ok() && there != ns.meta_json) {
    const bool seals_differ = WithoutSeal(there) == WithoutSeal(ns.meta_json);
    *refused = path + (seals_differ ? " is of another storage_seal or storage_key; "
                                    : " holds another fingerprint under this id; ");
    *refused += Difference(ns.meta_json, there);
  }
  return error;
}

}  // namespace

std::string CheckMarker(FileSystem& files) {
  const std::string path(kMarkerName);
  std::string text;
  IoError error = files.ReadAll(path, kMarkerBytesMax, &text);
  if (error.not_found()) {
    const std::string made = "{\"format\": " + std::to_string(kFormat) + "}\n";
    error = files.Publish(path, made, /*exclusive=*/true);
    if (error.ok()) return "";
    if (error.code != EEXIST) return CannotUse("made", error);
    error = files.ReadAll(path, kMarkerBytesMax, &text);
  }
  if (!error.ok() && error.code != EFBIG) return CannotUse("read", error);
  uint64_t format = 0;
  if (!error.ok() || !ParseMarker(text, &format)) {
    return std::string(kMarkerName) + " in it is not the marker of a kvtier root; it is left as it is";
  }
  if (format > kFormat) {
    return "it was made by a newer version: its format is " + std::to_string(format) +
           ", this program knows formats up to " + std::to_string(kFormat);
  }
  return "";
}

IoError OpenOnRoot(StorageContext& context, StorageNamespace& ns, std::string* refused) {
  FileSystem& files = *context.files;
  const std::string path = NamespaceDirectory(ns.id) + "/" + std::string(kMetaName);
  IoError error = files.MakeDirectory(HostsDirectory(ns.id), /*exclusive=*/false);
  if (!error.ok() && error.code != EEXIST) return error;
  IoPool::Progress();
  error = ReadMeta(files, ns, path, refused);
  if (error.not_found()) {
    error = files.Publish(path, ns.meta_json, /*exclusive=*/true);
    if (!error.ok() && error.code != EEXIST) return error;
    IoPool::Progress();
    error = ReadMeta(files, ns, path, refused);  // another host may have been first
  }
  if (!error.ok() || !refused->empty()) return error;
  IoPool::Progress();
  uint64_t epoch = 0;
  error = ReadEpoch(files, ns.id, &epoch);
  if (!error.ok()) return error;
  SawEpoch(ns, epoch);
  const std::lock_guard lock(ns.clear_mutex);
  if (ns.epoch_found.exchange(true)) return {};
  // Nobody can say of which epoch its engine is: then it has one of its own, as after a clear.
  bool unknown = false;
  if (const uint64_t told = ns.told & ~kUnconfirmedClear; told == 0) {
    RaiseEpoch(context, ns, epoch);
    const bool late = SteadyNs() / kNsPerMs - ns.opened_ms >= context.options.open_late_ms;
    unknown = late && epoch > ns.known_epoch;
  } else if (told - 1 <= epoch) {
    RaiseEpoch(context, ns, told - 1);
  } else {  // never made on this root, or not by what is listed
    unknown = true;
  }
  if (unknown) {
    ns.clears.fetch_add(1);
    ns.clearing.store(true);
  }
  ns.cleared_epoch.store(ns.epoch.load());
  return {};
}

namespace {

// Makes an epoch higher than `above` and than any there is.
IoError MakeEpoch(FileSystem& files, const uint8_t namespace_id[16], uint64_t above, uint64_t* made) {
  uint64_t highest = 0;
  IoError error = ReadEpoch(files, namespace_id, &highest);
  if (!error.ok()) return error;
  uint64_t epoch = std::max(highest, above);
  // One that is there already may be of another host's clear before this one (listings may be stale): chunks
  // that were computed before this clear may lie under it.
  error = {EEXIST};
  for (int i = 0; i < kEpochsTried && error.code == EEXIST; ++i) {
    if (epoch == UINT64_MAX) return {EOVERFLOW};
    ++epoch;
    IoPool::Progress();
    error = files.Publish(NamespaceDirectory(namespace_id) + "/" + EpochName(epoch), "", /*exclusive=*/true);
  }
  if (error.ok()) *made = epoch;
  return error;
}

}  // namespace

IoError ClearOnRoot(FileSystem& files, const uint8_t namespace_id[16], uint64_t* made) {
  std::string meta;
  const std::string path = NamespaceDirectory(namespace_id) + "/" + std::string(kMetaName);
  const IoError error = files.ReadAll(path, kMetaBytesMax, &meta);
  if (!error.ok() && error.code != EFBIG) return error;
  IoPool::Progress();
  return MakeEpoch(files, namespace_id, 0, made);
}

IoError ConfirmClear(StorageContext& context, StorageNamespace& ns) {
  FileSystem& files = *context.files;
  const uint64_t clears = ns.clears.load();
  uint64_t epoch = 0;
  const IoError error = MakeEpoch(files, ns.id, ns.epoch.load(), &epoch);
  if (!error.ok()) return error;
  {
    const std::lock_guard lock(ns.clear_mutex);
    ns.cleared_epoch.store(epoch);
    RaiseEpoch(context, ns, epoch);
    if (ns.clears.load() == clears) ns.clearing.store(false);
  }
  ns.changes.fetch_add(1);
  std::vector<DirEntry> entries;
  if (!files.List(NamespaceDirectory(ns.id), &entries).ok()) return {};
  for (const DirEntry& entry : entries) {
    uint64_t old = 0;
    if (entry.directory || !ParseEpochName(entry.name, &old) || old + kEpochsKept > epoch) continue;
    IoPool::Progress();
    files.Remove(NamespaceDirectory(ns.id) + "/" + entry.name);  // what stays is removed with the next clear
  }
  return {};
}

}  // namespace tpu_sync_native
