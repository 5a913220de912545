// Two kinds of processes on one store: the parent inserts, evicts, clears, and ends sessions; children read
// the shared index, take chunks, copy and verify them, and are killed at any moment.
//
// The children have no ring here: they ask the parent for leases over a pipe, as an engine asks the daemon.
// What they read without asking (index, payload) is what engines read.

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <random>

#include "store_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr int kChildren = 2;
constexpr uint64_t kNumbers = 400;
constexpr uint32_t kRun = 8;  // chunks of one request
constexpr uint32_t kChunkBytes = 4096;
constexpr auto kDuration = std::chrono::seconds(6);

// Payload words are atomics of their own: a reader races with the next writer by design, and the generation
// tells it. (Engines copy plainly; the sanitizer must see that this test's races are meant.)
std::atomic<uint64_t>* Words(std::byte* data, uint64_t offset) {
  return reinterpret_cast<std::atomic<uint64_t>*>(data + offset);
}

void Fill(std::byte* data, uint64_t offset, uint64_t number) {
  for (uint32_t i = 0; i < kChunkBytes / 8; ++i) {
    Words(data, offset)[i].store(number * 1000003 + i, std::memory_order_release);
  }
}

bool HasPattern(std::byte* data, uint64_t offset, uint64_t number) {
  bool same = true;
  for (uint32_t i = 0; i < kChunkBytes / 8; ++i) {
    same &= Words(data, offset)[i].load(std::memory_order_acquire) == number * 1000003 + i;
  }
  return same;
}

// Counts of the children, in memory that all share.
struct Shared {
  std::atomic<uint64_t> verified, torn, wrong, hits, lookups;
};

struct Request {
  uint64_t first;
  LeaseId release;  // 0: a lease on [first, first + kRun)
};
struct Reply {
  LeaseId lease;
  uint32_t count;
  SlotRef refs[kRun];
};

struct Child {
  pid_t pid;
  SessionId session;
  int requests;  // the parent reads
  int replies;   // the parent writes
};

// Never returns.
[[noreturn]] void RunChild(const StoreFixture& f, Shared* shared, int requests, int replies, uint64_t seed) {
  std::mt19937_64 random(seed);
  Mapping meta(f.meta_file.fd(), f.meta.bytes(), Mapping::Access::kRead, "meta");
  const IndexReader reader(meta.data(), meta.bytes());
  SlotRef refs[kRun];
  for (uint64_t step = 0;; ++step) {
    const uint64_t first = random() % kNumbers;
    const Keys keys = Range(first, kRun);
    ++shared->lookups;
    uint32_t count = reader.LeadingHits(f.ns, keys.batch(), refs);
    shared->hits += count;
    LeaseId lease = 0;
    if (step % 8 == 0) {  // under a lease the bytes must be right; without one they may go, but it must show
      const Request request{first, 0};
      Reply reply;
      if (write(requests, &request, sizeof(request)) != sizeof(request) ||
          read(replies, &reply, sizeof(reply)) != sizeof(reply)) {
        _exit(0);  // the parent is done
      }
      lease = reply.lease;
      count = reply.count;
      std::memcpy(refs, reply.refs, sizeof(refs));
    }
    for (uint32_t i = 0; i < count; ++i) {
      if (refs[i].offset + kChunkBytes > f.arena->bytes()) {
        ++shared->wrong;
        continue;
      }
      const bool same = HasPattern(f.arena->data(), refs[i].offset, first + i);
      const bool unchanged = reader.Unchanged(refs[i].slot, refs[i].generation);
      if (unchanged && same) ++shared->verified;
      if (!unchanged) ++shared->torn;
      if ((unchanged && !same) || (lease != 0 && !unchanged)) ++shared->wrong;
    }
    if (lease != 0) {
      const Request release{0, lease};
      if (write(requests, &release, sizeof(release)) != sizeof(release)) _exit(0);
    }
  }
}

class Stress {
 public:
  explicit Stress(uint64_t seed) : random_(seed) {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    shared_ = new (memory) Shared();
    for (int i = 0; i < kChildren; ++i) Spawn();
  }

