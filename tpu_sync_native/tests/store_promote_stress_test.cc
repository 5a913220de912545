// A tier below whose threads end promotes at random moments, in any way, while engines lease, wait, verify,
// store and die, and a demoter pins what was stored. Whoever waits for a chunk gets its bytes or a loss.

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "base/futex.h"
#include "fake_lower_tier.h"

namespace tpu_sync_native::testing {
namespace {

constexpr uint64_t kNumbers = 300;
constexpr uint32_t kRun = 8;  // chunks of one request
constexpr uint32_t kChunkBytes = 4096;
constexpr auto kDuration = std::chrono::seconds(5);

uint64_t NumberOf(std::string_view key) {
  uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number |= uint64_t{static_cast<uint8_t>(key[key.size() - 8 + i])} << (8 * i);
  return number;
}

// Payload words are atomics: a reader whose lease was taken back races with the next writer by design.
std::atomic<uint64_t>* Words(std::byte* data, uint64_t offset) {
  return reinterpret_cast<std::atomic<uint64_t>*>(data + offset);
}

class Stress {
 public:
  Stress() {
    f_.store->SetLowerTier(&below_);
    below_.Put(f_.ns, 0, kNumbers);
  }

  void Run() {
    const uint64_t seed = RunSeed();
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 2; ++i) threads.emplace_back([this, seed, i] { Read(10 + i, seed + i); });
    threads.emplace_back([this, seed] { Write(2, seed + 7); });
    threads.emplace_back([this] { Demote(); });
    std::thread reads([this, seed] { EndPromotes(seed + 8); });
    std::mt19937_64 random(seed + 9);
    const auto end = std::chrono::steady_clock::now() + kDuration;
    while (std::chrono::steady_clock::now() < end) {
      f_.CheckSound();
      if (random() % 50 == 0) f_.store->ClearNamespace(f_.ns);
      if (random() % 50 == 0) f_.store->ExpireLeases(UINT64_MAX);
      f_.store->ReclaimStale(16);
      std::this_thread::yield();
    }
    over_ = true;
    for (std::thread& thread : threads) thread.join();
    readers_over_ = true;
    reads.join();
    f_.store->CloseSession(1, true);
    f_.CheckNothingHeld();
    std::fprintf(stderr, "        %llu verified, %llu lost, %llu promotes, %llu demotes\n", Count(verified_),
                 Count(lost_), static_cast<unsigned long long>(f_.Stat("promotes")), Count(demoted_));
    CHECK(verified_ > 0 && lost_ > 0 && demoted_ > 0 && f_.Stat("promotes") > 0);
    CHECK(f_.Stat("promote_losses") > 0);
  }

 private:
  static unsigned long long Count(const std::atomic<uint64_t>& value) { return value.load(); }

  void Fill(uint64_t offset, uint64_t number) {
    for (uint32_t i = 0; i < kChunkBytes / 8; ++i) {
      Words(f_.arena->data(), offset)[i].store(number * 1000003 + i, std::memory_order_release);
    }
  }
  bool Holds(uint64_t offset, uint64_t number) {
    for (uint32_t i = 0; i < kChunkBytes / 8; ++i) {
      if (Words(f_.arena->data(), offset)[i].load(std::memory_order_acquire) != number * 1000003 + i)
        return false;
    }
    return true;
  }

  // An engine's loads: lease, wait for each chunk, verify. Ends its session now and then.
  void Read(SessionId session, uint64_t seed) {
    std::mt19937_64 random(seed);
    f_.store->OpenSession(session, session, 1);
    while (!over_) {
      const uint64_t first = random() % (kNumbers + 4);
      if (random() % 8 == 0) f_.store->Prefetch(f_.ns, Range(first + kRun, kRun).batch());
      const ReadGrant grant = f_.store->Lease(session, f_.ns, Range(first, kRun).batch());
      CHECK(grant.outcome == Outcome::kOk);
      if (random() % 4 != 0) {
        for (uint32_t i = 0; i < grant.slots.size(); ++i) Verify(grant.slots[i], first + i);
      }
      if (random() % 16 == 0) {
        f_.store->CloseSession(session, true);
        f_.store->OpenSession(session, session, 1);
      } else if (grant.lease != 0) {
        const Outcome outcome = f_.store->Release(session, grant.lease);
        CHECK(outcome == Outcome::kOk || outcome == Outcome::kUnknownLease);  // expired
      }
    }
    f_.store->CloseSession(session, true);
  }

