#include "storage/segment_writer.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/futex.h"
#include "segment/names.h"

namespace tpu_sync_native {
namespace {

constexpr int kNumbersTried = 64;
// Indexes that wait for a medium that takes them; beyond, the oldest is given up (its segment's records are
// then this host's alone, until somebody scans it).
constexpr size_t kIndexesPendingMax = 64;

uint64_t NowMs() { return SteadyNs() / kNsPerMs; }

// The segment that is appended to.
struct OpenSegment {
  std::unique_ptr<AppendFile> file;
  std::shared_ptr<Segment> segment;
  std::string directory;
  uint64_t host_changes = 0;
  uint64_t end = 0;  // of what was appended; 0: not even the header
  uint64_t synced_end = 0;
  std::vector<IndexEntry> entries;  // of all records appended
  size_t synced = 0;                // of these, from the front
  bool tail_due = false;            // tail.idx says less than it could
};

struct PendingIndex {
  std::string path;
  std::string data;
};

}  // namespace

struct SegmentWriter::Impl {
  Impl(std::shared_ptr<StorageContext> wanted_context, std::shared_ptr<StorageNamespace> wanted_ns)
      : context(std::move(wanted_context)), ns(std::move(wanted_ns)), header(MakeAligned(kStorageUnit)) {}

  const std::shared_ptr<StorageContext> context;
  const std::shared_ptr<StorageNamespace> ns;
  const AlignedBytes header;  // of a segment that begins
  std::unique_ptr<OpenSegment> open;
  std::vector<IoVec> parts;
  std::string numbered_directory;  // whose next free number is known
  uint64_t next_number = 1;
  std::deque<PendingIndex> pending;
  std::atomic<uint64_t> unsynced_bytes{0}, unsynced_since_ms{0}, open_bytes{0}, indexes_pending{0};

  FileSystem& files() const { return *context->files; }
  bool readable_at_once() const { return files().traits().appends_readable; }
  std::string PathOf(const std::string& name) const { return open->directory + "/" + name; }
  uint64_t number() const { return open->segment->identity.number; }

  IoError Report(const IoError& error) const {
    context->control->Report(error);
    IoPool::Progress();
    return error;
  }
  // A write that failed: nothing is admitted until the reclaimer has looked.
  IoError ReportWrite(const IoError& error) const {
    if (error.no_space())
      context->CloseAdmission("no space: " + error.text());
    else if (!error.ok() && !error.not_found())
      context->CloseAdmission("a write failed: " + error.text());
    return Report(error);
  }