  void Run() {
    const auto end = std::chrono::steady_clock::now() + kDuration;
    while (std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < 20; ++i) Mutate();
      Serve();
      if (random_() % 50 == 0) KillOne();
    }
    while (!children_.empty()) KillOne(/*respawn=*/false);
    f_.store->CloseSession(1, true);
    f_.CheckNothingHeld();
    std::fprintf(stderr,
                 "        %llu lookups, %llu hits, %llu verified, %llu changed under the reader, %llu wrong, "
                 "%llu killed\n",
                 Count(shared_->lookups), Count(shared_->hits), Count(shared_->verified),
                 Count(shared_->torn), Count(shared_->wrong), static_cast<unsigned long long>(killed_));
    CHECK(shared_->wrong == 0);
    CHECK(shared_->verified > 1000 && killed_ > kChildren && f_.Stat("evictions") > 1000);
  }

 private:
  static unsigned long long Count(const std::atomic<uint64_t>& value) { return value.load(); }

  void Spawn() {
    int requests[2];
    int replies[2];
    CHECK(pipe(requests) == 0 && pipe(replies) == 0);
    const uint64_t seed = random_();
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      close(requests[0]);
      close(replies[1]);
      for (const Child& other : children_) {
        close(other.requests);
        close(other.replies);
      }
      RunChild(f_, shared_, requests[1], replies[0], seed);
    }
    close(requests[1]);
    close(replies[0]);
    f_.store->OpenSession(next_session_, next_session_, static_cast<uint32_t>(pid));
    children_.push_back({pid, next_session_++, requests[0], replies[1]});
  }

  // In the middle of whatever it does; its leases must come back.
  void KillOne(bool respawn = true) {
    const Child child = children_.front();
    children_.pop_front();
    CHECK(kill(child.pid, SIGKILL) == 0);
    CHECK(waitpid(child.pid, nullptr, 0) == child.pid);
    ++killed_;
    close(child.requests);
    close(child.replies);
    // A write lease of its own, as if it had died while storing.
    f_.store->Reserve(child.session, f_.ns, Range(random_() % kNumbers, 2).batch());
    f_.store->CloseSession(child.session, false);
    f_.store->CloseSession(child.session, true);
    f_.CheckSound();
    if (respawn) Spawn();
  }

  void Mutate() {
    const uint64_t first = random_() % kNumbers;
    switch (random_() % 40) {
      case 0:
        f_.store->Evict(f_.ns, 8 * kChunkBytes);
        return;
      case 1:
        if (random_() % 20 == 0) f_.store->ClearNamespace(f_.ns);
        f_.store->ReclaimStale(16);
        return;
      default: {
        const WriteGrant grant = f_.store->Reserve(1, f_.ns, Range(first, kRun).batch());
        size_t granted = 0;
        for (uint32_t i = 0; i < grant.grants.size(); ++i) {
          if (grant.grants[i] == Grant::kGranted)
            Fill(f_.arena->data(), grant.slots[granted++].offset, first + i);
        }
        if (grant.lease == 0) return;
        if (random_() % 8 == 0) {
          f_.store->Abort(1, grant.lease);
        } else {
          f_.store->Commit(1, grant.lease);
        }
      }
    }
  }

  // Answers what the children have asked, as the ring thread would.
  void Serve() {
    for (const Child& child : children_) {
      pollfd ready{child.requests, POLLIN, 0};
      while (poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN)) {
        Request request;
        if (read(child.requests, &request, sizeof(request)) != sizeof(request)) break;
        if (request.release != 0) {
          CHECK(f_.store->Release(child.session, request.release) == Outcome::kOk);
          continue;
        }
        const ReadGrant grant = f_.store->Lease(child.session, f_.ns, Range(request.first, kRun).batch());
        Reply reply{grant.lease, static_cast<uint32_t>(grant.slots.size()), {}};
        std::copy(grant.slots.begin(), grant.slots.end(), reply.refs);
        CHECK(write(child.replies, &reply, sizeof(reply)) == sizeof(reply));
      }
    }
  }

  std::mt19937_64 random_;
  StoreFixture f_{{.slabs = 8}};  // 128 chunks for 408 keys
  Shared* shared_;
  std::deque<Child> children_;
  SessionId next_session_ = 10;
  uint64_t killed_ = 0;
};

}  // namespace

TEST(ReadersNeverSeeWrongBytesWhileSessionsDie) { Stress(RunSeed()).Run(); }

}  // namespace tpu_sync_native::testing

CHECK_MAIN()
