// Reclaim beside a demoter that writes: what is copied forward, and segments that are still open.

#include "hosts_fixture.h"
#include "storage/namespace_root.h"
#include "storage/reclaimer.h"
#include "tier_fixture.h"

using namespace tpu_sync_native;
using namespace tpu_sync_native::testing;

namespace {

// Segments of four chunks: 4096 + 4 * 12288 bytes.
constexpr uint64_t kSegment = kStorageUnit + 4 * (kStorageUnit + kHostChunkBytes);

struct WritingHost : TestHost {
  explicit WritingHost(std::shared_ptr<FileSystem> files, const HostOptions& options)
      : TestHost(std::move(files), options),
        demoter(context, *base.store, base.arena),
        reclaimer(context, *peers, demoter) {
    ns->measured.store(true);
    context->options.sync_ms = 50;
    context->options.copy_forward_share = 0.5;
    demoter.Start();
  }
  ~WritingHost() { demoter.Stop(10'000); }

  // The oldest segment of all, with chunks that were read a moment ago.
  void Heat(uint64_t segment, uint64_t first, uint64_t count) {
    context->segments->FindByIdentity(ns->host_id, ns->id, segment)->age_from_s.store(1);
    for (uint64_t i = first; i < first + count; ++i) {
      context->catalog->Touch(MakeCatalogKey(ns->id, NumberedKey(i)), SteadySeconds());
    }
  }

  // Until nothing waits to be written, and what was is synced.
  void Drain() {
    CHECK(Eventually([&] {
      demoter.Tick();
      return demoter.queued_bytes() == 0 && demoter.Flush(10'000);
    }));
    const uint64_t until_ms = SteadyNs() / kNsPerMs + 2 * context->options.sync_ms;
    CHECK(Eventually([&] {
      demoter.Tick();
      return SteadyNs() / kNsPerMs > until_ms;
    }));
  }

  StoreFixture base;
  Demoter demoter;
  Reclaimer reclaimer;
};

// Reads of segments call `arm`ed once.
struct OnRead {
  std::function<void()> armed;
  std::shared_ptr<FileSystem> Around(std::shared_ptr<FileSystem> files) {
    FileHooks hooks;
    hooks.before = [this](const FileCall& call) {
      if (call.op == kOpRead && call.path.ends_with(".kvs") && armed) std::exchange(armed, nullptr)();
      return FileVerdict{};
    };
    return std::make_shared<HookedFiles>(std::move(files), std::move(hooks));
  }
};

constexpr HostOptions kFull{.segment_bytes = kSegment, .quota_bytes = 20 * kSegment};

}  // namespace

TEST(WhatIsHotIsCopiedForward) {
  FakeFiles fake;
  WritingHost host(fake.files(), kFull);
  host.Rounds(1);
  for (uint64_t i = 0; i < 25; ++i) host.WriteSealed(4 * i, 4);
  host.Heat(1, 0, 1);
  CHECK(host.reclaimer.Round(host.now_ms).ok());
  CHECK(host.context->counters.copied_forward_bytes.load() > 0);
  host.Drain();
  CHECK(host.Serves(0, 1));
  CHECK(host.ServesNone(1, 3));
}

// A clear that comes while the hot chunks are read: they are of before.
TEST(WhatIsCopiedForwardStaysInItsEpoch) {
  FakeFiles fake;
  OnRead on_read;
  WritingHost host(on_read.Around(fake.files()), kFull);
  host.Rounds(1);
  for (uint64_t i = 0; i < 25; ++i) host.WriteSealed(4 * i, 4);
  host.Heat(1, 0, 1);
  on_read.armed = [&] {  // as StorageTier::Cleared, then Upkeep
    host.ns->clears.fetch_add(1);
    host.ns->clearing.store(true);
    host.demoter.Clear(host.ns->ns);
    CHECK(ConfirmClear(*host.context, *host.ns).ok());
  };
  CHECK(host.reclaimer.Round(host.now_ms).ok());
  CHECK(!on_read.armed);  // it was read
  host.Drain();
  host.Rounds(2);
  CHECK(host.ns->epoch.load() == 1);
  CHECK(host.ServesNone(0, 100));
}

// Of namespaces that nobody writes to any more nothing but an open segment is left, and these fill the quota.
TEST(OpenSegmentsAreSealedWhenNothingElseIsLeft) {
  FakeFiles fake;
  WritingHost host(fake.files(), {.segment_bytes = kSegment, .quota_bytes = 10 * kSegment});
  host.Rounds(1);
  constexpr uint32_t kNamespaces = 15;
  for (uint32_t i = 0; i < kNamespaces; ++i) {
    const auto ns = host.Open(10 + i, static_cast<uint8_t>(100 + i));
    ns->measured.store(true);
    CHECK(host.peers->Heartbeat(*ns, host.now_ms).ok());
    for (uint64_t chunk = 0; chunk < 3; ++chunk) {
      const std::string bytes = ChunkOf(NumberedKey(chunk));
      const std::shared_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
      std::memcpy(copy.get(), bytes.data(), bytes.size());
      CHECK(host.demoter.OfferBytes(10 + i, 0, NumberedKey(chunk), copy));
    }
  }
  host.Drain();
  CHECK(host.context->counters.sealed_segments.load() == 0);
  CHECK(host.reclaimer.Round(host.now_ms).ok());
  CHECK(host.context->room_bytes.load() == 0);
  for (int rounds = 0; host.context->room_bytes.load() < static_cast<int64_t>(kSegment / 2); ++rounds) {
    CHECK(rounds < 10);
    CHECK(host.reclaimer.Round(host.now_ms).ok());
    host.Drain();
  }
  CHECK(host.context->counters.deleted_segments.load() >= 1);
  CHECK(host.context->counters.deleted_segments.load() <= 6);
}

CHECK_MAIN()
