#include "store/store.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "store/store_impl.h"

namespace tpu_sync_native {
namespace {

StoreOptions WithDefaults(uint64_t data_bytes, uint64_t slab_bytes, StoreOptions options) {
  const auto slabs = static_cast<uint32_t>(data_bytes / slab_bytes);
  if (options.slots_max == 0) options.slots_max = std::max(DefaultSlotsMax(data_bytes), slabs);
  if (options.slots_max < slabs || options.slots_max == kNoSlot) {
    throw std::invalid_argument("slots_max must be at least the number of slabs, " + std::to_string(slabs) +
                                ", not " + std::to_string(options.slots_max));
  }
  if (options.namespaces_max == 0) throw std::invalid_argument("namespaces_max must not be 0");
  if (options.lease_ms == 0) throw std::invalid_argument("lease_ms must not be 0");
  if (data_bytes / kPayloadUnit > UINT32_MAX) {
    throw std::invalid_argument("dram_bytes must be at most 16 TiB");
  }
  return options;
}

MetaGeometry GeometryOf(uint64_t data_bytes, uint64_t slab_bytes, const StoreOptions& options) {
  return {data_bytes, slab_bytes, options.slots_max, options.namespaces_max,
          DefaultBucketCount(options.slots_max)};
}

const std::shared_ptr<Arena>& NotNull(const std::shared_ptr<Arena>& arena) {
  if (arena == nullptr) throw std::invalid_argument("the store needs an arena");
  return arena;
}

}  // namespace

uint64_t SteadyMs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

Store::Impl::Impl(std::shared_ptr<Arena> arena_in, int meta_fd, const StoreOptions& options_in)
    : arena(NotNull(arena_in)),
      options(WithDefaults(arena->bytes(), arena->slab_bytes(), options_in)),
      index(meta_fd, GeometryOf(arena->bytes(), arena->slab_bytes(), options),
            {options.boot_id, options.host, options.keep, options.checksum != ChecksumPolicy::kOff}),
      reader(index.view()),
      slots(options.slots_max, arena->slab_count(), arena->slab_bytes()),
      make_policy(FindPolicy(options.policy, slots.cells(), options.slots_max)),
      records_committed(arena->slab_count()),
      key_tails_committed(arena->slab_count()) {
  session_rows.max = index.view().sessions_max();
  lease_rows.max = index.view().leases_max();
  if (options.keep) Restore();
}

Store::Store(std::shared_ptr<Arena> arena, int meta_fd, const StoreOptions& options)
    : impl_(std::make_unique<Impl>(std::move(arena), meta_fd, options)) {}

Store::~Store() = default;

std::string Store::WhyNotKept(int data_fd, uint64_t data_bytes, uint64_t slab_bytes, int meta_fd,
                              const StoreOptions& options) {
  const uint64_t found_bytes = FileBytes(data_fd, "the arena");
  if (found_bytes != data_bytes) {
    return "the arena's size is " + std::to_string(found_bytes) + ", wanted " + std::to_string(data_bytes);
  }
  const StoreOptions whole = WithDefaults(data_bytes, slab_bytes, options);
  return tpu_sync_native::WhyNotKept(meta_fd, GeometryOf(data_bytes, slab_bytes, whole), options.host);
}

RestartReport Store::restart_report() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->restart;
}

std::vector<RestoredSession> Store::RestoredSessions() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->RestoredSessions();
}

SessionId Store::last_session() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->last_session;
}

uint32_t Store::OpenNamespace(std::string_view id, uint64_t chunk_bytes) {
  std::lock_guard lock(impl_->mutex);
  return impl_->OpenNamespace(id, chunk_bytes);
}

uint64_t Store::ClearNamespace(uint32_t ns) {
  std::lock_guard lock(impl_->mutex);
  return impl_->ClearNamespace(ns);
}

void Store::SetFloor(uint32_t ns, uint64_t bytes) {
  std::lock_guard lock(impl_->mutex);
  impl_->SetFloor(ns, bytes);
}

uint64_t Store::EpochBelow(uint32_t ns) const {
  std::lock_guard lock(impl_->mutex);
  return ns < impl_->namespaces.size() ? impl_->EpochBelow(ns) : 0;
}

void Store::NoteEpochsBelow() {
  std::lock_guard lock(impl_->mutex);
  impl_->NoteEpochsBelow();
}

void Store::SetEpochBelow(uint32_t ns, uint64_t word) {
  std::lock_guard lock(impl_->mutex);
  if (ns < impl_->namespaces.size()) impl_->index.SetEpochBelow(ns, word);
}

void Store::WithholdNamespace(uint32_t ns) {
  std::lock_guard lock(impl_->mutex);
  impl_->WithholdNamespace(ns);
}

bool Store::AwaitSettled(uint32_t ns, uint64_t wait_ms) {
  std::unique_lock lock(impl_->mutex);
  if (ns >= impl_->namespaces.size()) return true;
  return impl_->settled.wait_for(lock, std::chrono::milliseconds(wait_ms),
                                 [&] { return !impl_->namespaces[ns].withheld; });
}

uint64_t Store::WithheldBelow(uint32_t ns) const {
  std::lock_guard lock(impl_->mutex);
  const auto& spaces = impl_->namespaces;
  return ns < spaces.size() && spaces[ns].withheld ? spaces[ns].withheld->epoch_below : 0;
}

void Store::OpenSession(SessionId session, GroupId group, uint32_t pid, const ProcessMark& mark) {
  std::lock_guard lock(impl_->mutex);
  impl_->OpenSession(session, group, pid, mark);
}

bool Store::CloseSession(SessionId session, bool drained, const std::vector<LeaseId>* held) {
  std::lock_guard lock(impl_->mutex);
  return impl_->CloseSession(session, drained, held);
}

