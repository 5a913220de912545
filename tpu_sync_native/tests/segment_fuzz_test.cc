// Fuzzes the parsers of the storage format; see fuzz/driver.h.
#include "segment_fuzz.h"

namespace tpu_sync_native::testing {
namespace {

const Target kTarget{.name = "segment",
                     .one = &FuzzOne,
                     .repair = &FixChecksums,
                     .begins = 1,
                     .unit = kStorageUnit,
                     .fields = 192,
                     .iterations = 100'000};

}  // namespace
}  // namespace tpu_sync_native::testing

KVTIER_FUZZ(tpu_sync_native::testing::kTarget)
