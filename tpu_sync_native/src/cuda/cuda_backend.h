// NVIDIA GPUs, through the driver API: device addresses last, engines work on streams.
//
// One stream of its own for each direction, so that loads do not queue behind stores and neither behind the
// engine's kernels (priorities of streams would do nothing: they are for kernels only). The arena is pinned
// once; where that is refused, copies go through the driver's staging memory, and capabilities().kernel says
// so. A thread that copies sleeps in the driver until its piece has landed: unlike a callback, that also ends
// when the device has failed.
#pragma once

#include <memory>
#include <string>

#include "copy/backend.h"

namespace tpu_sync_native {

struct CudaOptions {
  int ordinal = 0;  // of the device, as this process sees them
  std::string library = "libcuda.so.1";
};

// In the device's primary context, which is what frameworks use. Throws std::runtime_error saying what is
// missing: the driver, the device.
std::shared_ptr<CopyBackend> MakeCudaBackend(const CudaOptions& options = {});

}  // namespace tpu_sync_native
