// The kit on every device of the list (copy_kit_devices.h).
#include <cstdio>

#include "check.h"
#include "copy_engine_kit.h"
#include "copy_kit_devices.h"

namespace tpu_sync_native::testing {
namespace {

TEST(EveryDevicePassesTheKit) {
  for (const KitEntry& entry : KitDevices()) {
    std::fprintf(stderr, "  %s%s\n", entry.name.c_str(), entry.make ? "" : ": NOT RUN, there is none here");
    if (entry.make) RunKit(entry.make);
  }
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
