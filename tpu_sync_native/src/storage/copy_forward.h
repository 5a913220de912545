// What is worth keeping of a segment that is about to go: the chunks that were read from it lately, read once
// more, verified, and offered to the demoter to be appended again.
#pragma once

#include <cstdint>

#include "storage/context.h"
#include "storage/demoter.h"

namespace tpu_sync_native {

// Chunks last used at used_after_s or later, the latest first, at most copy_forward_share of the segment's
// bytes. Their cells are gone when this returns, so that the demoter does not take them for present. Returns
// bytes copied. too_hot, if not null: set instead, and nothing is copied, where these are more.
uint64_t CopyForward(StorageContext& context, Demoter& demoter, Segment& segment, uint32_t used_after_s,
                     bool* too_hot);

}  // namespace tpu_sync_native
