// Hosts on one root, simulated: real stores and storage tiers with all their threads, under a schedule, a
// clock and a weather that the seed decides. Engines store, load, abort, clear and die, daemons are killed
// and come back to what they left, the medium fails, fills, hangs and loses what was not synced. After each
// step the store is sound, and a lease gives the bytes that were committed under its key and weights, or
// none.
//
//   make simulate SEEDS=1000                          more runs
//   KVTIER_SEED=17 build/native-asan/hosts_sim_test   that one, as it was; with KVTIER_SIM_LOG=1, in words

#include <cstdlib>

#include "segment/names.h"
#include "sim/sim_host.h"
#include "sim/wraps.h"

namespace tpu_sync_native::testing {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr uint64_t kSeeds = 4;
#else
constexpr uint64_t kSeeds = 12;
#endif
constexpr int kSteps = 2000;

// What must have happened in so many runs. A simulation in which nothing goes wrong, or right, shows nothing.
struct Wanted {
  const char* what;
  uint64_t runs;
};
constexpr Wanted kWanted[] = {{"kept", 10},
                              {"quarantines", 10},
                              {"expired_leases", 10},
                              {"promotes", 10},
                              {"storage_promoted_chunks", 10},
                              {"storage_adopted_segments", 10},
                              {"storage_deleted_segments", 10},
                              {"storage_breaker_openings", 10},
                              {"storage_dropped_error", 10},
                              {"storage_copied_forward_bytes", 100},
                              {"storage_failed_corrupt", 100},
                              {"storage_failed_deadline", 100},
                              {"late reads", 100}};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : run_(seed), world_(run_) {
    const uint64_t hosts = 1 + run_.Draw(3);
    for (uint64_t i = 0; i < hosts; ++i) {
      hosts_.push_back(std::make_unique<SimHost>(world_));
      hosts_.back()->Start(/*keep=*/false, /*engines_live=*/false);
      hosts_.back()->Check();
    }
  }

  uint64_t Run() {
    for (int step = 0; step < kSteps; ++step) {
      Step();
      SimHost& host = AnyHost();
      if (host.life() != nullptr) host.Check();
    }
    Finish();
    return run_.trace();
  }
  const std::map<std::string, uint64_t, std::less<>>& happened() const { return world_.happened; }

 private:
  SimHost& AnyHost() { return *hosts_[run_.Draw(hosts_.size())]; }

  void Step() {
    SimHost& host = AnyHost();
    switch (run_.Draw(64)) {
      case 0:
        return Change(host.weather);
      case 1:
        return Medium();
      case 2:
        return run_.Jump(run_.Draw(2) == 0 ? run_.Draw(20 * kNsPerS) : run_.Draw(400 * kNsPerS));
      case 3:
        return run_.Sleep(run_.Draw(10 * kNsPerS));
      case 4:
        if (host.life() != nullptr && run_.Draw(6) == 0) host.Clear(static_cast<uint32_t>(run_.Draw(2)));
        return;
      case 5:
        if (host.life() != nullptr && run_.Draw(4) == 0) End(host);
        return;
      case 6:
        if (host.life() != nullptr) host.life()->tier->Flush(run_.Draw(3000));
        return;
      case 7:
      case 8:
        if (host.life() != nullptr) host.Housekeep();
        return;
      case 9:
      case 10:
      case 11:
      case 12:
      case 13:
      case 14:
        return run_.Sleep(run_.Draw(100 * kNsPerMs));
      case 15:
      case 16:
      case 17:
      case 18:
      case 19:
      case 20:
        for (uint64_t turns = run_.Draw(20); turns > 0; --turns) run_.Yield();
        return;
      default:
        if (host.life() == nullptr) return Begin(host, run_.Draw(4) != 0);
        host.engines.Step(*host.life());
        // The worst moment: the kernel goes on with what it had begun to read.
        if (host.engines.awaits_promotes() && run_.Draw(24) == 0) host.Kill();
    }
  }

