// The storage tier on a disk that others keep busy: a call takes longer than the patience with a medium that
// says nothing at all, while other calls are answered.
#include "check.h"
#include "segment/names.h"
#include "tier_fixture.h"

namespace tpu_sync_native::testing {
namespace {

// Turns go to others, and nothing is lost: not what is written, nor what waits, nor what is offered
// meanwhile.
TEST(ASlowAppendLosesNothing) {
  FakeFiles fake;
  StorageOptions options = QuickOptions();
  options.store_threads = 1;
  TierHost host(fake.files(), options);
  host.Start();
  const uint32_t other = host.OpenOther();
  const std::string path = NamespaceDirectory(reinterpret_cast<const uint8_t*>(TierHost::kId));
  fake.plan->Add({.ops = kOpAppend, .pattern = path + "/*.kvs", .times = 1, .hang = true});
  host.Put(0, 60);
  CHECK(fake.plan->WaitHanging(1));
  host.base.Put(0, 30, other);
  CHECK(Eventually([&] { return host.Stat("storage_demoted_chunks") == 30; }));  // its turn was given away
  CHECK(host.tier->state() == "ok");
  host.Put(100, 20);
  fake.plan->Release();
  CHECK(host.Flush());
  CHECK(host.Stat("storage_dropped_down") == 0);
  CHECK(host.Stat("storage_demoted_chunks") == 110);
  host.Forget();
  CHECK(host.Get(0, 60) == 60);
  CHECK(host.Get(100, 20) == 20);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
