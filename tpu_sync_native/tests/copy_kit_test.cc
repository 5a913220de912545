// The kit on every device of the list (copy_kit_devices.h).
#include <cstdio>

#include "check.h"
#include "copy_backend_kit.h"
#include "copy_engine_kit.h"
#include "copy_kit_devices.h"

namespace tpu_sync_native::testing {
namespace {

void OnEveryDevice(void (*check)(KitDevice*)) {
  for (const KitEntry& entry : KitDevices()) {
    if (!entry.make) {
      std::fprintf(stderr, "  not run: %s, there is no such device here\n", entry.name.c_str());
      continue;
    }
    std::fprintf(stderr, "  %s\n", entry.name.c_str());
    check(entry.make().get());
  }
}

TEST(EveryBackendSaysWhatItCan) { OnEveryDevice(CheckSaysWhatItCan); }
TEST(EveryBackendMovesExactly) {
  OnEveryDevice([](KitDevice* device) {
    for (uint64_t seed = 1; seed <= 8; ++seed) CheckMovesExactly(device, seed);
  });
}
TEST(EveryBackendDoesNothingWhenThereIsNothingToDo) { OnEveryDevice(CheckNothingToDo); }
TEST(EveryBackendServesManyThreads) { OnEveryDevice(CheckManyThreads); }
TEST(EveryHoldKnowsItsBuffers) { OnEveryDevice(CheckHolds); }
TEST(EveryHoldOutlivesAReplacement) { OnEveryDevice(CheckAHoldOutlivesAReplacement); }
TEST(EveryFenceComesOnce) { OnEveryDevice(CheckFence); }
TEST(EveryBackendGoesOnAfterAFailure) { OnEveryDevice(CheckGoesOnAfterAFailure); }

TEST(BytesGoThereAndBackWithinTheLimits) { OnEveryDevice(CheckThereAndBack); }
TEST(WhatDoesNotFitIsRefused) { OnEveryDevice(CheckRefusesWhatDoesNotFit); }
TEST(GoneBuffersFailTheJob) { OnEveryDevice(CheckGoneBuffersFailTheJob); }
TEST(AFailureIsReported) { OnEveryDevice(CheckAFailureIsReported); }
TEST(LoadsNeedAWindowWhereBuffersAreReplaced) { OnEveryDevice(CheckLoadsNeedAWindow); }
TEST(WindowsAndStepsLoseNothing) { OnEveryDevice(CheckWindowsLoseNothing); }
TEST(StoresWaitForTheStep) { OnEveryDevice(CheckStoresWaitForTheStep); }
TEST(HoldsEndWithTheirJobs) { OnEveryDevice(CheckHoldsEndWithTheirJobs); }

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
