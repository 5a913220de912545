#include "storage/peers.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "segment/segment_codec.h"
#include "storage/adoption.h"
#include "storage/epochs.h"
#include "storage/peer_index.h"
#include "storage/peer_view.h"
#include "storage/retire.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kFullLookPolls = 32;  // every so many polls a directory is listed though nothing changed

// One poll of one namespace.
class PollRound {
 public:
  PollRound(StorageContext& context, StorageNamespace& ns, PeerView& view, uint64_t now_ms)
      : context_(context), ns_(ns), view_(view), now_ms_(now_ms), hosts_path_(HostsDirectory(ns.id) + "/") {
    const std::lock_guard lock(ns.host_mutex);
    me_ = ToHostId(ns.host_id);
  }

  IoError Run() {
    uint64_t epoch = 0;
    IoError error = ReadEpoch(*context_.files, ns_.id, &epoch);
    if (error.not_found()) error = {};
    IoPool::Progress();
    if (error.ok()) SawEpoch(ns_, epoch);
    if (const uint64_t own = ns_.epoch.load(); own != view_.epoch) LookAgain(own);
    if (error.ok()) error = ListHosts();
    if (!error.ok()) return error;
    ReadLeases();
    LookAtDirectories();
    DropMissing();
    VerifyOwn();
    Adopt();
    FindRefused(context_, ns_);
    Count();
    return first_error_;
  }

 private:
  void Note(const IoError& error) {
    if (first_error_.ok() && !error.ok()) first_error_ = error;
  }

  // What was of another epoch may be of this one.
  void LookAgain(uint64_t epoch) {
    view_.epoch = epoch;
    for (auto& [name, directory] : view_.directories) {
      std::erase_if(directory.segments, [](const auto& known) { return known.second.id == 0; });
      directory.complete = false;
    }
  }

  IoError ListHosts() {
    std::vector<DirEntry> entries;
    const IoError error = context_.files->List(HostsDirectory(ns_.id), &entries);
    IoPool::Progress();
    if (!error.ok()) return error;
    for (auto& [name, directory] : view_.directories) directory.listed = false;
    for (auto& [id, host] : view_.hosts) host.listed = false;
    uint64_t foreign = 0;
    for (const DirEntry& entry : entries) {
      HostDirectoryName name;
      if (!entry.directory || !ParseHostDirectory(entry.name, &name)) {
        ++foreign;
        continue;
      }
      if (!name.adopted && ToHostId(name.host_id) == me_) continue;
      SeenDirectory& directory = view_.directories[entry.name];
      directory.name = name;
      directory.keeper = ToHostId(name.adopted ? name.adopter_id : name.host_id);
      directory.listed = true;
      SeenHost& keeper = view_.hosts[directory.keeper];
      if (!name.adopted) keeper.listed = true;
    }
    view_.foreign.store(foreign);
    return error;
  }

  // Time counts against a host only while this one was watching: whoever was paused itself knows nothing.
  uint64_t WatchedMs() const {
    if (view_.polled_ms == 0 || now_ms_ <= view_.polled_ms) return 0;
    return std::min(now_ms_ - view_.polled_ms, 2 * context_.options.poll_ms);
  }

  void ReadLeases() {
    const uint64_t watched_ms = WatchedMs();
    view_.polled_ms = now_ms_;
    for (auto& [id, host] : view_.hosts) {
      if (id == me_) continue;
      std::optional<LeaseFile> lease;
      host.read_failed = false;
      if (host.listed) {
        std::string file;
        LeaseFile read{};
        const IoError error = context_.files->ReadAll(
            hosts_path_ + HexId(id.data()) + "/" + std::string(kLeaseName), kStorageUnit, &file);
        IoPool::Progress();
        host.read_failed = !error.ok() && !error.not_found();
        host.lease_gone = error.not_found();
        if (host.read_failed) {
          Note(error);
          continue;
        }
        if (error.ok() && DecodeLease(file, &read).empty() && ToHostId(read.host_id) == id) lease = read;
      }
      const bool moved = lease && (!host.lease || host.lease->counter != lease->counter ||
                                   host.lease->boot_id != lease->boot_id);
      host.still_ms = moved ? 0 : host.still_ms + watched_ms;
      if (lease) host.lease = lease;
      host.dead = host.still_ms >= context_.options.dead_after_ms || (lease && lease->leaving != 0);
    }
  }

  bool Renames() const { return context_.files->traits().renames; }
  // This host may seal and delete there.
  bool Mine(const SeenDirectory& directory) const {
    if (directory.keeper == me_) return true;
    return !Renames() && view_.hosts[directory.keeper].dead;
  }

