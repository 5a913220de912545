#include "storage/storage_tier.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "base/futex.h"
#include "storage/live_cells.h"
#include "storage/namespace_root.h"
#include "storage/stats.h"
#include "storage/upkeep.h"

namespace tpu_sync_native {
namespace {

using Clock = std::chrono::steady_clock;

// Threads of the control pool beside those that write: polls, heartbeats, reclaim.
constexpr int kControlThreads = 3;
// A sync on a disk that others keep busy takes its time; meanwhile polls and heartbeats are answered.
constexpr uint64_t kBusyMs = 30'000;
constexpr uint64_t kRecordBytesGuess = 128 << 10;  // for the size of a catalog; chunks are mostly larger
constexpr uint64_t kRecordsMin = 1 << 16, kRecordsMax = 1 << 24, kRecordsUnknown = 1 << 20;
constexpr uint64_t kSegmentsInQuota = 16;  // so many at least, or reclaim has nothing to choose from
constexpr uint64_t kCellsPerStep = 1 << 16;

void Require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

StorageOptions Checked(StorageOptions options) {
  const auto within = [](const char* name, uint64_t value, uint64_t least, uint64_t most) {
    Require(value >= least && value <= most, std::string(name) + " is " + std::to_string(value) +
                                                 ", allowed are " + std::to_string(least) + " to " +
                                                 std::to_string(most));
  };
  constexpr uint64_t kDayMs = 86'400'000;
  within("segment_bytes", options.segment_bytes, 4 * kStorageUnit, kStoredSegmentBytesMax);
  within("io_bytes", options.io_bytes, kStorageUnit, uint64_t{1} << 30);
  within("load_threads", options.load_threads, 1, 256);
  within("store_threads", options.store_threads, 1, 256);
  within("records_max", options.records_max, 0, uint64_t{1} << 31);
  for (const auto& [name, value] : {std::pair{"sync_ms", options.sync_ms},
                                    {"poll_ms", options.poll_ms},
                                    {"heartbeat_ms", options.heartbeat_ms},
                                    {"dead_after_ms", options.dead_after_ms},
                                    {"promote_deadline_ms", options.promote_deadline_ms}}) {
    within(name, value, 1, kDayMs);
  }
  within("open_late_ms", options.open_late_ms, 0, kDayMs);
  Require(options.dead_after_ms > 2 * options.heartbeat_ms,
          "dead_after_ms must be more than two heartbeat_ms, or hosts that live are taken for dead");
  Require(options.free_low >= 0 && options.free_low <= options.free_high && options.free_high < 1,
          "free_low and free_high must be shares, the first not above the second");
  Require(options.copy_forward_share >= 0 && options.copy_forward_share <= 1,
          "copy_forward_share must be between 0 and 1");
  for (const uint64_t quota : {options.quota_bytes, options.namespace_quota_bytes}) {
    if (quota == 0) continue;
    const uint64_t most = std::max(RoundToUnit(quota / kSegmentsInQuota), 4 * kStorageUnit);
    options.segment_bytes = std::min(options.segment_bytes, most);
  }
  if (options.records_max == 0) {
    options.records_max = options.quota_bytes == 0
                              ? kRecordsUnknown
                              : std::clamp(options.quota_bytes / kRecordBytesGuess, kRecordsMin, kRecordsMax);
  }
  return options;
}

std::shared_ptr<IoPool> MakePool(const std::shared_ptr<FileSystem>& files, uint32_t threads,
                                 uint64_t alone_ms) {
  IoPoolOptions options;
  options.alone_ms = alone_ms;
  options.threads = static_cast<int>(threads);
  options.probe = [files] {
    std::string marker;
    return files->ReadAll(std::string(kMarkerName), kStorageUnit, &marker);
  };
  return std::make_shared<IoPool>(options);
}

// Runs `task` on the pool and waits; false when the time was over first, or the pool refused.
bool RunWithin(IoPool& pool, uint64_t wait_ms, std::function<void()> task) {
  struct Done {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto done = std::make_shared<Done>();
  const Submitted answer = pool.Submit(IoClass::kControl, [done, task = std::move(task)] {
    task();
    const std::lock_guard lock(done->mutex);
    done->done = true;
    done->changed.notify_all();
  });
  if (answer != Submitted::kYes) return false;
  std::unique_lock lock(done->mutex);
  return done->changed.wait_for(lock, std::chrono::milliseconds(wait_ms), [&] { return done->done; });
}

}  // namespace

struct StorageTier::Impl {
  Impl(std::shared_ptr<StorageContext> wanted, Store& its_store, std::shared_ptr<Arena> arena)
      : context(std::move(wanted)),
        store(its_store),
        parts(std::make_shared<StorageParts>(context, its_store, std::move(arena))),
        upkeep(parts, its_store) {}

