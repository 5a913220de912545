// Forced orders of the shared memory that engines and daemon have in common: clients and the ring's server,
// and readers of the index beside its writer. In the build for ThreadSanitizer a thread may be preempted
// before every atomic operation. Time stands still while anybody has something to do, so a wake-up that is
// lost is a call that takes a millisecond.

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "ring_fixture.h"
#include "sim/schedule.h"
#include "sim/wraps.h"

namespace tpu_sync_native::testing {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 60;
#else
constexpr uint64_t kSeeds = 30;
#endif
constexpr uint64_t kLateNs = kNsPerMs;
constexpr uint32_t kSlots = 8;

uint64_t SeedsWanted() {
  const char* const wanted = std::getenv("KVTIER_SIM_SEEDS");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 0) : kSeeds;
}

// One after the other, each as a run of its own; a failure names its seed.
void ForEachSeed(void (*run)(Schedule&)) {
  const uint64_t seed = RunSeed();
  {  // what is made once in a process is made here, or the first run would be another one
    Schedule schedule(0, Schedule::Atomics::kToo);
    run(schedule);
  }
  for (uint64_t i = 0; i < SeedsWanted(); ++i) {
    Now().replay = "KVTIER_SIM_SEEDS=1 KVTIER_SEED=" + std::to_string(SeedOf(seed, i)) + " " + Now().program +
                   " " + Now().test;
    Schedule schedule(SeedOf(seed, i), Schedule::Atomics::kToo);
    run(schedule);
  }
}

void CallAndRest(Schedule& run, Session& session, uint32_t ns) {
  for (int i = 0; i < 150; ++i) {
    const uint64_t before_ns = run.now_ns();
    const uint64_t number = run.Draw(40);
    switch (run.Draw(8)) {
      case 0:
        CHECK(session.Post({.op = Op::kTouch, .ns = ns, .keys = &Keys(number, 3).batch()}, true) ==
              Posted::kYes);
        break;
      case 1:
        StoreKeys(session, ns, Keys(number, 2));
        break;
      default:
        (void)Ask(session, {.op = Op::kPing});
    }
    if (const uint64_t took_ns = run.now_ns() - before_ns; took_ns >= kLateNs)
      Fail(__FILE__, __LINE__, "a call was late, ns:", std::to_string(took_ns));
    // None, or until a moment at which the other one comes, too: the server spins, naps or sleeps by then.
    constexpr uint64_t kBeats[] = {0, 0, 200'000, 2'000'000, 5'000'000, 100'000'000};
    if (const uint64_t beat_ns = kBeats[run.Draw(6)]; beat_ns != 0) {
      run.Sleep(beat_ns - run.now_ns() % beat_ns);
    }
  }
}

void TwoClientsCall(Schedule& run) {
  TestDaemon daemon;
  daemon.server->Start();
  std::vector<std::thread> threads;
  for (const SessionId id : {1, 2}) {
    threads.emplace_back([&, id] {
      const auto session = daemon.Attach(id);
      CallAndRest(run, *session, daemon.ns);
      daemon.Detach(id);
    });
  }
  for (std::thread& thread : threads) thread.join();
  daemon.server->Stop();
}

// An arena of eight chunks that the writer's keys do not fit into, so that each reserve evicts.
struct SmallHost {
  SmallHost() {
    arena = std::make_shared<Arena>(data.get(), kSlots * kChunkBytes, kSlots * kChunkBytes);
    arena->Populate();
    StoreOptions options;
    options.boot_id = 7;
    options.slots_max = kSlots;
    store = std::make_unique<Store>(arena, meta.get(), options);
    ns = store->OpenNamespace(std::string(16, 'n'), kChunkBytes);
    view = Mapping(meta.get(), FileBytes(meta.get(), "meta"), Mapping::Access::kRead, "meta");
    reader = std::make_unique<IndexReader>(view.data(), view.bytes());
  }

  // The words of a chunk are atomic here: to copy without a lease is what generations are for.
  std::atomic<uint64_t>* words(uint64_t offset) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(arena->data() + offset);
  }
  static constexpr int kWords = 4;  // of a chunk that are looked at

  void Write(Schedule& run) {
    store->OpenSession(1, 1, 100);
    for (int i = 0; i < 40; ++i) {
      const uint64_t first = run.Draw(16);
      const WriteGrant grant = store->Reserve(1, ns, Keys(first, 2).batch());
      size_t granted = 0;
      for (uint32_t k = 0; k < 2; ++k) {
        if (grant.grants[k] != Grant::kGranted) continue;
        for (int w = 0; w < kWords; ++w) words(grant.slots[granted].offset)[w].store(first + k);
        ++granted;
      }
      if (grant.lease == 0) continue;
      CHECK((run.Draw(4) == 0 ? store->Abort(1, grant.lease) : store->Commit(1, grant.lease)) ==
            Outcome::kOk);
      if (run.Draw(10) == 0) store->Evict(ns, run.Draw(kSlots) * kChunkBytes);
    }
    store->CloseSession(1, true);
  }

  // Whether it was readable, before and after; then its bytes are the chunk's.
  bool Read(uint64_t number, const SlotRef& ref) const {
    if (reader->StateOf(ref.slot, ref.generation) != SlotState::kCommitted) return false;
    uint64_t seen[kWords];
    for (int w = 0; w < kWords; ++w) seen[w] = words(ref.offset)[w].load();
    if (reader->StateOf(ref.slot, ref.generation) != SlotState::kCommitted) return false;
    CHECK(std::all_of(seen, seen + kWords, [&](uint64_t word) { return word == number; }));
    return true;
  }
  void ReadWithoutLease(Schedule& run) const {
    for (int i = 0; i < 60; ++i) {
      const uint64_t first = run.Draw(16);
      SlotRef refs[2];
      const uint32_t hits = reader->LeadingHits(ns, Keys(first, 2).batch(), refs);
      for (uint32_t k = 0; k < hits; ++k) Read(first + k, refs[k]);
    }
  }
  void ReadUnderLease(Schedule& run) {
    store->OpenSession(2, 2, 200);
    for (int i = 0; i < 30; ++i) {
      const uint64_t first = run.Draw(16);
      const ReadGrant grant = store->Lease(2, ns, Keys(first, 2).batch());
      run.Yield();
      for (size_t k = 0; k < grant.slots.size(); ++k) CHECK(Read(first + k, grant.slots[k]));
      if (grant.lease != 0) CHECK(store->Release(2, grant.lease) == Outcome::kOk);
    }
    store->CloseSession(2, true);
  }

  MemFd data, meta;
  std::shared_ptr<Arena> arena;
  std::unique_ptr<Store> store;
  uint32_t ns = 0;
  Mapping view;
  std::unique_ptr<IndexReader> reader;
};

void ReadersBesideAWriter(Schedule& run) {
  SmallHost host;
  std::thread writer([&] { host.Write(run); });
  std::thread reader([&] { host.ReadWithoutLease(run); });
  host.ReadUnderLease(run);
  reader.join();
  writer.join();
  CHECK(host.store->Audit().empty());
}

}  // namespace

TEST(NoWakeUpIsLost) { ForEachSeed(&TwoClientsCall); }
TEST(WhatIsReadIsWholeAndTheChunks) { ForEachSeed(&ReadersBesideAWriter); }

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