  void LookAtDirectories() {
    PollBudget budget;
    for (auto& [name, directory] : view_.directories) {
      if (!directory.listed) continue;
      const SeenHost& keeper = view_.hosts[directory.keeper];
      const uint64_t changes = keeper.lease ? keeper.lease->changes : 0;
      const bool due = now_ms_ - directory.looked_ms >= kFullLookPolls * context_.options.poll_ms;
      if (directory.looked_ms == 0) Inherit(name, directory);
      if (!Renames() && !Mine(directory)) TakeAsTheyAre(directory, name, false);  // it was only slow
      const bool changed =
          directory.keeper == me_ ? Reclaimed(directory) : directory.loaded_changes != changes;
      if (directory.complete && !due && !changed) continue;
      if (due) std::erase_if(directory.segments, [](const auto& known) { return known.second.id == 0; });
      const DirectoryLook look{context_, ns_, directory, hosts_path_ + name, Mine(directory), budget};
      Note(LookIntoDirectory(look));
      directory.loaded_changes = changes;
      if (directory.complete) directory.looked_ms = now_ms_;
    }
  }

  // Segments in this directory were removed by the reclaimer; when the last one is, the directory goes.
  bool Reclaimed(const SeenDirectory& directory) const {
    return std::any_of(directory.segments.begin(), directory.segments.end(), [this](const auto& known) {
      return known.second.id != 0 && context_.segments->Get(known.second.id) == nullptr;
    });
  }

  // A new name of a directory that was known under another: its segments move, their cells stay as they are.
  void Inherit(const std::string& name, SeenDirectory& directory) {
    for (auto& [old_name, old] : view_.directories) {
      if (old.listed || ToHostId(old.name.host_id) != ToHostId(directory.name.host_id)) continue;
      for (const auto& [number, segment] : old.segments) {
        if (segment.id != 0) context_.segments->Move(segment.id, hosts_path_ + name, Mine(directory));
      }
      directory.segments.merge(old.segments);
      old.segments.clear();
    }
    // Those of other epochs were nothing to this host; now some are its own to keep, or to delete.
    std::erase_if(directory.segments, [](const auto& known) { return known.second.id == 0; });
  }

  // A listing may be older than the directory, so a name that is missing proves nothing: it is asked for.
  void DropMissing() {
    for (auto it = view_.directories.begin(); it != view_.directories.end();) {
      SeenDirectory& directory = it->second;
      if (directory.listed) {
        ++it;
        continue;
      }
      std::vector<DirEntry> entries;
      const IoError error = context_.files->List(hosts_path_ + it->first, &entries);
      IoPool::Progress();
      if (!error.not_found()) {
        Note(error);
        ++it;
        continue;
      }
      for (const auto& [number, known] : directory.segments) {
        if (const auto segment = context_.segments->Get(known.id)) RetireSegment(context_, *segment);
      }
      it = view_.directories.erase(it);
    }
    std::erase_if(view_.hosts, [this](const auto& seen) {
      return !seen.second.listed &&
             std::none_of(view_.directories.begin(), view_.directories.end(),
                          [&](const auto& d) { return d.second.keeper == seen.first; });
    });
  }

  // Segments in no directory that is looked at: what this host writes itself, and what it wrote under an
  // earlier id. Now and then, in case somebody removed files by hand.
  void VerifyOwn() {
    if (now_ms_ - view_.verified_ms < kFullLookPolls * context_.options.poll_ms) return;
    const bool first = view_.verified_ms == 0;
    view_.verified_ms = now_ms_;
    if (first) return;
    for (const auto& segment : context_.segments->All()) {
      if (segment->ns.load() != ns_.ns || segment->retired.load()) continue;
      const std::string path = context_.segments->Directory(*segment);
      if (!path.starts_with(hosts_path_) || view_.directories.contains(path.substr(hosts_path_.size())))
        continue;
      if (segment->own.load() && !segment->sealed.load()) continue;  // the writer has it open
      std::unique_ptr<ReadFile> file;
      const IoError error =
          context_.files->OpenRead(path + "/" + SegmentName(segment->identity.number), &file);
      IoPool::Progress();
      if (error.not_found()) RetireSegment(context_, *segment);
    }
  }

  void Adopt() {
    if (!view_.own.stands()) return;  // nobody would know whose they are
    std::vector<std::string> dead;
    for (const auto& [name, directory] : view_.directories) {
      if (directory.keeper != me_ && view_.hosts[directory.keeper].dead) dead.push_back(name);
    }
    for (const std::string& name : dead) {
      Renames() ? AdoptOne(name) : TakeAsTheyAre(view_.directories[name], name, true);
    }
  }

