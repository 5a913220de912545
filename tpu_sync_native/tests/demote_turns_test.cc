// Who appends when: promotes go before demotes, which are slowed and go on.
#include <cstring>
#include <memory>

#include "check.h"
#include "hosts_fixture.h"
#include "storage/demoter.h"
#include "tier_fixture.h"

namespace tpu_sync_native::testing {
namespace {

TEST(WhilePromotesAreUnderWayOneBatchIsAppendedATick) {
  FakeFiles fake;
  TestHost host(fake.files(), {.segment_bytes = 1 << 20});
  host.context->options.io_bytes = kStorageUnit;  // batches of one chunk
  const StoreFixture base;
  Demoter demoter(host.context, *base.store, base.arena);
  demoter.Start();
  const size_t appends = fake.plan->Add({.ops = kOpAppend, .pattern = "*.kvs", .times = -1});
  host.ns->measured.store(true);
  const auto other = host.Open(2, 9);
  other->measured.store(true);
  for (const auto& ns : {host.ns, other}) CHECK(host.peers->Heartbeat(*ns, host.now_ms).ok());
  const auto offer = [&](uint64_t first, uint64_t count) {
    for (uint64_t i = first; i < first + count; ++i) {
      const std::string bytes = ChunkOf(NumberedKey(i));
      const std::shared_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
      std::memcpy(copy.get(), bytes.data(), bytes.size());
      for (const uint32_t ns : {1, 2}) CHECK(demoter.OfferBytes(ns, 0, NumberedKey(i), copy));
    }
  };

  host.context->promoting.store(true);
  offer(0, 8);
  int ticks = 0;
  CHECK(Eventually([&] {
    CHECK(fake.plan->hits(appends) <= ticks);
    ++ticks;
    demoter.Tick();
    return fake.plan->hits(appends) == 16;
  }));
  CHECK(demoter.queued_bytes() == 0);

  host.context->promoting.store(false);
  offer(100, 8);
  demoter.Tick();
  CHECK(Eventually([&] { return fake.plan->hits(appends) == 32; }));  // no further tick is waited for
  host.context->promoting.store(true);
  offer(200, 8);
  CHECK(Eventually([&] { return demoter.queued_bytes() == 14 * kHostChunkBytes; }));  // both stand back
  CHECK(demoter.Stop(20'000));                                                        // nor by who stops
  CHECK(fake.plan->hits(appends) == 48);
  CHECK(host.Serves(0, 8) && host.Serves(100, 8) && host.Serves(200, 8));
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
