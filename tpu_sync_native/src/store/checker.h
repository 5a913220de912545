// The thread that reads payloads for their checksums, whenever the store has some to be read.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "arena/arena.h"
#include "store/store.h"

namespace tpu_sync_native {

// Thread-safe. `store` must outlive it.
class Checker {
 public:
  Checker(Store& store, std::shared_ptr<Arena> arena);
  ~Checker() { Stop(); }
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  // Does nothing while it runs, nor where no checksums are kept.
  void Start();
  // Joins it; it ends with the chunk it reads. Idempotent.
  void Stop();

 private:
  static constexpr int kNice = 10;  // nobody waits for it

  void Run();

  Store& store_;
  const std::shared_ptr<Arena> arena_;
  std::atomic<bool> stop_{false};
  std::mutex life_;
  std::thread thread_;  // guarded by life_
};

}  // namespace tpu_sync_native