  void AdoptOne(const std::string& name) {
    SeenDirectory& seen = view_.directories[name];
    std::string adopted;
    const IoError error = AdoptDirectory(context_, ns_, seen, name, &adopted);
    if (error.not_found()) return;  // another host was first; the next listing tells
    Note(error);
    if (!error.ok()) return;
    if (!seen.name.adopted) view_.hosts[seen.keeper].listed = false;
    SeenDirectory mine = std::move(seen);
    view_.directories.erase(name);
    ParseHostDirectory(adopted, &mine.name);
    mine.keeper = me_;
    mine.complete = false;
    PollBudget budget;
    SeenDirectory& kept = view_.directories[adopted] = std::move(mine);
    Note(LookIntoDirectory({context_, ns_, kept, hosts_path_ + adopted, true, budget}));
    kept.looked_ms = now_ms_;
  }

  // Where nothing can be renamed: whether this host may delete there.
  void TakeAsTheyAre(const SeenDirectory& directory, const std::string& name, bool own) {
    for (const auto& [number, known] : directory.segments) {
      const auto segment = context_.segments->Get(known.id);
      if (segment != nullptr && segment->own.load() != own) {
        context_.segments->Move(known.id, hosts_path_ + name, own);
      }
    }
  }

  void Count() {
    uint64_t bytes = 0;
    uint32_t alive = 0;
    for (const auto& [id, host] : view_.hosts) {
      if (id == me_) continue;
      if (host.listed && !host.dead) ++alive;
      if (host.listed && host.lease && !host.lease_gone && !(host.dead && !Renames()))
        bytes += host.lease->bytes;
    }
    for (const auto& [name, directory] : view_.directories) {
      const SeenHost& keeper = view_.hosts[directory.keeper];
      if (directory.keeper == me_ || (keeper.listed && keeper.lease) || Mine(directory)) continue;
      for (const auto& [number, known] : directory.segments) {
        if (const auto segment = context_.segments->Get(known.id)) bytes += segment->bytes.load();
      }
    }
    view_.others_bytes.store(bytes);
    view_.others_alive.store(alive);
  }

  StorageContext& context_;
  StorageNamespace& ns_;
  PeerView& view_;
  const uint64_t now_ms_;
  const std::string hosts_path_;
  HostId me_{};
  IoError first_error_;
};

}  // namespace

struct Peers::Impl {
  std::shared_ptr<StorageContext> context;
  mutable std::mutex mutex;  // guards `views`
  std::unordered_map<uint32_t, std::shared_ptr<PeerView>> views;
  std::mutex sweep;  // one at a time

  std::shared_ptr<PeerView> View(const StorageNamespace& ns) {
    const std::lock_guard lock(mutex);
    std::shared_ptr<PeerView>& view = views[ns.ns];
    if (view == nullptr) view = std::make_shared<PeerView>();
    return view;
  }
};

Peers::Peers(std::shared_ptr<StorageContext> context) : impl_(std::make_unique<Impl>()) {
  impl_->context = std::move(context);
}

Peers::~Peers() = default;

IoError Peers::Heartbeat(StorageNamespace& ns, uint64_t) {
  const std::shared_ptr<PeerView> view = impl_->View(ns);
  const std::unique_lock beat(view->beat, std::try_to_lock);
  return beat.owns_lock() ? view->own.Beat(*impl_->context, ns, false) : IoError{};
}

void Peers::Leave(StorageNamespace& ns) {
  const std::shared_ptr<PeerView> view = impl_->View(ns);
  const std::unique_lock beat(view->beat, std::try_to_lock);
  if (beat.owns_lock()) view->own.Beat(*impl_->context, ns, true);
}

IoError Peers::Poll(StorageNamespace& ns, uint64_t now_ms) {
  const std::shared_ptr<PeerView> view = impl_->View(ns);
  const std::unique_lock round(view->round, std::try_to_lock);
  if (!round.owns_lock()) return {};
  const IoError error = PollRound(*impl_->context, ns, *view, now_ms).Run();
  const std::unique_lock sweep(impl_->sweep, std::try_to_lock);
  if (sweep.owns_lock()) SweepRetired(*impl_->context);
  return error;
}

uint64_t Peers::others_bytes_seen(const StorageNamespace& ns) const {
  return impl_->View(ns)->others_bytes.load();
}

uint64_t Peers::bytes_seen(const StorageNamespace& ns) const {
  uint64_t bytes = others_bytes_seen(ns);
  for (const auto& segment : impl_->context->segments->All()) {
    if (segment->ns.load() == ns.ns && segment->own.load() && !segment->retired.load()) {
      bytes += segment->taken_bytes();
    }
  }
  return bytes;
}

uint32_t Peers::hosts_seen(const StorageNamespace& ns) const {
  return 1 + impl_->View(ns)->others_alive.load();
}

}  // namespace tpu_sync_native