  bool serving() const { return !context->loads->down() && !context->control->down(); }

  const std::shared_ptr<StorageContext> context;
  Store& store;
  const std::shared_ptr<StorageParts> parts;
  Upkeep upkeep;
  std::mutex life;  // Start and Stop
  bool started = false, stopped = false;
};

StorageTier::StorageTier(std::shared_ptr<FileSystem> files, Store& store, std::shared_ptr<Arena> arena,
                         int catalog_fd, const StorageOptions& options) {
  auto context = std::make_shared<StorageContext>();
  context->options = Checked(options);
  context->files = std::move(files);
  context->catalog = std::make_shared<Catalog>(catalog_fd, context->options.records_max, options.boot_id);
  context->segments = std::make_shared<SegmentTable>(context->files);
  context->loads = MakePool(context->files, options.load_threads, 0);
  context->control = MakePool(context->files, options.store_threads + kControlThreads, kBusyMs);
  impl_ = std::make_unique<Impl>(std::move(context), store, std::move(arena));
}

StorageTier::~StorageTier() { Stop(0); }

std::string StorageTier::CheckRoot(uint64_t wait_ms) {
  struct Answer {
    std::string why;
  };
  const auto answer = std::make_shared<Answer>();
  const bool done = RunWithin(*impl_->context->control, wait_ms, [answer, files = impl_->context->files] {
    const IoError error = files->CheckRoot(&answer->why);
    // A disk that is full can be read, and will have room again; one that is mounted read-only is a mistake.
    if (error.ok() || (error.no_space() && error.code != EROFS)) {
      answer->why = CheckMarker(*files);
    } else if (answer->why.empty()) {
      answer->why = "it cannot be used: " + error.text();
    }
  });
  if (done) return answer->why;
  return "the storage root did not answer within " + std::to_string(wait_ms) + " ms";
}

void StorageTier::Start() {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.life);
  if (impl.started || impl.stopped) return;
  impl.started = true;
  impl.parts->demoter.Start([weak = std::weak_ptr(impl.parts)] {
    if (const auto parts = weak.lock()) parts->reclaimer.NoSpace();
  });
  impl.parts->promoter.Start();
  impl.context->catalog->SetServing(impl.serving());
  impl.upkeep.Start();
  impl.store.SetLowerTier(this);
}

bool StorageTier::Stop(uint64_t wait_ms) {
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.life);
  if (impl.stopped) return true;
  impl.stopped = true;
  const auto deadline = Clock::now() + std::chrono::milliseconds(wait_ms);
  const auto left_ms = [&] {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    return static_cast<uint64_t>(std::max<int64_t>(left.count(), 0));
  };
  if (impl.started) impl.store.SetLowerTier(nullptr);
  // A medium that is down gets no time: what it has not taken by now it does not take.
  const bool down = impl.context->control->down();
  // While there is upkeep: a namespace may be about to open.
  if (impl.started && !down) impl.parts->demoter.Flush(left_ms() / 2);
  impl.upkeep.Stop();
  impl.context->catalog->SetServing(false);
  bool all = impl.parts->demoter.Stop(down ? 0 : left_ms() / 4 * 3);
  all &= impl.parts->promoter.Stop(left_ms() / 2);
  all &= !impl.started || RunWithin(*impl.context->control, left_ms() / 2, [parts = impl.parts] {
    for (const auto& ns : parts->context->AllNamespaces()) {
      if (ns->state.load() == StorageNamespace::State::kReady) parts->peers.Leave(*ns);
      IoPool::Progress();
    }
    parts->context->segments->DropFiles();
  });
  all &= impl.context->loads->Stop(left_ms() / 2);
  all &= impl.context->control->Stop(left_ms());
  return all;
}