  void Change(Weather& weather) {
    weather = {};
    switch (run_.Draw(12)) {
      case 0:
        weather.down = true;
        return;
      case 1:
        weather.hangs = true;
        return;
      case 2:
        weather.full = true;
        return;
      case 3:
        weather.errors_one_of = 3;
        return;
      case 4:
        weather.errors_one_of = weather.slow_one_of = 20;
        return;
      case 5:
        weather.hangs_one_of = 30;
        return;
      case 6:
      case 7:
        weather.slow_one_of = 2;
        return;
      default:
        return;
    }
  }

  void Medium() {
    switch (run_.Draw(8)) {
      case 0:
        return world_.medium->Crash(run_.Draw(3) == 0 ? 0 : run_.Draw(1 << 30) + 1);
      case 1:
        return world_.medium->SetCapacity(run_.Draw(2) == 0 ? 0 : 512 << 10);
      default: {  // bits rot
        std::vector<std::string> names = world_.medium->FileNames();
        std::erase_if(names,
                      [](const auto& name) { return !name.ends_with(".kvs") && !name.ends_with(".idx"); });
        if (names.empty()) return;
        const std::string& name = names[run_.Draw(names.size())];
        world_.medium->Flip(name, run_.Draw(64 << 10), static_cast<uint8_t>(1 + run_.Draw(255)));
      }
    }
  }

  void End(SimHost& host) { run_.Draw(4) == 0 ? host.Stop() : host.Kill(); }

  void Begin(SimHost& host, bool engines_live) {
    for (const auto& other : hosts_) {
      if (other->life() != nullptr) other->Check();
    }
    const bool settled =
        std::all_of(hosts_.begin(), hosts_.end(), [](const auto& other) { return other->Settled(); });
    const bool keep = run_.Draw(8) != 0;
    // New engines have the newest weights: which they are must be certain.
    if ((!settled || !world_.KnowsNewest()) && (!engines_live || !host.Remembers())) return;
    host.Start(keep, engines_live);
    host.Check();
  }

  void Finish() {
    world_.medium->SetCapacity(0);
    for (const auto& host : hosts_) host->weather = {};
    for (const auto& host : hosts_) {
      if (host->life() == nullptr) Begin(*host, true);
    }
    std::erase_if(hosts_, [](const auto& host) { return host->life() == nullptr; });
    for (size_t i = 0; i < hosts_.size(); ++i) hosts_[i]->Finish(1000 * (i + 1));
    for (const auto& host : hosts_) host->Drop();
  }

  Schedule run_;
  SimWorld world_;
  std::vector<std::unique_ptr<SimHost>> hosts_;
};

uint64_t SeedsWanted() {
  if (const char* wanted = std::getenv("KVTIER_SIM_SEEDS")) return std::strtoull(wanted, nullptr, 0);
  return std::getenv("KVTIER_SEED") != nullptr ? 1 : kSeeds;
}

}  // namespace

TEST(WhatALeaseGivesWasCommitted) {
  const uint64_t count = SeedsWanted();
  // The same ones in every run of continuous integration; others where more are wanted.
  const uint64_t seed = std::getenv("KVTIER_SIM_SEEDS") != nullptr ? RunSeed() : FixedSeed(1);
  std::map<std::string, uint64_t, std::less<>> happened;
  for (uint64_t i = 0; i < count; ++i) {
    Announce(SeedOf(seed, i));
    Simulation simulation(SeedOf(seed, i));
    simulation.Run();
    for (const auto& [name, value] : simulation.happened()) happened[name] += value;
  }
  for (const auto& [what, runs] : kWanted) {
    std::fprintf(stderr, "        %s: %llu\n", what, static_cast<unsigned long long>(happened[what]));
    if (count >= runs && happened[what] == 0) Fail(__FILE__, __LINE__, "never happened:", what);
  }
}

TEST(ARunIsTheSameAgain) {
  const uint64_t seed = RunSeed();
  const uint64_t first = Simulation(seed).Run();
  CHECK(Simulation(seed).Run() == first);
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