  void Verify(const SlotRef& ref, uint64_t number) {
    const uint64_t deadline_ns = SteadyNs() + 60 * kNsPerS;
    while (true) {
      const uint32_t ended = f_.reader->promotes_ended();
      const Readiness readiness = f_.reader->ReadinessOf(ref.slot, ref.generation);
      if (readiness == Readiness::kPending) {
        CHECK(SteadyNs() < deadline_ns);
        f_.reader->AwaitPromotes(ended, deadline_ns);
        continue;
      }
      const bool same = readiness == Readiness::kReady && Holds(ref.offset, number);
      const bool still = f_.reader->ReadinessOf(ref.slot, ref.generation) == Readiness::kReady;
      CHECK(!still || same);
      ++(still ? verified_ : lost_);
      return;
    }
  }

  void Write(SessionId session, uint64_t seed) {
    std::mt19937_64 random(seed);
    f_.store->OpenSession(session, session, 2);
    while (!over_) {
      const uint64_t first = kNumbers / 2 + random() % kNumbers;
      const WriteGrant grant = f_.store->Reserve(session, f_.ns, Range(first, kRun).batch());
      size_t granted = 0;
      for (uint32_t i = 0; i < grant.grants.size(); ++i) {
        if (grant.grants[i] == Grant::kGranted) Fill(grant.slots[granted++].offset, first + i);
      }
      if (grant.lease == 0) continue;
      if (random() % 8 == 0) {
        f_.store->Abort(session, grant.lease);
      } else {
        f_.store->Commit(session, grant.lease);
      }
    }
    f_.store->CloseSession(session, true);
  }

  void Demote() {
    while (!over_) {
      for (const auto& call : below_.TakeCommitted()) {
        const auto chunks = f_.store->PinForDemote(call.ns, call.epoch, call.slots);
        for (const DemoteChunk& chunk : chunks) {
          const std::string_view key(reinterpret_cast<const char*>(chunk.key), chunk.key_bytes);
          CHECK(Holds(chunk.ref.offset, NumberOf(key)));  // pinned: neither evicted nor written
        }
        demoted_ += chunks.size();
        f_.store->EndDemote(chunks);
      }
      std::this_thread::yield();
    }
  }

  // The tier's threads: reads that come in late and out of order, fail, or go on writing after they were
  // lost.
  void EndPromotes(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<FakeLowerTier::Offered> waiting;
    std::vector<FakeLowerTier::Offered> busy;
    while (true) {
      const bool last = readers_over_;
      for (auto& one : below_.TakeOffered()) waiting.push_back(one);
      for (size_t turn = waiting.size() + busy.size(); turn > 0; --turn) {
        if (!busy.empty() && (waiting.empty() || random() % 2 == 0)) {
          Fill(busy.back().chunk.ref.offset, random());  // nobody else may have the slot
          End(busy.back(), Store::PromoteEnd::kGone);
          busy.pop_back();
          continue;
        }
        if (waiting.empty()) break;
        std::swap(waiting[random() % std::min<size_t>(waiting.size(), 4)], waiting.front());
        const auto one = waiting.front();
        waiting.erase(waiting.begin());
        Fill(one.chunk.ref.offset, NumberOf(one.key()));
        const uint64_t draw = random() % 10;
        if (draw == 1) busy.push_back(one);
        End(one, draw == 0   ? Store::PromoteEnd::kLost
                 : draw == 1 ? Store::PromoteEnd::kLostBusy
                             : Store::PromoteEnd::kReadable);
      }
      if (last && waiting.empty() && busy.empty()) return;
      std::this_thread::yield();
    }
  }
  void End(const FakeLowerTier::Offered& one, Store::PromoteEnd end) {
    f_.store->EndPromotes({&one.chunk.ref, 1}, end);
  }

  StoreFixture f_{{.slabs = 6}};  // 96 chunks
  FakeLowerTier below_;
  std::atomic<bool> over_{false};
  std::atomic<bool> readers_over_{false};
  std::atomic<uint64_t> verified_{0}, lost_{0}, demoted_{0};
};

}  // namespace

TEST(WhoeverWaitsGetsTheBytesOrALoss) { Stress().Run(); }

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
