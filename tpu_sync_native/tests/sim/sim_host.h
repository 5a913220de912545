// A host of a simulation: its arena, the daemon that has it now, if any, and its engines.
#pragma once

#include <memory>
#include <set>
#include <utility>

#include "sim/engines.h"

namespace tpu_sync_native::testing {

// What all hosts share: the medium, and what is known of it.
struct SimWorld {
  explicit SimWorld(Schedule& wanted) : run(wanted), shape(DrawShape(wanted)) {}

  // The highest epoch of a space on the root.
  uint64_t HighestEpoch(uint32_t space) const {
    const std::string directory = NamespaceDirectory(reinterpret_cast<const uint8_t*>(kSpaces[space].id));
    uint64_t highest = 0, number = 0;
    for (const std::string& path : medium->FileNames()) {
      if (ParentOf(path) == directory && ParseEpochName(NameOf(path), &number))
        highest = std::max(highest, number);
    }
    return highest;
  }

  // What the weights of new engines are is known: a host was seen that has the highest epoch.
  bool KnowsNewest() const {
    for (uint32_t space = 0; space < kSpaceCount; ++space) {
      if (!weights_of[space].contains(HighestEpoch(space))) return false;
    }
    return true;
  }

  Schedule& run;
  const SimShape shape;
  const std::shared_ptr<MemoryFiles> medium = std::make_shared<MemoryFiles>();
  uint64_t weights_made = 0;
  std::map<uint64_t, uint64_t> weights_of[kSpaceCount] = {{{0, 0}}, {{0, 0}}};  // by epoch, as far as seen
  uint64_t boots = 0;
  std::map<std::string, uint64_t, std::less<>> happened;  // counters of all lives that are over
};

class SimHost {
 public:
  explicit SimHost(SimWorld& world) : world_(world), run_(world.run), engines(run_, world.shape.lease_ms) {
    for (uint8_t& byte : host_id_) byte = static_cast<uint8_t>(run_.Draw(256));
  }

  Life* life() { return life_.get(); }

