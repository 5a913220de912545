#pragma once

namespace tpu_sync_native {

// Tells the core that this is a short wait.
inline void SpinPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tpu_sync_native
