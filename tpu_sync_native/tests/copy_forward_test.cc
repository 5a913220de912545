// What is read again and again outlives its segment, at a price that is bounded; what is read as a whole is
// kept as a whole.

#include "tier_fixture.h"

using namespace tpu_sync_native;
using namespace tpu_sync_native::testing;

namespace {

// 32 segments of 20 chunks.
StorageOptions SmallQuota() {
  StorageOptions options = QuickOptions();
  options.quota_bytes = 8 << 20;
  return options;
}

// From storage, whatever the arena holds. Between the old place and the new one it is a miss for a moment.
bool Comes(TierHost& host, uint64_t first, uint32_t count) {
  return Eventually([&] {
    host.Forget();
    return host.Get(first, count) == count;
  });
}

void PutAndFlush(TierHost& host, uint64_t first) {
  CHECK(host.Put(first, 4) == 4);
  CHECK(host.Flush());
}

void HotChunkOutlivesItsSegment(const StorageOptions& options) {
  FakeFiles fake;
  TierHost host(fake.files(), options);
  host.Start();
  CHECK(host.Put(0, 20) == 20);
  CHECK(host.Flush());
  const uint64_t hot = 7;
  uint64_t next = 1000;
  // Until everything that was there at first is gone three times over.
  while (host.Stat("storage_deleted_segments") < 100) {
    CHECK(Comes(host, hot, 1));
    PutAndFlush(host, next);
    next += 4;
    CHECK(next < 100'000);
  }
  CHECK(Comes(host, hot, 1));
  CHECK(host.Found(0, 1) == 0);  // its neighbours went
  CHECK(host.Found(hot + 1, 1) == 0);
  CHECK(host.Stat("storage_copied_forward_bytes") >= 3 * 8192);
  CHECK(host.Stat("storage_write_amplification_permille") > 1000);
  CHECK(host.Stat("storage_write_amplification_permille") < 1250);
  CHECK(fake.memory->UsedBytes() <= 9 << 20);  // with indexes
  // Another host reads the copies, which are two moves away from what was stored.
  TierHost other(fake.files(), options);
  other.Start();
  CHECK(Eventually([&] { return other.Get(hot, 1) == 1; }));
}

}  // namespace

TEST(AHotChunkOutlivesItsSegment) { HotChunkOutlivesItsSegment(SmallQuota()); }

TEST(AndIsSealedAnewWhereItIsCopiedTo) {
  StorageOptions options = SmallQuota();
  std::string why;
  options.sealer = Sealer::Make(std::string(Sealer::kKeyBytes, 'k'), Seal::kEncrypt, &why);
  CHECK(options.sealer != nullptr);
  HotChunkOutlivesItsSegment(options);
}

TEST(ASegmentThatIsReadAsAWholeStays) {
  FakeFiles fake;
  TierHost host(fake.files(), SmallQuota());
  host.Start();
  CHECK(host.Put(0, 20) == 20);
  CHECK(host.Flush());
  for (uint64_t next = 1000; host.Stat("storage_deleted_segments") < 60; next += 4) {
    CHECK(Comes(host, 0, 20));
    PutAndFlush(host, next);
    CHECK(next < 100'000);
  }
  CHECK(Comes(host, 0, 20));
  CHECK(host.Stat("storage_copied_forward_bytes") == 0);
}

CHECK_MAIN()