void StorageTier::OpenNamespace(uint32_t ns, std::string_view id, uint64_t chunk_bytes, std::string meta_json,
                                std::optional<Codec> codec, uint64_t told) {
  Require(id.size() == sizeof(StorageNamespace::id),
          "a namespace id has 16 bytes, not " + std::to_string(id.size()));
  Require(chunk_bytes >= 1 && chunk_bytes <= kStoredChunkBytesMax,
          "chunk_bytes is " + std::to_string(chunk_bytes) + "; storage takes 1 to " +
              std::to_string(kStoredChunkBytesMax));
  auto space = std::make_shared<StorageNamespace>();
  space->ns = ns;
  std::memcpy(space->id, id.data(), id.size());
  space->chunk_bytes = chunk_bytes;
  space->codec = codec.value_or(Codec::kRaw);
  if (!codec) space->trial = std::make_unique<CodecTrial>();
  space->meta_json = std::move(meta_json);
  space->told = told;
  space->opened_ms = SteadyNs() / kNsPerMs;
  const uint64_t withheld = impl_->store.WithheldBelow(ns);
  space->known_epoch = withheld == 0 ? 0 : withheld - 1;
  if ((told & kUnconfirmedClear) != 0) {
    space->clears = 1;
    space->clearing = true;
  }
  const StorageOptions& options = impl_->context->options;
  std::memcpy(space->host_id, options.host_id, sizeof(space->host_id));
  {
    const std::lock_guard lock(impl_->context->mutex);
    if (!impl_->context->namespaces.emplace(ns, space).second) return;
  }
  impl_->upkeep.Add(std::move(space));
  impl_->store.NoteEpochsBelow();
}

void StorageTier::ClearNamespace(uint32_t ns) {
  const std::shared_ptr<StorageNamespace> space = impl_->context->Namespace(ns);
  if (space == nullptr || !space->clearing.load()) return;
  std::vector<uint32_t> old;
  for (const auto& segment : impl_->context->segments->All()) {
    if (segment->ns.load() == ns && segment->identity.epoch <= space->epoch.load())
      old.push_back(segment->id);
  }
  std::sort(old.begin(), old.end());
  uint64_t cursor = 0, removed = 0;
  while (!old.empty()) {
    cursor = impl_->context->catalog->Sweep(old, cursor, kCellsPerStep, &removed);
    if (cursor == 0) break;
  }
  impl_->upkeep.Hurry();
}

std::string StorageTier::ClearUnopened(std::string_view id, uint64_t wait_ms, uint64_t* made) {
  struct Answer {
    std::array<uint8_t, 16> id;
    uint64_t epoch = 0;
    IoError error;
  };
  const auto answer = std::make_shared<Answer>();
  Require(id.size() == answer->id.size(), "a namespace id has 16 bytes, not " + std::to_string(id.size()));
  std::memcpy(answer->id.data(), id.data(), id.size());
  const bool done = RunWithin(*impl_->context->control, wait_ms, [answer, files = impl_->context->files] {
    answer->error = ClearOnRoot(*files, answer->id.data(), &answer->epoch);
  });
  *made = 0;
  if (!done) return "the storage root did not answer within " + std::to_string(wait_ms) + " ms";
  if (answer->error.not_found()) return "";
  if (!answer->error.ok()) return answer->error.text();
  *made = answer->epoch;
  return "";
}

bool StorageTier::Flush(uint64_t wait_ms) { return impl_->parts->demoter.Flush(wait_ms); }

// ---- with the store's mutex held ----

uint32_t StorageTier::Find(uint32_t ns, const KeyBatch& keys, uint32_t first, Location* where) const {
  if (first < keys.count) where[0] = 0;
  const std::shared_ptr<StorageNamespace> space = impl_->context->Namespace(ns);
  if (space == nullptr || !impl_->serving()) return 0;
  if (space->state.load() != StorageNamespace::State::kReady || space->clearing.load()) return 0;
  return LiveCells(*impl_->context, *space).FindRun(keys, first, where);
}