  void Publish(std::string path, std::string data);
  void RetryPending();
  IoError FindNextNumber(const std::string& directory);
  IoError Begin(uint64_t epoch);
  void AddToCatalog();
  void SyncedNow();
  IoError SyncFile();
  void EndSegment();
  void SealSynced();
  void CloseFile();
  void CountLost();
  void LeaveIfAdopted();
  void ForgetEmpty();
  IoError SealWhole();
  void UpdateGauges();
};

void SegmentWriter::Impl::UpdateGauges() {
  const uint64_t unsynced = open == nullptr ? 0 : open->end - open->synced_end;
  open_bytes.store(open == nullptr ? 0 : open->end);
  unsynced_bytes.store(unsynced);
  if (unsynced == 0) {
    unsynced_since_ms.store(0);
  } else if (unsynced_since_ms.load() == 0) {
    unsynced_since_ms.store(NowMs());
  }
  indexes_pending.store(pending.size() + (open != nullptr && open->tail_due ? 1 : 0));
}

// Publishes an index, or keeps it for later.
void SegmentWriter::Impl::Publish(std::string path, std::string data) {
  const IoError error = ReportWrite(files().Publish(path, data, /*exclusive=*/false));
  if (error.ok()) {
    ns->changes.fetch_add(1);
  } else if (!error.not_found()) {  // the directory is another host's by now; so is the segment
    if (pending.size() >= kIndexesPendingMax) pending.pop_front();
    pending.push_back({std::move(path), std::move(data)});
  }
}

void SegmentWriter::Impl::RetryPending() {
  while (!pending.empty()) {
    const PendingIndex& index = pending.front();
    const IoError error = ReportWrite(files().Publish(index.path, index.data, /*exclusive=*/false));
    if (!error.ok() && !error.not_found()) return;
    if (error.ok()) ns->changes.fetch_add(1);
    pending.pop_front();
  }
}

// A directory that is not new (a host id that comes back) has numbers that were used.
IoError SegmentWriter::Impl::FindNextNumber(const std::string& directory) {
  if (directory == numbered_directory) return {};
  std::vector<DirEntry> entries;
  const IoError error = Report(files().List(directory, &entries));
  if (!error.ok() && !(error.not_found() && !files().traits().renames)) return error;
  next_number = 1;
  for (const DirEntry& entry : entries) {
    uint64_t used = 0;
    if (ParseSegmentName(entry.name, &used) || ParseIndexName(entry.name, &used)) {
      next_number = std::max(next_number, used + 1);
    }
  }
  numbered_directory = directory;
  return {};
}

IoError SegmentWriter::Impl::Begin(uint64_t epoch) {
  auto begun = std::make_unique<OpenSegment>();
  SegmentIdentity identity;
  {
    const std::lock_guard lock(ns->host_mutex);
    begun->host_changes = ns->host_changes.load();
    begun->directory = HostsDirectory(ns->id) + "/" + HexId(ns->host_id);
    std::memcpy(identity.host_id, ns->host_id, sizeof(identity.host_id));
  }
  if (const IoError error = FindNextNumber(begun->directory); !error.ok()) return error;
  IoError error{EEXIST};
  for (int i = 0; i < kNumbersTried && error.code == EEXIST; ++i) {
    identity.number = next_number++;
    error = files().OpenAppend(begun->directory + "/" + SegmentName(identity.number),
                               context->options.segment_bytes, &begun->file);
  }
  if (!ReportWrite(error).ok()) return error;
  std::memcpy(identity.namespace_id, ns->id, sizeof(identity.namespace_id));
  identity.epoch = epoch;
  identity.chunk_bytes = ns->chunk_bytes;
  begun->segment = context->segments->Add(identity, begun->directory, /*own=*/true);
  open = std::move(begun);
  if (open->segment == nullptr || open->segment->retired) {  // no number left
    open->segment = nullptr;
    const std::string path = PathOf(SegmentName(identity.number));
    open = nullptr;
    Report(files().Remove(path));
    return {ENFILE};
  }
  open->segment->ns.store(ns->ns);
  open->segment->age_from_s.store(SteadySeconds());
  open->segment->reserved_bytes.store(context->options.segment_bytes);
  return {};
}

// What was synced lately is found from now on; unless it is of an epoch that is over.
void SegmentWriter::Impl::AddToCatalog() {
  Segment& segment = *open->segment;
  const bool of_now = !ns->clearing.load() && ns->epoch.load() == segment.identity.epoch;
  for (size_t i = open->synced; i < open->entries.size(); ++i) {
    const IndexEntry& entry = open->entries[i];
    const Where where{segment.id, entry.offset, uint64_t{entry.stored_units} * kStorageUnit};
    auto added = Catalog::Added::kKnown;
    if (of_now) added = context->catalog->Add(MakeCatalogKey(ns->id, KeyOf(entry)), where);
    if (added == Catalog::Added::kFull) segment.refused_at.store(context->catalog->records() + 1);
    if (added != Catalog::Added::kNew) segment.dead_records.fetch_add(1);
    context->counters.demoted_bytes.fetch_add(where.stored_bytes);
  }
  context->counters.demoted_chunks.fetch_add(open->entries.size() - open->synced);
  segment.records.fetch_add(open->entries.size() - open->synced);
}

void SegmentWriter::Impl::SyncedNow() {
  AddToCatalog();
  open->synced = open->entries.size();
  open->synced_end = open->end;
  open->tail_due = true;
}

// Once: after a sync that failed, none is believed.
IoError SegmentWriter::Impl::SyncFile() {
  if (open->synced_end == open->end) return {};
  const IoError error = ReportWrite(open->file->Sync());
  if (error.ok()) SyncedNow();
  return error;
}

// What was appended and will not be found.
void SegmentWriter::Impl::CountLost() {
  context->counters.dropped_error.fetch_add(open->entries.size() - open->synced);
}

// Another host has taken the segment over, with what it could read of it.
void SegmentWriter::Impl::LeaveIfAdopted() {
  if (open == nullptr || open->host_changes == ns->host_changes.load()) return;
  CountLost();
  open = nullptr;
}

// It had no record that anybody can find.
void SegmentWriter::Impl::ForgetEmpty() {
  open->file = nullptr;
  Report(files().Remove(PathOf(SegmentName(number()))));
  context->segments->Forget(open->segment->id);
}

// Ends the open segment with what was synced; there may be torn bytes behind it.
void SegmentWriter::Impl::SealSynced() {
  CountLost();
  if (open->synced == 0) {
    ForgetEmpty();
  } else {
    open->file = nullptr;
    open->entries.resize(open->synced);
    open->end = open->synced_end;
    EndSegment();
  }
  open = nullptr;
  UpdateGauges();
}

// The final index, then nobody needs the tail.
void SegmentWriter::Impl::EndSegment() {
  Segment& segment = *open->segment;
  const size_t waiting = pending.size();
  Publish(PathOf(IndexName(number())),
          EncodeIndex(segment.identity, open->synced_end, /*sealed=*/true, std::move(open->entries)));
  if (readable_at_once() && pending.size() == waiting) {
    const IoError error = Report(files().Remove(PathOf(std::string(kTailName))));
    if (error.ok()) ns->changes.fetch_add(1);
  }
  segment.sealed.store(true);
  segment.reserved_bytes.store(0);
  context->counters.sealed_segments.fetch_add(1);
}

// Ends the open segment with all that was appended.
IoError SegmentWriter::Impl::SealWhole() {
  if (readable_at_once()) {
    const IoError error = SyncFile();
    if (!error.ok() || open->synced == 0) {
      SealSynced();
      return error;
    }
    CloseFile();
  } else {
    const IoError error = ReportWrite(open->file->Close());
    if (!error.ok()) {
      SealSynced();
      return error;
    }
    open->file = nullptr;
    SyncedNow();
  }
  EndSegment();
  open = nullptr;
  UpdateGauges();
  return {};
}

// All of it is durable: what closing says changes nothing.
void SegmentWriter::Impl::CloseFile() {
  Report(open->file->Close());
  open->file = nullptr;
}

SegmentWriter::SegmentWriter(std::shared_ptr<StorageContext> context, std::shared_ptr<StorageNamespace> ns)
    : impl_(std::make_unique<Impl>(std::move(context), std::move(ns))) {}

SegmentWriter::~SegmentWriter() = default;

IoError SegmentWriter::Append(RecordBatch& batch, uint64_t epoch) {
  Impl& impl = *impl_;
  if (batch.size() == 0) return {};
  impl.LeaveIfAdopted();
  if (impl.open != nullptr) {
    const bool full = impl.open->end + batch.stored_bytes() > impl.context->options.segment_bytes;
    if (full || impl.open->segment->identity.epoch != epoch) Seal();
  }
  if (impl.open == nullptr) {
    if (const IoError error = impl.Begin(epoch); !error.ok()) return error;
  }
  OpenSegment& open = *impl.open;
  impl.parts.clear();
  uint64_t offset = open.end;
  if (offset == 0) {
    EncodeSegmentHeader(open.segment->identity, impl.header.get());
    impl.parts.push_back({impl.header.get(), kStorageUnit});
    offset = kStorageUnit;
  }
  const size_t before = open.entries.size();
  const bool placed = batch.Place(open.segment->identity, offset, &impl.parts, &open.entries);
  const IoError error = placed ? impl.ReportWrite(open.file->Append(impl.parts)) : IoError{ENOMEM};
  if (!error.ok()) {
    open.entries.resize(before);
    if (impl.readable_at_once()) impl.SyncFile();  // what went well before; its first sync since
    impl.SealSynced();
    return error;
  }
  open.end = offset + batch.stored_bytes();
  open.segment->bytes.store(open.end);
  open.segment->age_from_s.store(SteadySeconds());
  const bool whole = open.end >= impl.context->options.segment_bytes;
  impl.UpdateGauges();
  if (whole) Seal();  // a failure there is reported, and is none of these records'
  return {};
}

IoError SegmentWriter::Sync() {
  Impl& impl = *impl_;
  impl.RetryPending();
  IoError error;
  impl.LeaveIfAdopted();
  if (impl.open != nullptr && impl.readable_at_once()) {
    OpenSegment& open = *impl.open;
    error = impl.SyncFile();
    if (!error.ok()) {
      impl.SealSynced();
    } else if (open.tail_due) {
      // A tail that could not be published waits for the next one, which says more.
      const std::string tail =
          EncodeIndex(open.segment->identity, open.synced_end, /*sealed=*/false, open.entries);
      const IoError published =
          impl.ReportWrite(impl.files().Publish(impl.PathOf(std::string(kTailName)), tail, false));
      open.tail_due = !published.ok();
      if (published.ok()) impl.ns->changes.fetch_add(1);
    }
  }
  impl.UpdateGauges();
  return error;
}

IoError SegmentWriter::Seal() {
  Impl& impl = *impl_;
  impl.RetryPending();
  IoError error;
  impl.LeaveIfAdopted();
  if (impl.open != nullptr) error = impl.SealWhole();
  impl.UpdateGauges();
  return error;
}

uint64_t SegmentWriter::unsynced_bytes() const { return impl_->unsynced_bytes.load(); }
uint64_t SegmentWriter::unsynced_since_ms() const { return impl_->unsynced_since_ms.load(); }
bool SegmentWriter::indexes_pending() const { return impl_->indexes_pending.load() != 0; }
uint64_t SegmentWriter::open_bytes() const { return impl_->open_bytes.load(); }

}  // namespace tpu_sync_native
