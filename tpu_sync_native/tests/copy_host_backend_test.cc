#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "copy/kernels.h"
#include "copy_backend_kit.h"

namespace tpu_sync_native::testing {
namespace {

TEST(HostBackendSaysWhatItCan) {
  const std::shared_ptr<CopyBackend> backend = MakeHostBackend();
  const CopyCapabilities& can = backend->capabilities();
  CHECK(can.name == "host");
  CHECK(can.plain_memory);
  CHECK(can.kernel == NonTemporalKernelName());
}

// Every alignment of both sides against every length around the kernel's steps.
TEST(NonTemporalCopiesAnyAlignmentAndLength) {
  std::mt19937_64 random(7);
  const std::vector<uint8_t> source = RandomBytes(2048, &random);
  for (const uint64_t length : {0, 1, 63, 64, 65, 255, 256, 257, 319, 320, 575, 1024, 1500}) {
    for (uint64_t target_at = 0; target_at < 66; target_at += 5) {
      for (const uint64_t source_at : {0, 1, 32, 63}) {
        std::vector<uint8_t> target(2048, 0xee);
        std::vector<uint8_t> expected = target;
        std::copy_n(source.begin() + source_at, length, expected.begin() + target_at);
        CopyNonTemporal(target.data() + target_at, source.data() + source_at, length);
        NonTemporalFence();
        CHECK(target == expected);
      }
    }
  }
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
