// The ring between a session and its server: what a well-behaved pair does, in one process, under sanitizers.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "ring_fixture.h"

namespace tpu_sync_native::testing {
namespace {

TEST(RoundTrip) {
  TestDaemon daemon;
  daemon.server->Start();
  const auto session = daemon.Attach(1);
  const Keys keys(100, 8);
  CHECK(session->Lookup(daemon.ns, keys.batch()).chunks == 0);

  const Incoming write = Ask(*session, {.op = Op::kReserve, .ns = daemon.ns, .keys = &keys.batch()});
  CHECK(write.outcome == Outcome::kOk && write.lease != 0);
  CHECK(write.grants == std::vector<Grant>(8, Grant::kGranted));
  CHECK(write.slots.size() == 8);
  CHECK(session->Lookup(daemon.ns, keys.batch()).chunks == 0);

  // The last chunk is not kept.
  const uint8_t keep = 0x7f;
  CHECK(Ask(*session, {.op = Op::kCommit, .lease = write.lease, .keep = {&keep, 1}}).outcome == Outcome::kOk);
  CHECK(session->Lookup(daemon.ns, keys.batch()).chunks == 7);

  const Incoming read = Ask(*session, {.op = Op::kLease, .ns = daemon.ns, .keys = &keys.batch()});
  CHECK(read.lease != 0 && read.slots.size() == 7);
  for (size_t i = 0; i < 7; ++i) {
    CHECK(read.slots[i].slot == write.slots[i].slot && read.slots[i].offset == write.slots[i].offset);
    bool unchanged = false;
    session->Unchanged({&read.slots[i].slot, 1}, {&read.slots[i].generation, 1}, &unchanged);
    CHECK(unchanged);
  }
  CHECK(Ask(*session, {.op = Op::kRelease, .lease = read.lease}).outcome == Outcome::kOk);
  CHECK(Ask(*session, {.op = Op::kRelease, .lease = read.lease}).outcome == Outcome::kUnknownLease);
  CHECK(Ask(*session, {.op = Op::kLease, .ns = 999, .keys = &keys.batch()}).outcome ==
        Outcome::kUnknownNamespace);
  daemon.Detach(1);
  CHECK(daemon.store->Audit().empty());
}

TEST(PostedRequestsKeepTheirOrder) {
  TestDaemon daemon;
  daemon.server->Start();
  const auto session = daemon.Attach(1);
  for (uint64_t round = 0; round < 200; ++round) {
    const Keys keys(round * 4, 4);
    const Incoming write = Ask(*session, {.op = Op::kReserve, .ns = daemon.ns, .keys = &keys.batch()});
    CHECK(session->Post({.op = Op::kCommit, .lease = write.lease}, true) == Posted::kYes);
    const Incoming read = Ask(*session, {.op = Op::kLease, .ns = daemon.ns, .keys = &keys.batch()});
    CHECK(read.slots.size() == 4);
    CHECK(session->Post({.op = Op::kRelease, .lease = read.lease}, true) == Posted::kYes);
  }
  daemon.Detach(1);
  CHECK(daemon.store->Audit().empty());
}

// What was posted before the end counts, though the thread never ran.
TEST(RemoveServesWhatWasPosted) {
  TestDaemon daemon;
  const auto session = daemon.Attach(1);
  const Keys keys(0, 4);
  const WriteGrant write = daemon.store->Reserve(1, daemon.ns, keys.batch());
  CHECK(session->Post({.op = Op::kCommit, .lease = write.lease}, false) == Posted::kYes);
  daemon.Detach(1);
  CHECK(daemon.store->LongestPrefix(daemon.ns, keys.batch()) == 4);
  CHECK(session->Post({.op = Op::kPing}, false) == Posted::kLost);
  CHECK(session->lost() == Lost::kClosed);
}

TEST(FullRingWaitsForSpaceAndWrapsAround) {
  TestDaemon daemon;
  const auto session = daemon.Attach(1);
  const Keys keys(0, 1000, 64);
  const Outgoing touch{.op = Op::kTouch, .ns = daemon.ns, .keys = &keys.batch()};
  uint32_t posted = 0;
  while (session->Post(touch, false) == Posted::kYes) ++posted;
  CHECK(posted > 100 && posted < kRequestAreaBytes / 64000);
  CHECK(session->lost() == Lost::kNo);

  std::atomic<bool> passed{false};
  std::thread waiter([&] {
    for (int i = 0; i < 300; ++i) CHECK(session->Post(touch, true) == Posted::kYes);
    passed = true;
  });
  daemon.server->Start();
  waiter.join();
  CHECK(passed);
  Ask(*session, {.op = Op::kPing});
  const auto counters = daemon.server->Counters();
  for (const Counter& counter : counters) {
    if (counter.name == "ring_requests") CHECK(counter.value == posted + 301);
    if (counter.name == "ring_closed_for_lies") CHECK(counter.value == 0);
  }
}

TEST(LargestBatch) {
  TestDaemon daemon;
  daemon.server->Start();
  const auto session = daemon.Attach(1);
  const Keys keys(0, kRingKeysMax, kKeyBytesMax);
  for (int i = 0; i < 4; ++i) {
    CHECK(Ask(*session, {.op = Op::kLease, .ns = daemon.ns, .keys = &keys.batch()}).outcome == Outcome::kOk);
  }
  const Incoming write = Ask(*session, {.op = Op::kReserve, .ns = daemon.ns, .keys = &keys.batch()});
  CHECK(write.outcome == Outcome::kOk && write.grants.size() == kRingKeysMax);
  CHECK(!write.slots.empty() && write.slots.size() < kRingKeysMax);
  CHECK(Ask(*session, {.op = Op::kAbort, .lease = write.lease}).outcome == Outcome::kOk);
}

// An empty ring goes back to its start, but not at the price of a record that would fit where it stands.
TEST(GrowingBatchesAlwaysFit) {
  TestDaemon daemon;
  daemon.server->Start();
  const auto session = daemon.Attach(1, /*deadline_ms=*/2'000);
  for (uint32_t count = 1000; count <= kRingKeysMax; count += 501) {
    const Keys keys(0, count);
    CHECK(Ask(*session, {.op = Op::kLease, .ns = daemon.ns, .keys = &keys.batch()}).outcome == Outcome::kOk);
  }
}

TEST(NoAnswerLosesTheSessionOnceAndForAll) {
  TestDaemon daemon;
  const auto session = daemon.Attach(1, /*deadline_ms=*/50);
  const uint64_t start_ns = SteadyNs();
  Ask(*session, {.op = Op::kPing}, Lost::kDeadline);
  const uint64_t waited_ns = SteadyNs() - start_ns;
  CHECK(waited_ns >= 50 * kNsPerMs && waited_ns < 2 * kNsPerS);
  // The answer comes after all; the session stays lost, and its calls cost nothing.
  daemon.server->Start();
  const auto other = daemon.Attach(2);
  Ask(*other, {.op = Op::kPing});
  const uint64_t again_ns = SteadyNs();
  const Keys keys(0, 4);
  for (int i = 0; i < 100; ++i) {
    Ask(*session, {.op = Op::kPing}, Lost::kDeadline);
    CHECK(session->Lookup(daemon.ns, keys.batch()).chunks == 0);
  }
  CHECK(SteadyNs() - again_ns < 50 * kNsPerMs);
}

TEST(StopFailsWaitersAtOnce) {
  TestDaemon daemon;
  daemon.server->Start();
  const auto session = daemon.Attach(1);
  daemon.server->Stop();
  const uint64_t start_ns = SteadyNs();
  Ask(*session, {.op = Op::kPing}, Lost::kClosed);
  CHECK(SteadyNs() - start_ns < 5 * kNsPerS);  // the session's deadline is 10 s
}

TEST(ThreadsShareASession) {
  TestDaemon daemon;
  daemon.server->Start();
  const auto session = daemon.Attach(1);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t round = 0; round < 100; ++round) {
        const Keys keys((t * 1000 + round) * 8, 8);
        const Incoming write = Ask(*session, {.op = Op::kReserve, .ns = daemon.ns, .keys = &keys.batch()});
        CHECK(write.grants.size() == 8);
        Ask(*session, {.op = Op::kCommit, .lease = write.lease});
        const Incoming read = Ask(*session, {.op = Op::kLease, .ns = daemon.ns, .keys = &keys.batch()});
        CHECK(read.slots.size() <= 8);
        if (read.lease != 0)
          CHECK(session->Post({.op = Op::kRelease, .lease = read.lease}, true) == Posted::kYes);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  daemon.Detach(1);
  CHECK(daemon.store->Audit().empty());
}

TEST(SessionsComeAndGoWhileOthersAreServed) {
  TestDaemon daemon;
  daemon.server->Start();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t round = 0; round < 25; ++round) {
        const SessionId number = t * 100 + round + 1;
        const auto session = daemon.Attach(number);
        const Keys keys(round * 4, 4);
        StoreKeys(*session, daemon.ns, keys);
        session->Post({.op = Op::kTouch, .ns = daemon.ns, .keys = &keys.batch()}, true);
        daemon.Detach(number);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(daemon.store->Sessions().empty());
  CHECK(daemon.store->Audit().empty());
}

TEST(PaceSpinsOnlyUnderDenseTraffic) {
  Pace pace;
  uint64_t now_ns = kNsPerS;
  const auto serve = [&](uint64_t gap_ns, uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) pace.Served(now_ns += gap_ns);
  };
  serve(0, 1);
  CHECK(!pace.Spin(now_ns + 1));
  serve(20 * kNsPerUs, 50);
  CHECK(pace.Spin(now_ns + 1));
  CHECK(pace.Spin(now_ns + Pace::kSpinNs / 2));
  CHECK(!pace.Spin(now_ns + Pace::kSpinNs + 1));
  // That spin was in vain, so the next pause is slept through; after another one, two are.
  CHECK(!pace.Spin(now_ns + Pace::kSpinNs + 2));
  for (const uint32_t skips : {1u, 2u, 4u, 8u, 16u, 16u}) {
    serve(20 * kNsPerUs, skips - 1);
    CHECK(!pace.Spin(now_ns + Pace::kSpinNs + 3));
    serve(20 * kNsPerUs, 1);
    CHECK(pace.Spin(now_ns + 1));
    CHECK(!pace.Spin(now_ns + Pace::kSpinNs + 1));
  }
  // One that was met is no hiccup's aftermath: it begins with one again.
  serve(20 * kNsPerUs, 16);
  CHECK(pace.Spin(now_ns + 1));
  serve(20 * kNsPerUs, 1);
  CHECK(pace.Spin(now_ns + 1));
  CHECK(!pace.Spin(now_ns + Pace::kSpinNs + 1));
  serve(20 * kNsPerUs, 1);
  CHECK(pace.Spin(now_ns + 1));
  // A spin step this long says that somebody else needs the core.
  CHECK(!pace.Spin(now_ns += Pace::kStolenNs + 2));
  serve(20 * kNsPerUs, 50);
  CHECK(!pace.Spin(now_ns + 1));
  serve(Pace::kPenaltyNs, 1);
  serve(20 * kNsPerUs, 50);
  CHECK(pace.Spin(now_ns + 1));
  serve(kNsPerMs, 50);
  CHECK(!pace.Spin(now_ns + 1));
}

TEST(FilesThatDoNotFit) {
  TestDaemon daemon;
  const MemFd empty;
  CHECK_THROWS(RingMap::Open(empty.get()), "ring_fd");
  CHECK_THROWS(Doorbell::Open(empty.get()), "doorbell_fd");
  MemFd unsized;
  CHECK(ftruncate(unsized.get(), kRingBytes) == 0);
  CHECK_THROWS(RingMap::Open(unsized.get()), "magic");
  const int plain = memfd_create("plain", MFD_CLOEXEC);
  CHECK_THROWS(RingMap::Create(plain), "sealed");
  close(plain);
  const MemFd ring;
  RingMap::Create(ring.get());
  CHECK(ftruncate(ring.get(), 0) != 0);  // no client can pull the memory from under the server
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
