// The scheduler of the simulation: the same seed is the same run, another seed another order; time passes by
// itself; what is wrong under one order is found.

#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "sim/schedule.h"
#include "sim/wraps.h"

namespace tpu_sync_native::testing {
namespace {

// Four threads that take turns at a lock; in which order they had it.
std::string Turns(uint64_t seed, uint64_t* trace) {
  Schedule schedule(seed);
  std::mutex mutex;
  std::string turns;
  std::vector<std::thread> threads;
  for (char name = 'a'; name < 'e'; ++name) {
    threads.emplace_back([&, name] {
      for (int i = 0; i < 5; ++i) {
        const std::lock_guard lock(mutex);
        turns += name;
        std::this_thread::sleep_for(std::chrono::hours(schedule.Draw(3)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  *trace = schedule.trace();
  return turns;
}

// A bell that is looked at before the lock is taken: a ring between the look and the wait is lost.
bool Hears(uint64_t seed) {
  Schedule schedule(seed);
  std::mutex mutex;
  std::condition_variable bell;
  bool rung = false, heard = false;
  std::thread sleeper([&] {
    bool wait = false;
    {
      const std::lock_guard lock(mutex);
      wait = !rung;
    }
    schedule.Yield();
    std::unique_lock lock(mutex);
    heard = !wait || bell.wait_for(lock, std::chrono::hours(1)) == std::cv_status::no_timeout;
  });
  {
    const std::lock_guard lock(mutex);
    rung = true;
  }
  bell.notify_one();
  sleeper.join();
  return heard;
}

}  // namespace

TEST(TheSameSeedIsTheSameRun) {
  const uint64_t seed = RunSeed();
  std::set<std::string> orders;
  for (uint64_t i = 0; i < 20; ++i) {
    uint64_t first = 0, again = 0;
    const std::string turns = Turns(SeedOf(seed, i), &first);
    CHECK(turns.size() == 20 && Turns(SeedOf(seed, i), &again) == turns && first == again);
    orders.insert(turns);
  }
  CHECK(orders.size() > 10);
}

TEST(TimePassesWhenEverybodyWaits) {
  Schedule schedule(1);
  std::mutex mutex;
  std::condition_variable never;
  const uint64_t before_ns = SteadyNs();
  std::unique_lock lock(mutex);
  CHECK(never.wait_for(lock, std::chrono::hours(24)) == std::cv_status::timeout);
  const uint64_t took_ns = SteadyNs() - before_ns;
  CHECK(took_ns >= 86'400 * kNsPerS && took_ns < 86'401 * kNsPerS);
}

TEST(ThreadsOfNoRunAreLeftAlone) {
  int made = 0;
  std::thread([&] { ++made; }).join();
  CHECK(made == 1 && Schedule::Mine() == nullptr);
}

TEST(ALostRingIsFound) {
  const uint64_t seed = RunSeed();
  int lost = 0;
  for (uint64_t i = 0; i < 100; ++i) lost += !Hears(SeedOf(seed, i));
  CHECK(lost > 0 && lost < 100);
}

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
