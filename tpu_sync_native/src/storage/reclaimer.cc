#include "storage/reclaimer.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "segment/names.h"
#include "storage/copy_forward.h"
#include "storage/retire.h"
#include "storage/strangers.h"
#include "storage/usage.h"

namespace tpu_sync_native {
namespace {

constexpr uint32_t kPauseRoundsMax = 16;
constexpr size_t kSparedMax = 16;  // segments whose indexes are read in vain when space is wanted
constexpr char kLowSpace[] = "full: the file system has less free space than it must keep";
constexpr char kNoSpace[] = "no space: the last write found none";

// A segment whose files could not be removed yet: it takes space, and is tried again.
struct Leftover {
  uint32_t ns;
  std::string directory;
  uint64_t number;
  uint64_t bytes;
};

}  // namespace

struct Reclaimer::Impl {
  Impl(std::shared_ptr<StorageContext> wanted, Peers& its_peers, Demoter& its_demoter)
      : context(std::move(wanted)), peers(its_peers), demoter(its_demoter) {}

  const std::shared_ptr<StorageContext> context;
  Peers& peers;
  Demoter& demoter;

  std::mutex round;  // one at a time; guards what follows
  Strangers strangers;
  std::vector<Leftover> leftovers;
  std::map<uint32_t, uint32_t> rounds_over;  // by namespace; kNoNamespace: the root
  // What other hosts have, seen in this round and those before. A directory that changes hands is twice or
  // not at all in what leases say, for a moment: what is freed goes by the less, what may be written by the
  // most of some rounds.
  std::map<uint32_t, std::deque<uint64_t>> others_bytes;
  uint64_t wanted_bytes_last = 0;  // written and refused, ever
  uint64_t wanted_per_round = 0;   // lately
  // A write failed; admission waits, is tried again, and the pause doubles if that fails too.
  enum class Writes : uint8_t { kGood, kWaiting, kTried };
  Writes writes = Writes::kGood;
  uint32_t pause_rounds = 1;
  uint32_t waited_rounds = 0;

  std::vector<std::shared_ptr<StorageNamespace>> OpenNamespaces() const {
    std::vector<std::shared_ptr<StorageNamespace>> open;
    const std::lock_guard lock(context->mutex);
    for (const auto& [index, ns] : context->namespaces) {
      if (ns->state.load() == StorageNamespace::State::kReady) open.push_back(ns);
    }
    return open;
  }

  // This host's sealed segments, the oldest first; kNoNamespace: of all.
  std::vector<std::shared_ptr<Segment>> Sealed(uint32_t ns) const {
    std::vector<std::shared_ptr<Segment>> sealed;
    for (const auto& segment : context->segments->All()) {
      if (!segment->own.load() || !segment->sealed.load() || segment->retired.load()) continue;
      if (segment->age_from_s.load() == 0) segment->age_from_s.store(SteadySeconds());
      if (ns == kNoNamespace || segment->ns.load() == ns) sealed.push_back(segment);
    }
    std::sort(sealed.begin(), sealed.end(), [](const auto& a, const auto& b) {
      const uint32_t age_a = a->age_from_s.load(), age_b = b->age_from_s.load();
      return age_a != age_b ? age_a < age_b : a->identity.number < b->identity.number;
    });
    return sealed;
  }

  uint64_t OwnBytes(uint32_t ns) const {
    uint64_t bytes = 0;
    for (const auto& segment : context->segments->All()) {
      if (segment->own.load() && !segment->retired.load() && segment->ns.load() == ns)
        bytes += segment->taken_bytes();
    }
    return bytes + LeftoverBytes(ns);
  }
  uint64_t AppendBytes() const {  // of the largest append
    return std::min(context->options.io_bytes, context->options.segment_bytes);
  }
  uint64_t LeftoverBytes(uint32_t ns) const {
    uint64_t bytes = 0;
    for (const Leftover& leftover : leftovers) bytes += leftover.ns == ns ? leftover.bytes : 0;
    return bytes;
  }

  void Removed(uint32_t ns_index, uint64_t bytes) {
    context->counters.deleted_segments.fetch_add(1);
    context->counters.deleted_bytes.fetch_add(bytes);
    if (const auto ns = context->Namespace(ns_index)) ns->changes.fetch_add(1);
  }

  IoError RetryLeftovers() {
    IoError error;
    for (auto it = leftovers.begin(); it != leftovers.end();) {
      error = RemoveSegmentFiles(*context, it->directory, it->number);
      if (!error.ok()) return error;
      Removed(it->ns, it->bytes);
      it = leftovers.erase(it);
    }
    return error;
  }

