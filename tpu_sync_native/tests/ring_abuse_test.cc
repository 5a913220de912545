// A client that writes anything it likes into its ring: the server checks, closes the ring, and serves the
// others.
#include <signal.h>
#include <sys/wait.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>

#include "check.h"
#include "ring_fixture.h"

namespace tpu_sync_native::testing {
namespace {

uint64_t CounterOf(const TestDaemon& daemon, std::string_view name) {
  for (const Counter& counter : daemon.server->Counters()) {
    if (counter.name == name) return counter.value;
  }
  Fail(__FILE__, __LINE__, "no such counter", std::string(name));
}

// Writes one record of these bytes at the start of a fresh ring, and looks what the reader makes of it.
ReadOutcome Read(const std::function<void(RequestHeader&, std::byte* body)>& fill, uint64_t tail) {
  const MemFd fd;
  const RingMap ring = RingMap::Create(fd.get());
  RequestHeader header{};
  header.record_bytes = 128;
  header.op = static_cast<uint8_t>(Op::kPing);
  fill(header, ring.requests() + sizeof(header));
  std::memcpy(ring.requests(), &header, sizeof(header));
  ring.header().request_tail.store(tail);
  RequestReader reader;
  return reader.Read(ring, 0);
}

void PutOffsets(std::byte* body, std::initializer_list<uint32_t> offsets) {
  std::memcpy(body, offsets.begin(), offsets.size() * sizeof(uint32_t));
}

TEST(EveryLieIsSeen) {
  const auto plain = [](RequestHeader&, std::byte*) {};
  CHECK(Read(plain, 0) == ReadOutcome::kEmpty);
  CHECK(Read(plain, 128) == ReadOutcome::kRequest);
  CHECK(Read(plain, 127) == ReadOutcome::kLie);                     // not a multiple of 64
  CHECK(Read(plain, 64) == ReadOutcome::kLie);                      // the record is longer than what is there
  CHECK(Read(plain, kRequestAreaBytes + 64) == ReadOutcome::kLie);  // more than the area holds
  CHECK(Read(plain, ~0ull - 63) == ReadOutcome::kLie);              // a tail behind the head
  for (const uint32_t bytes : {0u, 32u, 65u, ~0u, static_cast<uint32_t>(kRequestAreaBytes) + 64}) {
    CHECK(Read([&](RequestHeader& header, std::byte*) { header.record_bytes = bytes; }, kRequestAreaBytes) ==
          ReadOutcome::kLie);
  }
  for (const int op : {static_cast<int>(Op::kPrefetch) + 1, 100, 255}) {
    CHECK(Read([&](RequestHeader& header, std::byte*) { header.op = static_cast<uint8_t>(op); }, 128) ==
          ReadOutcome::kLie);
  }
  CHECK(Read([](RequestHeader& header, std::byte*) { header.op = 0; }, 128) ==
        ReadOutcome::kLie);  // skip not to the end
}

TEST(EveryLieAboutKeysIsSeen) {
  const auto lease = [](uint32_t count, std::initializer_list<uint32_t> offsets) {
    return Read(
        [&](RequestHeader& header, std::byte* body) {
          header.op = static_cast<uint8_t>(Op::kLease);
          header.key_count = count;
          PutOffsets(body, offsets);
        },
        128);
  };
  CHECK(lease(2, {0, 16, 32}) == ReadOutcome::kRequest);
  CHECK(lease(2, {0, 16, 52}) == ReadOutcome::kRequest);
  CHECK(lease(2, {0, 16, 53}) == ReadOutcome::kLie);  // one byte past the record
  CHECK(lease(2, {0, 16, ~0u}) == ReadOutcome::kLie);
  CHECK(lease(2, {1, 16, 32}) == ReadOutcome::kLie);
  CHECK(lease(2, {0, 32, 16}) == ReadOutcome::kLie);
  CHECK(lease(16, {0, 0, 0}) == ReadOutcome::kLie);  // the offsets alone do not fit
  CHECK(lease(~0u, {0}) == ReadOutcome::kLie);
  CHECK(lease(kRingKeysMax + 1, {0}) == ReadOutcome::kLie);
  CHECK(Read(
            [](RequestHeader& header, std::byte*) {
              header.op = static_cast<uint8_t>(Op::kCommit);
              header.keep_bytes = 65;
            },
            128) == ReadOutcome::kLie);
}

// Random headers and bodies, many of them nearly right, thrown at a live server.
TEST(RandomBytesHurtNobodyElse) {
  TestDaemon daemon;
  daemon.server->Start();
  const auto honest = daemon.Attach(1);
  std::mt19937_64 random(20261202);
  uint64_t closed = 0;
  for (SessionId number = 2; number < 150; ++number) {
    const MemFd fd;
    const auto hostile = daemon.AttachTo(fd, number);
    const RingMap ring = RingMap::Open(fd.get());
    uint64_t tail = 0;
    const uint64_t records = 1 + random() % 20;
    for (uint64_t i = 0; i < records; ++i) {
      RequestHeader header{};
      header.record_bytes = static_cast<uint32_t>(64 * (1 + random() % 64));
      header.op = static_cast<uint8_t>(1 + random() % 8);
      header.wants_reply = static_cast<uint8_t>(random() % 2);
      header.sequence = random();
      header.lease = random() % 8;
      header.ns = static_cast<uint32_t>(random() % 3);
      header.key_count = static_cast<uint32_t>(random() % 32);
      header.keep_bytes = static_cast<uint32_t>(random() % 64);
      std::byte* const record = ring.requests() + tail;
      for (uint32_t at = 0; at < header.record_bytes; ++at) record[at] = static_cast<std::byte>(random());
      std::vector<uint32_t> offsets(header.key_count + 1);
      for (uint32_t k = 1; k <= header.key_count; ++k) {
        offsets[k] = offsets[k - 1] + static_cast<uint32_t>(random() % 4 == 0 ? random() % 70 : 32);
      }
      if (sizeof(header) + offsets.size() * 4 <= header.record_bytes) {
        std::memcpy(record + sizeof(header), offsets.data(), offsets.size() * 4);
      }
      if (random() % 8 == 0) header.record_bytes ^= static_cast<uint32_t>(1u << (random() % 32));
      std::memcpy(record, &header, sizeof(header));
      tail += 64 * (1 + random() % 64);
      ring.header().request_tail.store(random() % 32 == 0 ? random() : tail);
      Doorbell::Open(daemon.doorbell.get()).Ring();
    }
    Ask(*honest, {.op = Op::kPing});
    daemon.Detach(number);
  }
  closed = CounterOf(daemon, "ring_closed_for_lies");
  CHECK(closed > 20);
  CHECK(daemon.store->Audit().empty());
  const Keys keys(0, 8);
  StoreKeys(*honest, daemon.ns, keys);
  CHECK(honest->Lookup(daemon.ns, keys.batch()).chunks == 8);
}

// Another process changes records while the server reads them; the store must never see a key change under
// it.
TEST(RecordsThatChangeWhileTheyAreRead) {
  TestDaemon daemon;
  const MemFd fd;
  const auto hostile = daemon.AttachTo(fd, 2);
  const pid_t child = fork();
  if (child == 0) {
    const RingMap ring = RingMap::Open(fd.get());
    uint64_t state = 88172645463325252ull;
    const auto next = [&state] {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      return state;
    };
    for (;;) {
      // Flips bits of the keys and now and then of the lengths in the first pages; never of the counters.
      const uint64_t word = next() % 16384;
      volatile auto* const words = reinterpret_cast<volatile uint64_t*>(ring.requests());
      const uint64_t record_word = word % 64;
      if (record_word >= 8 || next() % 64 == 0) words[word] = words[word] ^ (1ull << (next() % 64));
    }
  }
  daemon.server->Start();
  const auto honest = daemon.Attach(1);
  for (uint64_t round = 0; round < 400; ++round) {
    const Keys keys(round * 8, 8);
    const Outgoing reserve{.op = Op::kReserve, .ns = daemon.ns, .keys = &keys.batch()};
    if (hostile->Post(reserve, true) == Posted::kLost) break;
    Ask(*honest, {.op = Op::kPing});
  }
  CHECK(kill(child, SIGKILL) == 0);
  CHECK(waitpid(child, nullptr, 0) == child);
  Ask(*honest, {.op = Op::kPing});
  daemon.Detach(2);
  for (const std::string& broken : daemon.store->Audit()) Fail(__FILE__, __LINE__, "audit:", broken);
}

TEST(AScribbledDoorbellDelaysNobodyPastTheDeadline) {
  TestDaemon daemon;
  daemon.server->Start();
  const auto honest = daemon.Attach(1);
  const Doorbell doorbell = Doorbell::Open(daemon.doorbell.get());
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    doorbell.word().store(static_cast<uint32_t>(random()));
    Ask(*honest, {.op = Op::kPing});
  }
}

TEST(AChildOfTheProcessIsLost) {
  TestDaemon daemon;
  const auto session = daemon.Attach(1);
  const pid_t child = fork();
  if (child == 0) {
    Incoming reply;
    const bool lost =
        session->Call({.op = Op::kPing}, &reply) == Lost::kForked && session->lost() == Lost::kForked;
    _exit(lost ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  daemon.server->Start();
  Ask(*session, {.op = Op::kPing});
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
