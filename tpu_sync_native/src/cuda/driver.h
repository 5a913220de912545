// The CUDA driver of this machine, opened when somebody asks for it.
#pragma once

#include <string>

#include "cuda/api.h"

namespace tpu_sync_native::cuda {

// Immutable once open. Never unloaded: a driver keeps threads of its own.
class Driver {
 public:
  // Opens the library and starts the driver. Throws std::runtime_error: no such library, a function that it
  // does not have, no device.
  explicit Driver(const std::string& library);

  const Functions& call() const { return functions_; }
  // "CALL: NAME (text)".
  std::string Say(const std::string& call, Result result) const;
  // Throws std::runtime_error with that text unless the call succeeded.
  void Require(const std::string& call, Result result) const;

 private:
  Functions functions_{};
};

// Makes a context current on this thread, as long as it lives, and its calls harmless to a graph that another
// thread captures.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, Context context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  Result result() const { return result_; }

 private:
  const Driver& driver_;
  int capture_mode_ = kCaptureModeRelaxed;  // outside this scope: the thread's own
  Result result_;
};

}  // namespace tpu_sync_native::cuda