bool StorageTier::Promote(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency) {
  return impl_->serving() && impl_->parts->promoter.Offer(ns, chunks, urgency);
}

void StorageTier::Committed(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots) {
  impl_->parts->demoter.Offer(ns, epoch, slots);
}

void StorageTier::Cleared(uint32_t ns) {
  const std::shared_ptr<StorageNamespace> space = impl_->context->Namespace(ns);
  if (space == nullptr) return;
  {
    const std::lock_guard lock(space->clear_mutex);
    space->clears.fetch_add(1);
    space->clearing.store(true);
  }
  impl_->parts->demoter.Clear(ns);
  impl_->upkeep.Hurry();
}

uint64_t StorageTier::EpochWord(uint32_t ns) const {
  const std::shared_ptr<StorageNamespace> space = impl_->context->Namespace(ns);
  if (space == nullptr) return 0;
  const bool ready = space->state.load() == StorageNamespace::State::kReady;
  const bool clearing = space->clearing.load();  // before the epoch, which ends it
  const uint64_t epoch = ready ? space->epoch.load() + 1 : space->told & ~kUnconfirmedClear;
  return epoch | (clearing ? kUnconfirmedClear : 0);
}

bool StorageTier::Refuses(uint32_t ns) const {
  const std::shared_ptr<StorageNamespace> space = impl_->context->Namespace(ns);
  return space != nullptr && space->state.load() == StorageNamespace::State::kRefused;
}

void StorageTier::Hurry(std::span<const uint32_t> slots) { impl_->parts->promoter.Hurry(slots); }

// ---- for people ----

std::vector<Counter> StorageTier::Stats() const { return StorageStats(*impl_->parts); }

std::string StorageTier::state() const {
  for (const auto& pool : {impl_->context->control, impl_->context->loads}) {
    if (pool->down()) return "down: " + pool->down_reason();
  }
  if (impl_->context->admitting.load()) return "ok";
  const std::string reason = impl_->context->admission_reason();
  if (reason.starts_with("full: ") || reason.empty()) return reason.empty() ? "ok" : reason;
  return (reason.starts_with("no space") ? "full: " : "failing: ") + reason;
}

std::vector<StorageTier::NamespaceState> StorageTier::Namespaces() const {
  struct Seen {
    uint64_t records = 0, own_bytes = 0;
  };
  std::unordered_map<uint32_t, Seen> seen;  // in one walk: there may be very many segments
  for (const auto& segment : impl_->context->segments->All()) {
    if (segment->retired.load()) continue;
    Seen& of = seen[segment->ns.load()];
    const uint64_t records = segment->records.load();
    of.records += records - std::min(records, segment->dead_records.load());
    if (segment->own.load()) of.own_bytes += segment->taken_bytes();
  }
  std::vector<NamespaceState> states;
  for (const auto& ns : impl_->context->AllNamespaces()) {
    const std::string reason = impl_->upkeep.reason(ns->ns);
    const Seen& of = seen[ns->ns];
    NamespaceState state{ns->ns,
                         "ready",
                         of.records,
                         of.own_bytes + impl_->parts->peers.others_bytes_seen(*ns),
                         impl_->parts->peers.hosts_seen(*ns),
                         {.codec = ns->codec}};
    if (ns->trial != nullptr) state.codec = ns->trial->choice();
    switch (ns->state.load()) {
      case StorageNamespace::State::kOpening:
        state.state = reason.empty() ? "opening" : "opening: " + reason;
        break;
      case StorageNamespace::State::kRefused:
        state.state = "refused: " + reason;
        break;
      case StorageNamespace::State::kReady:
        if (ns->clearing.load()) {
          state.state = "clearing";
        } else if (ns->root_epoch.load() > ns->epoch.load()) {
          state.state = "apart: another host cleared it; epoch " + std::to_string(ns->epoch.load()) +
                        " here, " + std::to_string(ns->root_epoch.load()) + " there";
        }
        break;
    }
    states.push_back(std::move(state));
  }
  std::sort(states.begin(), states.end(), [](const auto& a, const auto& b) { return a.ns < b.ns; });
  return states;
}

}  // namespace tpu_sync_native