  // Its index first: on a medium that cannot be written nothing is lost by trying.
  IoError Delete(const std::shared_ptr<Segment>& segment) {
    const std::string index =
        context->segments->Directory(*segment) + "/" + IndexName(segment->identity.number);
    const IoError writable = context->files->Remove(index);
    IoPool::Progress();
    if (!writable.ok() && !writable.not_found()) return writable;
    const Leftover files{segment->ns.load(), context->segments->Directory(*segment), segment->identity.number,
                         segment->bytes.load()};
    RetireSegment(*context, *segment);
    const IoError error = RemoveSegmentFiles(*context, files.directory, files.number);
    if (error.ok()) {
      Removed(files.ns, files.bytes);
    } else {
      leftovers.push_back(files);
    }
    return error;
  }

  IoError DeleteOutdated() {
    for (const auto& segment : Sealed(kNoNamespace)) {
      if (!Outdated(*context, *segment)) continue;
      const IoError error = Delete(segment);
      if (!error.ok()) return error;
    }
    return {};
  }

  IoError Free(uint32_t ns, uint64_t bytes) {
    IoError error;
    if (ns == kNoNamespace && bytes > 0) {
      const uint64_t freed = strangers.Free(*context, bytes, &error);
      bytes -= std::min(bytes, freed);
    }
    if (bytes == 0 || !error.ok()) return error;
    const auto sealed = Sealed(ns);
    std::deque<std::shared_ptr<Segment>> next(sealed.begin(), sealed.end());
    // Hot is what was read since the younger half of the segments was written.
    const uint32_t hot_from_s = sealed.empty() ? 0 : sealed[sealed.size() / 2]->age_from_s.load();
    size_t may_spare = std::min(sealed.size() / 2, kSparedMax);
    for (; !next.empty() && bytes > 0; next.pop_front()) {
      const std::shared_ptr<Segment>& segment = next.front();
      const uint64_t size = segment->bytes.load();
      uint64_t copied = 0;
      if (context->admitting.load()) {
        bool too_hot = false;
        copied = CopyForward(*context, demoter, *segment, hot_from_s, may_spare > 0 ? &too_hot : nullptr);
        if (too_hot) {
          --may_spare;
          segment->age_from_s.store(SteadySeconds());
          next.push_back(segment);
          continue;
        }
      }
      error = Delete(segment);
      if (!error.ok()) return error;
      bytes -= std::min(bytes, size - std::min(size, copied));
    }
    // What is left is open: idle namespaces, which would keep theirs for ever. The next round deletes some.
    if (bytes > 0) demoter.SealOpen(ns);
    return error;
  }

  Usage RootUsage(const std::vector<std::shared_ptr<StorageNamespace>>& open) const {
    Usage root{.quota_bytes = context->options.quota_bytes, .total_bytes = strangers.bytes(*context)};
    for (const auto& ns : open) {
      root.total_bytes += peers.bytes_seen(*ns) + LeftoverBytes(ns->ns);
      root.own_bytes += OwnBytes(ns->ns);
      root.hosts = std::max(root.hosts, peers.hosts_seen(*ns));
    }
    return root;
  }
  Usage NamespaceUsage(const StorageNamespace& ns) const {
    return {.quota_bytes = context->options.namespace_quota_bytes,
            .total_bytes = peers.bytes_seen(ns) + LeftoverBytes(ns.ns),
            .own_bytes = OwnBytes(ns.ns),
            .hosts = peers.hosts_seen(ns)};
  }

  // Frees what one quota asks for.
  IoError Keep(uint32_t ns, Usage usage, uint64_t wanted) {
    std::deque<uint64_t>& seen = others_bytes[ns];
    seen.push_front(usage.total_bytes - std::min(usage.own_bytes, usage.total_bytes));
    if (seen.size() > kUnseenRounds) seen.pop_back();
    usage.total_bytes = usage.own_bytes + (seen.size() > 1 ? std::min(seen[0], seen[1]) : seen[0]);
    const uint64_t spare = SpareBytes(usage, wanted, AppendBytes());
    if (ns == kNoNamespace && usage.quota_bytes != 0 && usage.total_bytes + spare > usage.quota_bytes) {
      IoError error;
      const uint64_t freed = strangers.Free(*context, usage.total_bytes + spare - usage.quota_bytes, &error);
      if (!error.ok()) return error;
      usage.total_bytes -= std::min(freed, usage.total_bytes);
    }
    const bool over = usage.quota_bytes != 0 && usage.total_bytes + spare > usage.quota_bytes;
    uint32_t& rounds = rounds_over[ns];
    rounds = over ? rounds + 1 : 0;
    const uint64_t bytes = BytesToFree(usage, spare, rounds);
    return bytes == 0 ? IoError{} : Free(ns, bytes);
  }

