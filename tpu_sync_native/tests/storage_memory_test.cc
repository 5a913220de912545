// No memory where the demoter needs some: a chunk or two are dropped, and it goes on.
#include <atomic>
#include <cstdlib>
#include <new>

#include "check.h"
#include "storage/demote_lane.h"
#include "tier_fixture.h"

namespace {

std::atomic<int> failing{0};       // so many of the next ones of this size find no memory ...
thread_local bool spared = false;  // ... on other threads than the test's own
constexpr size_t kFailing = sizeof(tpu_sync_native::DemoteBatch);

}  // namespace

__attribute__((noinline)) void* operator new(size_t bytes) {
  if (bytes == kFailing && !spared && failing.load() > 0 && failing.fetch_sub(1) > 0) throw std::bad_alloc();
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tpu_sync_native::testing {
namespace {

TEST(ALaneThatFindsNoMemoryForItsBatchGoesOn) {
  spared = true;
  FakeFiles fake;
  TierHost host(fake.files());
  host.Start();
  failing = 3;
  host.Put(0, 20);
  CHECK(Eventually([&] { return failing.load() <= 0; }));
  failing = 0;
  CHECK(host.Flush());
  CHECK(host.Stat("storage_demoted_chunks") == 20);
  host.Forget();
  CHECK(host.Get(0, 20) == 20);
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
