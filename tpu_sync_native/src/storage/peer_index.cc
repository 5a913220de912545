#include "storage/peer_index.h"

#include <cerrno>
#include <set>
#include <string_view>
#include <vector>

#include "segment/segment_codec.h"
#include "storage/adoption.h"
#include "storage/retire.h"

namespace tpu_sync_native {
namespace {

// The index of the largest segment of the smallest chunks; more is not an index of ours.
constexpr uint64_t kIndexBytesMax = 1ull << 30;
// Records that were refused are tried again when so much of the catalog has become free, and so many indexes
// are read for it in one poll.
constexpr uint64_t kRoomPart = 64;
constexpr int kRefusedReadMax = 8;

struct Listing {
  std::set<uint64_t> segments, indexes;
  bool tail = false;
};

IoError ListDirectory(const DirectoryLook& look, Listing* listing) {
  std::vector<DirEntry> entries;
  const IoError error = look.context.files->List(look.path, &entries);
  for (const DirEntry& entry : entries) {
    uint64_t number = 0;
    if (entry.directory) continue;
    if (ParseSegmentName(entry.name, &number)) listing->segments.insert(number);
    if (ParseIndexName(entry.name, &number)) listing->indexes.insert(number);
    if (entry.name == kTailName) listing->tail = true;
  }
  return error;
}

// "" or why this index does not belong where it lies.
std::string CheckPlace(const DirectoryLook& look, const SegmentIdentity& identity, uint64_t number,
                       bool sealed) {
  if (std::memcmp(identity.namespace_id, look.ns.id, 16) != 0) return "another namespace's";
  if (std::memcmp(identity.host_id, look.seen.name.host_id, 16) != 0) return "another host's";
  if (identity.chunk_bytes != look.ns.chunk_bytes) return "of another chunk size";
  if (identity.number == 0 || (number != 0 && identity.number != number)) return "of another segment";
  if (sealed != (number != 0)) return sealed ? "a sealed one" : "not a sealed one";
  return "";
}

// The table's entry, in this directory from now on; null: no room, or one of that name is being forgotten.
std::shared_ptr<Segment> EntryFor(const DirectoryLook& look, const SegmentIdentity& identity) {
  SegmentTable& table = *look.context.segments;
  std::shared_ptr<Segment> segment =
      table.FindByIdentity(identity.host_id, identity.namespace_id, identity.number);
  if (segment == nullptr) segment = table.Add(identity, look.path, look.mine);
  if (segment == nullptr || segment->retired.load()) return nullptr;
  segment->ns.store(look.ns.ns);
  if (segment->age_from_s.load() == 0) segment->age_from_s.store(SteadySeconds());
  if (table.Directory(*segment) != look.path || segment->own.load() != look.mine) {
    table.Move(segment->id, look.path, look.mine);
  }
  return segment;
}

void AddRecords(StorageContext& context, const StorageNamespace& ns, Segment& segment,
                const std::vector<IndexEntry>& entries, uint64_t seen_bytes) {
  uint64_t elsewhere = 0;
  for (const IndexEntry& entry : entries) {
    if (entry.offset < seen_bytes) continue;
    const std::string_view name(reinterpret_cast<const char*>(entry.key), entry.key_bytes);
    const CatalogKey key = MakeCatalogKey(ns.id, name);
    const Where where{segment.id, entry.offset, uint64_t{entry.stored_units} * kStorageUnit};
    const Catalog::Added added = context.catalog->Add(key, where);
    if (added == Catalog::Added::kFull) segment.refused_at.store(context.catalog->records() + 1);
    if (added != Catalog::Added::kNew && context.catalog->Find(key) != PackWhere(where)) ++elsewhere;
  }
  segment.records.store(entries.size());
  if (seen_bytes == 0) segment.dead_records.store(0);  // all of it anew
  segment.dead_records.fetch_add(elsewhere);
}

bool Gone(const DirectoryLook& look, uint64_t number, IoError* error) {
  std::unique_ptr<ReadFile> file;
  *error = look.context.files->OpenRead(look.path + "/" + SegmentName(number), &file);
  IoPool::Progress();
  return error->not_found();
}

// A listing may be older than the directory, so a name that is missing proves nothing: the file is asked for.
void RetireGone(const DirectoryLook& look, const Listing& listing) {
  for (auto it = look.seen.segments.begin(); it != look.seen.segments.end();) {
    IoError error;
    if (listing.segments.contains(it->first) || !Gone(look, it->first, &error)) {
      if (!error.ok()) look.seen.complete = false;
      ++it;
      continue;
    }
    if (const auto segment = look.context.segments->Get(it->second.id)) RetireSegment(look.context, *segment);
    it = look.seen.segments.erase(it);
  }
}

}  // namespace

bool LoadIndex(const DirectoryLook& look, uint64_t number, IoError* error) {
  if (look.budget.spent()) return false;
  const bool is_tail = number == 0;
  const std::string path = look.path + "/" + (is_tail ? std::string(kTailName) : IndexName(number));
  std::string file;
  IoError read = look.context.files->ReadAll(path, kIndexBytesMax, &file);
  IoPool::Progress();
  if (read.not_found()) return true;  // removed since; the segment tells by itself
  if (!read.ok() && read.code != EFBIG) {
    *error = read;
    return false;
  }
  look.budget.Take(file.size());
  SegmentIdentity identity;
  uint64_t segment_bytes = 0;
  bool sealed = false;
  std::vector<IndexEntry> entries;
  std::string wrong =
      read.ok() ? DecodeIndex(file, &identity, &segment_bytes, &sealed, &entries) : read.text();
  if (wrong.empty()) wrong = CheckPlace(look, identity, number, sealed);
  if (!wrong.empty()) {
    look.context.counters.indexes_refused.fetch_add(1);
    if (is_tail) return true;  // the next one, or the sealed index
    look.seen.segments[number] = {.id = 0, .seen_bytes = 0, .sealed = true};
    return true;
  }
  const uint64_t epoch = look.ns.epoch.load();
  if (identity.epoch < epoch && look.mine &&
      !RemoveSegmentFiles(look.context, look.path, identity.number).ok()) {
    return false;
  }
  if (identity.epoch != epoch && (identity.epoch < epoch || !look.mine)) {
    if (!is_tail) look.seen.segments[number] = {.id = 0, .seen_bytes = 0, .sealed = true};
    return true;
  }
  SeenSegment& seen = look.seen.segments[identity.number];
  if (seen.sealed && is_tail) return true;  // an old tail beside its final index
  const std::shared_ptr<Segment> segment = EntryFor(look, identity);
  if (segment == nullptr) return false;
  if (seen.id != segment->id) seen = {.id = segment->id};
  if (identity.epoch == epoch) {
    AddRecords(look.context, look.ns, *segment, entries, seen.seen_bytes);
  } else {  // this host keeps it for those of that epoch
    segment->records.store(entries.size());
    segment->dead_records.store(entries.size());
  }
  seen.seen_bytes = segment_bytes;
  seen.sealed = sealed;
  segment->bytes.store(segment_bytes);
  segment->sealed.store(sealed);
  return true;
}

void FindRefused(StorageContext& context, StorageNamespace& ns) {
  const Catalog& catalog = *context.catalog;
  const auto all = context.segments->All();
  int reads = 0;
  for (auto it = all.rbegin(); it != all.rend() && reads < kRefusedReadMax; ++it) {  // the newest first
    Segment& segment = **it;
    const uint64_t refused_at = segment.refused_at.load();
    if (refused_at == 0 || segment.ns.load() != ns.ns || segment.retired.load()) continue;
    if (!segment.sealed.load() || segment.identity.epoch != ns.epoch.load()) continue;
    if (catalog.records() + catalog.records_max() / kRoomPart + 1 >= refused_at) continue;
    std::string file;
    const std::string name = IndexName(segment.identity.number);
    ++reads;
    const IoError error =
        context.files->ReadAll(context.segments->Directory(segment) + "/" + name, kIndexBytesMax, &file);
    IoPool::Progress();
    if (!error.ok()) continue;  // not published yet, or about to go
    SegmentIdentity identity;
    uint64_t segment_bytes = 0;
    bool sealed = false;
    std::vector<IndexEntry> entries;
    segment.refused_at.store(0);
    if (!DecodeIndex(file, &identity, &segment_bytes, &sealed, &entries).empty()) continue;
    if (identity.number != segment.identity.number || identity.epoch != segment.identity.epoch) continue;
    AddRecords(context, ns, segment, entries, 0);
  }
}

IoError LookIntoDirectory(const DirectoryLook& look) {
  Listing listing;
  IoError error = ListDirectory(look, &listing);
  IoPool::Progress();
  look.seen.complete = error.ok();
  if (!error.ok()) return error;
  // The newest first: what was stored last is asked for first.
  for (auto number = listing.indexes.rbegin(); number != listing.indexes.rend(); ++number) {
    const auto known = look.seen.segments.find(*number);
    if (known != look.seen.segments.end() && known->second.sealed) continue;
    // An index that came later than its segment went: nothing to be found.
    if (!listing.segments.contains(*number) && Gone(look, *number, &error)) continue;
    if (!LoadIndex(look, *number, &error)) look.seen.complete = false;
  }
  if (listing.tail && !LoadIndex(look, 0, &error)) look.seen.complete = false;
  RetireGone(look, listing);
  if (look.mine && !TidyDirectory(look, listing.segments, listing.indexes, listing.tail).ok()) {
    look.seen.complete = false;
  }
  return error;
}

}  // namespace tpu_sync_native