bool Store::Succeed(SessionId former, SessionId heir) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->Succeed(former, heir);
}

TierHits Store::LookupTiers(uint32_t ns, const KeyBatch& keys) const {
  const uint32_t host = impl_->reader.LongestPrefix(ns, keys);  // lock-free, like an engine's
  if (host == keys.count || impl_->lower == nullptr) return {host, host};
  std::lock_guard lock(impl_->mutex);
  const TierHits more = impl_->LookupTiers(ns, keys, host);
  return {host + more.chunks, host + more.host_chunks};
}

ReadGrant Store::Lease(SessionId session, uint32_t ns, const KeyBatch& keys) {
  std::lock_guard lock(impl_->mutex);
  return impl_->Lease(session, ns, keys);
}

Outcome Store::Release(SessionId session, LeaseId lease) {
  std::lock_guard lock(impl_->mutex);
  return impl_->Release(session, lease);
}

WriteGrant Store::Reserve(SessionId session, uint32_t ns, const KeyBatch& keys) {
  std::lock_guard lock(impl_->mutex);
  return impl_->Reserve(session, ns, keys);
}

Outcome Store::Commit(SessionId session, LeaseId lease, std::span<const uint8_t> keep) {
  std::lock_guard lock(impl_->mutex);
  const Outcome outcome = impl_->Commit(session, lease, keep);
  impl_->RingForChecks(Checks::kMany);
  return outcome;
}

Outcome Store::Abort(SessionId session, LeaseId lease) {
  std::lock_guard lock(impl_->mutex);
  return impl_->Abort(session, lease);
}

Outcome Store::Touch(SessionId session, uint32_t ns, const KeyBatch& keys) {
  std::lock_guard lock(impl_->mutex);
  return impl_->Touch(session, ns, keys, Impl::Why::kUsed);
}

Outcome Store::Renew(SessionId session, uint32_t ns, const KeyBatch& keys) {
  std::lock_guard lock(impl_->mutex);
  return impl_->Touch(session, ns, keys, Impl::Why::kRenewed);
}

void Store::SetLowerTier(LowerTier* lower) {
  std::lock_guard lock(impl_->mutex);
  impl_->lower = lower;
}

uint32_t Store::Prefetch(uint32_t ns, const KeyBatch& keys) {
  std::lock_guard lock(impl_->mutex);
  return impl_->Prefetch(ns, keys);
}

void Store::EndPromotes(std::span<const SlotRef> refs, PromoteEnd end) {
  // In pieces, so that engines get a turn at the mutex in between.
  constexpr size_t kRefsAtOnce = 512;
  while (!refs.empty()) {
    const auto piece = refs.first(std::min(refs.size(), kRefsAtOnce));
    refs = refs.subspan(piece.size());
    {
      std::lock_guard lock(impl_->mutex);
      impl_->EndPromotes(piece, end);
      impl_->RingForChecks(Checks::kMany);
    }
    impl_->index.WakePromoteWaiters();
  }
}

std::vector<DemoteChunk> Store::PinForDemote(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots) {
  std::lock_guard lock(impl_->mutex);
  return impl_->PinForDemote(ns, epoch, slots);
}

void Store::EndDemote(std::span<const DemoteChunk> chunks) {
  std::lock_guard lock(impl_->mutex);
  impl_->EndDemote(chunks);
}

bool Store::TakeChecks(std::vector<ChunkCheck>* checks) {
  std::lock_guard lock(impl_->mutex);
  return impl_->TakeChecks(checks);
}

void Store::EndChecks(std::span<const ChunkCheck> checks) {
  std::lock_guard lock(impl_->mutex);
  impl_->EndChecks(checks);
}

CheckBell& Store::check_bell() { return impl_->checks.bell; }

ChecksumPolicy Store::checksum_policy() const { return impl_->options.checksum; }

std::vector<DamagedChunk> Store::TakeDamaged() {
  std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->checks.damaged, {});
}

void Store::ExpireLeases(uint64_t now_ms) {
  std::lock_guard lock(impl_->mutex);
  impl_->ExpireLeases(now_ms);
  impl_->RingForChecks(0);
}

uint64_t Store::ReclaimStale(uint64_t slots_max) {
  std::lock_guard lock(impl_->mutex);
  return impl_->ReclaimStale(slots_max);
}

void Store::SetDraining(bool draining) {
  std::lock_guard lock(impl_->mutex);
  impl_->draining = draining;
}

bool Store::MakeRoom() {
  std::lock_guard lock(impl_->mutex);
  return impl_->MakeRoom();
}

bool Store::RoomWanted() const { return impl_->room_wanted.load(std::memory_order_relaxed); }

uint64_t Store::Evict(uint32_t ns, uint64_t bytes) {
  // In pieces, so that engines get a turn at the mutex in between.
  constexpr uint32_t kChunksAtOnce = 1024;
  uint64_t freed = 0;
  while (freed < bytes) {
    std::lock_guard lock(impl_->mutex);
    const uint64_t more = impl_->EvictNamespace(ns, bytes - freed, kChunksAtOnce);
    if (more == 0) break;
    freed += more;
  }
  return freed;
}

std::vector<Counter> Store::Stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->Stats();
}

std::vector<Store::NamespaceStats> Store::Namespaces() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->Namespaces();
}

std::vector<Store::SessionStats> Store::Sessions() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->Sessions();
}

std::vector<Store::ChunkInfo> Store::ListChunks(uint32_t ns, uint32_t after, uint32_t limit) const {
  std::lock_guard lock(impl_->mutex);
  return impl_->ListChunks(ns, after, limit);
}

std::vector<std::string> Store::Audit() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->Audit();
}

}  // namespace tpu_sync_native