  // An arena of its own, or that of before; engines that have outlived the daemon, or new ones. New engines
  // have the newest weights there are: nobody may be about to clear.
  void Start(bool keep, bool engines_live) {
    CHECK(life_ == nullptr);
    if (!keep) {
      NewArena();
      engines.Forget();
    }
    life_ = std::make_unique<Life>(run_, world_.shape, world_.medium, weather, *data_file_,
                                   std::move(meta_file_), host_id_, ++world_.boots, keep);
    run_.Say("%p: starts, keep %d, engines live %d", static_cast<void*>(life_.get()), keep, engines_live);
    if (world_.boots == 1) CHECK(life_->tier->CheckRoot(60'000).empty());
    life_->tier->Start();
    if (!engines_live) {
      engines.Die(nullptr);
      for (const RestoredSession& session : life_->store->RestoredSessions())
        life_->store->CloseSession(session.session, true);
    }
    bool joins = false;
    for (uint32_t space = 0; space < kSpaceCount; ++space) joins |= OpenSpace(space, keep, engines_live);
    engines.Attach(*life_);
    if (joins) Join();
  }

  // SIGKILL: what it has written into shared memory stays.
  void Kill() {
    Remember();
    auto left = std::make_unique<MemFile>("meta");
    CopyFile(life_->meta_file->fd(), left->fd());
    life_->door->Shut();
    run_.Say("%p: is killed", static_cast<void*>(life_.get()));
    engines.Orphan();
    Drop();
    meta_file_ = std::move(left);
  }
  // In order, as far as the medium lets it.
  void Stop() {
    Remember();
    life_->store->SetDraining(true);
    life_->tier->Stop(5000);
    Kill();
  }

  void Clear(uint32_t space) {
    engines.weights[space] = ++world_.weights_made;
    run_.Say("%p: clears %u, weights %llu", static_cast<void*>(life_.get()), space,
             static_cast<unsigned long long>(engines.weights[space]));
    life_->store->ClearNamespace(space);
    run_.Point();
    life_->tier->ClearNamespace(space);
  }

  void Housekeep() {
    life_->store->ExpireLeases(run_.now_ns() / kNsPerMs);
    life_->store->ReclaimStale(run_.Draw(30));
  }

  // The store is sound, and hosts of one epoch have the same weights.
  void Check() {
    life_->CheckSound();
    for (uint32_t space = 0; space < kSpaceCount; ++space) {
      const uint64_t word = life_->tier->EpochWord(space);
      if (Ready(space) && (word & kUnconfirmedClear) == 0) {
        const auto [known, fresh] = world_.weights_of[space].emplace(word - 1, engines.weights[space]);
        CHECK(known->second == engines.weights[space]);
      }
    }
  }
  // No new epoch is about to come of it.
  bool Settled() const { return life_ == nullptr || (Ready(0) && Ready(1)); }

  // Whether engines that live have something to tell the next daemon of each space.
  bool Remembers() const {
    return std::all_of(remembered_, remembered_ + kSpaceCount, [](uint64_t word) { return word != 0; });
  }

  // After everything has calmed down: nothing is held, and what is stored comes back from storage.
  void Finish(uint64_t number) {
    CHECK(run_.Await(900 * kNsPerS, kNsPerS, [&] { return Settled(); }));
    engines.Finish(*life_);
    run_.Sleep(2 * kNsPerS);
    run_.Jump(700 * kNsPerS);
    run_.Sleep(2 * kNsPerS);
    Housekeep();
    run_.Sleep(kNsPerS);
    Check();
    for (const char* name : {"pinned_slots", "reserved_slots", "promoting_slots", "quarantined_slots",
                             "read_leases", "write_leases", "sessions"}) {
      if (life_->Stat(name) != 0) Fail(__FILE__, __LINE__, "is held at the end:", name);
    }
    engines.Attach(*life_);
    for (uint32_t space = 0; space < kSpaceCount; ++space) {
      CHECK(run_.Await(1800 * kNsPerS, kNsPerS, [&] {
        ++number;
        if (!engines.Put(*life_, space, number) || !life_->tier->Flush(10'000)) return false;
        life_->store->Evict(space, UINT64_MAX);
        return engines.Get(*life_, space, number);
      }));
    }
    engines.Die(life_.get());
    life_->CheckSound();
  }
  void Drop() {
    for (const auto& counters : {life_->store->Stats(), life_->tier->Stats()}) {
      for (const Counter& counter : counters) world_.happened[std::string(counter.name)] += counter.value;
    }
    const RestartReport report = life_->store->restart_report();
    world_.happened["kept"] += report.kept;
    world_.happened["restored in quarantine"] += report.quarantined;
    world_.happened["late reads"] += report.late;
    life_.reset();
  }

  Weather weather;

 private:
  bool Ready(uint32_t space) const {
    const std::string state = life_->StateOf(space);
    return state == "ready" || state.starts_with("apart: ");
  }

  void NewArena() {
    data_file_ = std::make_unique<MemFile>("data");
    meta_file_ = std::make_unique<MemFile>("meta");
    for (uint8_t& byte : host_id_) byte = static_cast<uint8_t>(run_.Draw(256));
  }

  // As a client does when its daemon is gone, see kvtier/client/namespace.py.
  void Remember() {
    for (uint32_t space = 0; space < kSpaceCount; ++space) {
      const uint64_t word = life_->store->EpochBelow(space), known = word & ~kUnconfirmedClear;
      uint64_t& mine = remembered_[space];
      const uint64_t unconfirmed = (known != 0 ? word : word | mine) & kUnconfirmedClear;
      mine = (known != 0 ? known : mine & ~kUnconfirmedClear) | unconfirmed;
    }
  }

  // As the daemon does, see kvtier/daemon/namespaces.py. True: its engines are of whatever epoch is highest.
  bool OpenSpace(uint32_t space, bool outlived, bool engines_live) {
    Store& store = *life_->store;
    CHECK(store.OpenNamespace(kSpaces[space].id, kSpaces[space].chunk_bytes) == space);
    const uint64_t in_arena = outlived ? store.EpochBelow(space) : 0;
    if (!engines_live) remembered_[space] = 0;
    const uint64_t remembered = remembered_[space];
    uint64_t told = 0;
    bool joins = false;
    if (remembered != 0 && (!outlived || in_arena != 0)) {
      told = in_arena != 0 ? in_arena : remembered;
    } else if (remembered != 0 || (in_arena & kUnconfirmedClear) != 0) {
      if (!engines_live) engines.weights[space] = ++world_.weights_made;
      store.ClearNamespace(space);
      told = kUnconfirmedClear;
    } else {
      if (outlived) store.WithholdNamespace(space);
      engines.weights[space] = world_.weights_of[space].at(world_.HighestEpoch(space));
      joins = true;
    }
    life_->tier->OpenNamespace(space, kSpaces[space].id, kSpaces[space].chunk_bytes, "{}", Codec::kRaw, told);
    return joins;
  }
  void Join() {
    const Weather before = std::exchange(weather, {});
    CHECK(run_.Await(900 * kNsPerS, 100 * kNsPerMs, [&] { return Settled(); }));
    for (uint32_t space = 0; space < kSpaceCount; ++space) CHECK(life_->store->AwaitSettled(space, 10'000));
    weather = before;
  }

  SimWorld& world_;
  Schedule& run_;
  uint8_t host_id_[16];
  uint64_t remembered_[kSpaceCount] = {};
  std::unique_ptr<MemFile> data_file_, meta_file_;
  std::unique_ptr<Life> life_;

 public:
  Engines engines;
};

}  // namespace tpu_sync_native::testing