  // What this host may append.
  int64_t Room(uint32_t ns, Usage usage) {
    const std::deque<uint64_t>& seen = others_bytes[ns];
    usage.total_bytes = usage.own_bytes + *std::max_element(seen.begin(), seen.end());
    return RoomBytes(usage);
  }

  IoError KeepSpace(uint32_t hosts, bool* low) {
    SpaceInfo space;
    IoError error = context->files->Space(&space);
    IoPool::Progress();
    *low = false;
    if (!error.ok() || space.total_bytes == 0) return error;
    const double total = static_cast<double>(space.total_bytes), free = static_cast<double>(space.free_bytes);
    const bool was_low = context->admission_reason() == kLowSpace;
    *low = free < total * (was_low ? context->options.free_high : context->options.free_low);
    if (!*low) return error;
    // Every host sees the same lack: each makes its part of it good.
    return Free(kNoNamespace, static_cast<uint64_t>(total * context->options.free_high - free) / hosts + 1);
  }

  // Whoever met a write that failed has closed admission. For lack of space (whatever the file system says is
  // free: one target of several may be full, or a user's quota) the coldest segment goes.
  IoError AfterFailedWrite(bool* may_open) {
    const std::string reason = context->admission_reason();
    const bool closed = !context->admitting.load() && reason != kLowSpace;
    *may_open = true;
    if (writes == Writes::kWaiting) {
      *may_open = ++waited_rounds >= pause_rounds;
      if (*may_open) writes = Writes::kTried;
      return {};
    }
    if (!closed) {
      writes = Writes::kGood;
      return {};
    }
    pause_rounds = writes == Writes::kTried ? std::min(pause_rounds * 2, kPauseRoundsMax) : 1;
    waited_rounds = 0;
    writes = Writes::kWaiting;
    *may_open = false;
    return reason.starts_with("no space") ? Free(kNoNamespace, 1) : IoError{};
  }
};

Reclaimer::Reclaimer(std::shared_ptr<StorageContext> context, Peers& peers, Demoter& demoter)
    : impl_(std::make_unique<Impl>(std::move(context), peers, demoter)) {}

Reclaimer::~Reclaimer() = default;

void Reclaimer::NoSpace() { impl_->context->CloseAdmission(kNoSpace); }

IoError Reclaimer::Round(uint64_t now_ms) {
  Impl& impl = *impl_;
  const std::unique_lock round(impl.round, std::try_to_lock);
  if (!round.owns_lock()) return {};
  StorageContext& context = *impl.context;
  IoError first;
  const auto note = [&first](const IoError& error) {
    if (first.ok()) first = error;
  };
  // What was refused counts as if it had been written, or there would never be more room than there is.
  const uint64_t wanted_bytes = context.counters.demoted_bytes.load() + context.refused_bytes.load();
  const uint64_t wanted = std::max(wanted_bytes - impl.wanted_bytes_last, impl.wanted_per_round / 8 * 7);
  impl.wanted_bytes_last = wanted_bytes;
  impl.wanted_per_round = wanted;

  note(impl.RetryLeftovers());
  note(impl.DeleteOutdated());
  if (context.options.quota_bytes != 0) note(impl.strangers.Look(context, now_ms));
  const auto open = impl.OpenNamespaces();
  for (const auto& ns : open) note(impl.Keep(ns->ns, impl.NamespaceUsage(*ns), wanted));
  note(impl.Keep(kNoNamespace, impl.RootUsage(open), wanted));
  bool low = false, may_open = true;
  note(impl.KeepSpace(impl.RootUsage(open).hosts, &low));
  note(impl.AfterFailedWrite(&may_open));

  for (const auto& ns : open) ns->room_bytes.store(impl.Room(ns->ns, impl.NamespaceUsage(*ns)));
  context.room_bytes.store(impl.Room(kNoNamespace, impl.RootUsage(open)));
  if (low) {
    context.CloseAdmission(kLowSpace);
  } else if (may_open) {
    context.OpenAdmission();
  }
  return first;
}

}  // namespace tpu_sync_native
