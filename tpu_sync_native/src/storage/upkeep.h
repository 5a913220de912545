// What has to be done now and then, and who does it: one thread that looks at the clock and submits tasks to
// the control pool. It never touches the medium itself, so it can be joined at any time.
//
//   often           serving flag of the catalog, Demoter::Tick, epochs noted where engines see them
//   heartbeat_ms    Peers::Heartbeat of each namespace
//   poll_ms         opening and clearing on the root, Peers::Poll of each namespace; then Reclaimer::Round
//
// Of each kind at most one task per namespace is under way: one that hangs holds up its own kind alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "storage/demoter.h"
#include "storage/peers.h"
#include "storage/promoter.h"
#include "storage/reclaimer.h"

namespace tpu_sync_native {

// The parts of a tier. Tasks hold it: one that hangs may outlive the tier.
struct StorageParts {
  StorageParts(std::shared_ptr<StorageContext> wanted, Store& store, std::shared_ptr<Arena> arena)
      : context(std::move(wanted)),
        demoter(context, store, arena),
        promoter(context, store, arena),
        peers(context),
        reclaimer(context, peers, demoter) {}

  const std::shared_ptr<StorageContext> context;
  Demoter demoter;
  Promoter promoter;
  Peers peers;
  Reclaimer reclaimer;
};

class Upkeep {
 public:
  Upkeep(std::shared_ptr<StorageParts> parts, Store& store);
  ~Upkeep();  // Stop
  void Start();
  void Stop();
  void Hurry();  // something is due now; from any thread, never blocks

  void Add(std::shared_ptr<StorageNamespace> ns);
  // Why the namespace is not ready yet, or refused; "" without a reason.
  std::string reason(uint32_t ns) const;

 private:
  // One kind of task.
  struct Job {
    std::atomic<bool> under_way{false};
    uint64_t due_ms = 0;
  };
  struct Entry {
    std::shared_ptr<StorageNamespace> ns;
    Job open, clear, beat, poll;
    std::atomic<uint32_t> open_failures{0};  // in a row
    std::atomic<bool> polled{false};
    mutable std::mutex mutex;
    std::string reason;  // guarded by mutex
  };

  void Run();
  uint64_t Round(uint64_t now_ms);
  void LookAfter(const std::shared_ptr<Entry>& entry, uint64_t now_ms);
  void Submit(const std::shared_ptr<void>& owner, Job& job, uint64_t next_ms, std::function<void()> task);
  static void Open(StorageParts& parts, Entry& entry);
  static void Reclaim(StorageParts& parts, const std::vector<std::shared_ptr<Entry>>& entries);
  std::vector<std::shared_ptr<Entry>> Entries() const;

  const std::shared_ptr<StorageParts> parts_;
  Store& store_;  // of the thread, not of its tasks
  const std::shared_ptr<Job> reclaim_ = std::make_shared<Job>();
  std::atomic<bool> hurry_{false};
  mutable std::mutex mutex_;
  std::condition_variable wakes_;
  std::vector<std::shared_ptr<Entry>> entries_;  // guarded by mutex_
  bool stopping_ = false;                        // guarded by mutex_
  std::thread thread_;
};

}  // namespace tpu_sync_native
