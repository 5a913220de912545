#include "fs/io_pool.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"

namespace tpu_sync_native {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Something that happens once and that others wait for; never longer than ten seconds. It may be gone as soon
// as it has happened; a task that uses it later than that has a copy, which is the same event.
class Event {
 public:
  void Set() const {
    const std::shared_ptr<State> state = state_;
    const std::lock_guard lock(state->mutex);
    state->set = true;
    state->changed.notify_all();
  }
  bool Wait() const {
    const std::shared_ptr<State> state = state_;
    std::unique_lock lock(state->mutex);
    return state->changed.wait_for(lock, std::chrono::seconds(10), [&] { return state->set; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool set = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Waits for what another thread does without a signal of its own.
bool Eventually(const std::function<bool()>& holds) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(10);
  while (steady_clock::now() < deadline) {
    if (holds()) return true;
    std::this_thread::yield();
  }
  return false;
}

IoPoolOptions Patient(int threads) {
  IoPoolOptions options;
  options.threads = threads;
  options.stuck_ms = 60'000;
  return options;
}
IoPoolOptions Impatient(int threads) {
  IoPoolOptions options;
  options.threads = threads;
  options.stuck_ms = 50;
  options.probe_ms = 20;
  return options;
}

// Occupies `count` threads of the pool until released; outlives the test in a hung thread.
struct Block {
  std::shared_ptr<Event> release = std::make_shared<Event>();
  Block(IoPool& pool, int count) {
    for (int i = 0; i < count; ++i) {
      auto begun = std::make_shared<Event>();
      CHECK(pool.Submit(IoClass::kControl, [begun, release = release] {
        begun->Set();
        release->Wait();
      }) == Submitted::kYes);
      CHECK(begun->Wait());
    }
  }
  ~Block() { release->Set(); }
};

TEST(RunsEveryTaskOnce) {
  std::atomic<int> ran{0};
  IoPool pool(Patient(4));
  for (int i = 0; i < 1000; ++i) {
    CHECK(pool.Submit(static_cast<IoClass>(i % kIoClasses), [&] { ++ran; }) == Submitted::kYes);
  }
  CHECK(Eventually([&] { return ran == 1000; }));
  CHECK(pool.Stop(10'000));
  CHECK(ran == 1000);
  CHECK(pool.counters().tasks == 1000);
}

TEST(TheUrgentComeFirst) {
  IoPool pool(Patient(1));
  std::mutex mutex;
  std::vector<IoClass> order;
  Event done;
  {
    const Block block(pool, 1);
    for (const IoClass io_class : {IoClass::kStore, IoClass::kPrefetch, IoClass::kControl, IoClass::kLoad}) {
      for (int i = 0; i < 2; ++i) {
        CHECK(pool.Submit(io_class, [&, io_class] {
          bool all = false;
          {
            const std::lock_guard lock(mutex);
            order.push_back(io_class);
            all = order.size() == 8;
          }
          if (all) done.Set();  // then the mutex may be gone
        }) == Submitted::kYes);
      }
      CHECK(pool.queued(io_class) == 2);
    }
  }
  CHECK(done.Wait());
  using enum IoClass;
  CHECK((order == std::vector{kLoad, kLoad, kControl, kControl, kPrefetch, kPrefetch, kStore, kStore}));
}

TEST(AFullQueueRefusesItsOwnClassOnly) {
  IoPoolOptions options = Patient(1);
  options.queue_max = 3;
  IoPool pool(options);
  const Block block(pool, 1);
  for (int i = 0; i < 3; ++i) CHECK(pool.Submit(IoClass::kStore, [] {}) == Submitted::kYes);
  CHECK(pool.Submit(IoClass::kStore, [] {}) == Submitted::kFull);
  CHECK(pool.Submit(IoClass::kLoad, [] {}) == Submitted::kYes);
  CHECK(pool.counters().refused_full == 1);
}

// A call that takes long while others get their answers is slow; it has more time, and not for ever.
TEST(ASlowTaskBesideAnswersIsNoHungMedium) {
  IoPoolOptions options = Impatient(2);
  options.stuck_ms = 400;  // longer than a busy machine keeps this thread from its next answer
  options.alone_ms = 60'000;
  IoPool pool(options);
  const auto begun = steady_clock::now();
  const Block block(pool, 1);
  while (steady_clock::now() - begun < milliseconds(1200)) {
    CHECK(!pool.down());
    pool.Report({});
    std::this_thread::yield();
  }
  CHECK(Eventually([&] { return pool.counters().openings != 0; }));  // nobody is answered any more
  CHECK(steady_clock::now() - begun < milliseconds(options.alone_ms));
}

TEST(ATaskThatNeverReturnsHangsWhateverOthersGet) {
  IoPoolOptions options = Impatient(2);
  options.alone_ms = 150;
  IoPool pool(options);
  const auto begun = steady_clock::now();
  const Block block(pool, 1);
  CHECK(Eventually([&] {
    pool.Report({});
    return pool.counters().openings != 0;
  }));
  CHECK(steady_clock::now() - begun >= std::chrono::milliseconds(150));
}

TEST(AHungTaskOpensTheBreakerAndItsReturnClosesIt) {
  IoPool pool(Impatient(2));
  const auto begun = steady_clock::now();
  {
    const Block block(pool, 1);
    CHECK(Eventually([&] { return pool.down(); }));
    const auto took = steady_clock::now() - begun;
    CHECK(took >= milliseconds(50));
    CHECK(took < milliseconds(5000));
    unsigned told_ms = 0;
    CHECK(std::sscanf(pool.down_reason().c_str(), "a call into the storage medium has not returned for %u ms",
                      &told_ms) == 1);
    CHECK(told_ms >= 50 && milliseconds(told_ms) <= took);
    CHECK(pool.counters().stuck_threads == 1);
    CHECK(pool.counters().openings == 1);
  }
  CHECK(Eventually([&] { return !pool.down(); }));
  CHECK(pool.down_reason().empty());
  CHECK(pool.counters().stuck_threads == 0);
  Event ran;
  CHECK(pool.Submit(IoClass::kLoad, [&] { ran.Set(); }) == Submitted::kYes);
  CHECK(ran.Wait());
}

TEST(OthersGoOnWhileOneHangs) {
  IoPool pool(Impatient(2));
  const Block block(pool, 1);
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) CHECK(pool.Submit(IoClass::kStore, [&] { ++ran; }) == Submitted::kYes);
  CHECK(Eventually([&] { return ran == 100; }));
}

TEST(AnOpenBreakerRefusesAllButOneProbe) {
  IoPoolOptions options = Impatient(2);
  options.probe_ms = 60'000;
  IoPool pool(options);
  const Block block(pool, 1);
  CHECK(Eventually([&] { return pool.down(); }));
  for (int i = 0; i < 10; ++i) CHECK(pool.Submit(IoClass::kLoad, [] {}) == Submitted::kDown);
  CHECK(pool.counters().refused_down == 10);
}

TEST(AProbeThatSucceedsClosesAndTheLostThreadIsMadeGood) {
  IoPool pool(Impatient(2));
  const Block hang(pool, 2);  // all threads
  CHECK(Eventually([&] { return pool.counters().stuck_threads == 2; }));
  CHECK(pool.down());
  CHECK(Eventually([&] { return pool.Submit(IoClass::kLoad, [&] { pool.Report({}); }) == Submitted::kYes; }));
  CHECK(Eventually([&] { return !pool.down(); }));
  // As wide as before: two tasks run at once.
  Event first, second;
  CHECK(pool.Submit(IoClass::kLoad, [first, second] {
    first.Set();
    second.Wait();
  }) == Submitted::kYes);
  CHECK(first.Wait());
  Event both;
  CHECK(pool.Submit(IoClass::kLoad, [&] { both.Set(); }) == Submitted::kYes);
  CHECK(both.Wait());
  second.Set();
}

TEST(HungProbesAreBounded) {
  IoPool pool(Impatient(2));
  auto release = std::make_shared<Event>();
  auto hung = std::make_shared<std::atomic<int>>(0);
  const auto hang = [release, hung] {
    ++*hung;
    release->Wait();
  };
  // Whoever is let in hangs: at most twice as many threads as there were ever do.
  const auto deadline = steady_clock::now() + milliseconds(800);
  while (steady_clock::now() < deadline) {
    pool.Submit(IoClass::kLoad, hang);
    std::this_thread::yield();
  }
  CHECK(pool.down());
  CHECK(*hung <= 4);
  CHECK(pool.counters().stuck_threads <= 4);
  release->Set();
  CHECK(Eventually([&] { return !pool.down(); }));
  CHECK(pool.Stop(10'000));
}

TEST(ThePoolProbesByItself) {
  IoPoolOptions options = Impatient(1);
  options.failures_to_open = 3;
  auto healthy = std::make_shared<std::atomic<bool>>(false);
  auto probes = std::make_shared<std::atomic<int>>(0);
  options.probe = [healthy, probes]() -> IoError {
    ++*probes;
    return {*healthy ? 0 : EIO};
  };
  IoPool pool(options);
  for (int i = 0; i < 3; ++i) pool.Report({EIO});
  CHECK(pool.down());
  CHECK(pool.down_reason().find("EIO") != std::string::npos);
  CHECK(pool.Submit(IoClass::kLoad, [] {}) == Submitted::kDown);
  CHECK(Eventually([&] { return *probes >= 2; }));
  CHECK(pool.down());
  *healthy = true;
  CHECK(Eventually([&] { return !pool.down(); }));
}

TEST(OnlyFailuresInARowOfTheMediumOpen) {
  IoPoolOptions options = Patient(1);
  options.failures_to_open = 4;
  IoPool pool(options);
  for (int i = 0; i < 3; ++i) pool.Report({EIO});
  pool.Report({});
  for (int i = 0; i < 3; ++i) pool.Report({ETIMEDOUT});
  CHECK(!pool.down());
  // These say that the medium answers.
  for (const int code : {ENOENT, ESTALE, ENOSPC, EDQUOT, EROFS, EEXIST, EFBIG, IoError::kShort}) {
    for (int i = 0; i < 10; ++i) pool.Report({code});
  }
  CHECK(!pool.down());
  pool.Report({EIO});
  CHECK(pool.down());
}

TEST(AStuckThreadThatComesBackWithAnErrorDoesNotClose) {
  IoPoolOptions options = Impatient(1);
  options.probe_ms = 60'000;
  IoPool pool(options);
  auto release = std::make_shared<Event>();
  Event begun;
  CHECK(pool.Submit(IoClass::kLoad, [&, release] {
    begun.Set();
    release->Wait();
    pool.Report({EIO});
  }) == Submitted::kYes);
  CHECK(begun.Wait());
  CHECK(Eventually([&] { return pool.down(); }));
  release->Set();
  CHECK(Eventually([&] { return pool.counters().stuck_threads == 0; }));
  CHECK(pool.down());
}

TEST(ATaskThatSaysItLivesIsNotStuck) {
  IoPoolOptions options = Impatient(1);
  options.stuck_ms = 400;  // longer than a busy machine keeps the task from its next word
  IoPool pool(options);
  Event done;
  CHECK(pool.Submit(IoClass::kControl, [&] {
    const auto deadline = steady_clock::now() + milliseconds(1200);
    while (steady_clock::now() < deadline) IoPool::Progress();
    done.Set();
  }) == Submitted::kYes);
  CHECK(done.Wait());
  CHECK(!pool.down());
  CHECK(pool.counters().openings == 0);
}

TEST(StopDropsWhatIsQueuedAndRefusesMore) {
  auto ran = std::make_shared<std::atomic<int>>(0);
  auto owned = std::make_shared<int>(7);
  IoPool pool(Patient(1));
  auto block = std::make_unique<Block>(pool, 1);
  for (int i = 0; i < 5; ++i) CHECK(pool.Submit(IoClass::kLoad, [ran, owned] { ++*ran; }) == Submitted::kYes);
  CHECK(owned.use_count() == 6);
  CHECK(!pool.Stop(20));  // one still runs
  CHECK(owned.use_count() == 1);
  CHECK(pool.Submit(IoClass::kLoad, [] {}) == Submitted::kDown);
  block.reset();
  CHECK(*ran == 0);
}

TEST(StopDoesNotWaitForAHungThread) {
  auto release = std::make_shared<Event>();
  auto ended = std::make_shared<Event>();
  {
    IoPool pool(Impatient(2));
    Event begun;
    CHECK(pool.Submit(IoClass::kLoad, [&begun, release, ended] {
      begun.Set();
      release->Wait();
      ended->Set();
    }) == Submitted::kYes);
    CHECK(begun.Wait());
    CHECK(Eventually([&] { return pool.down(); }));
    const auto before = steady_clock::now();
    CHECK(!pool.Stop(30));
    CHECK(steady_clock::now() - before < milliseconds(5000));
  }
  release->Set();  // the pool is gone; its thread still owns what it touches
  CHECK(ended->Wait());
}

TEST(TheLastOwnerMayBeATask) {
  auto done = std::make_shared<Event>();
  auto pool = std::make_shared<IoPool>(Patient(2));
  Event handed;
  IoPool* const raw = pool.get();
  CHECK(raw->Submit(IoClass::kControl, [held = pool, done, &handed]() mutable {
    handed.Wait();
    held.reset();  // destroys the pool on one of its own threads
    done->Set();
  }) == Submitted::kYes);
  pool.reset();
  handed.Set();
  CHECK(done->Wait());
}

TEST(ManySubmittersAndAStopInTheMiddle) {
  for (int round = 0; round < 20; ++round) {
    auto ran = std::make_shared<std::atomic<int>>(0);
    IoPool pool(Patient(3));
    std::vector<std::thread> submitters;
    std::atomic<int> accepted{0};
    for (int i = 0; i < 4; ++i) {
      submitters.emplace_back([&, i] {
        for (int j = 0; j < 200; ++j) {
          if (pool.Submit(static_cast<IoClass>((i + j) % kIoClasses), [ran] { ++*ran; }) == Submitted::kYes) {
            ++accepted;
          }
          pool.Report({j % 3 == 0 ? EIO : 0});
          (void)pool.down();
          (void)pool.counters();
        }
      });
    }
    if (round % 2 == 0) std::this_thread::yield();
    CHECK(pool.Stop(10'000));
    for (std::thread& submitter : submitters) submitter.join();
    CHECK(*ran <= accepted);
  }
}

}  // namespace
}  // namespace tpu_sync_native

CHECK_MAIN()
