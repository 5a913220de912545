// The one thread that serves every session's ring and keeps the store's house.
//
// Loop: look at each ring, serve what is there (a bounded number of requests a ring and look, so that none
// starves the others); nothing there: spin briefly while traffic is dense (pace.h), then announce sleep in
// every ring, look once more, and sleep on the doorbell. Before it rests it makes room in the store for the
// next reserve, step by step, looking at the rings in between. The sleep is bounded, so a doorbell that some
// client scribbled on costs the others kSleepMs at most. Once a second the store's leases expire and cleared
// slots are reclaimed.
//
// A ring that lies is closed: its client fails at once, its session stays until its socket ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ring/pace.h"
#include "ring/request.h"
#include "ring/ring_map.h"
#include "store/store.h"

namespace tpu_sync_native {

// Thread-safe. `store` must outlive it.
class RingServer {
 public:
  // Sizes and seals the doorbell. Throws as Doorbell::Create.
  RingServer(Store& store, int doorbell_fd);
  ~RingServer();  // Stop

  void Start();
  // Joins the thread and closes the rings: their clients fail at once. Idempotent.
  void Stop();

  // Makes the ring (the fd may be closed afterwards) and serves it from now on. Throws as RingMap::Create.
  void Add(SessionId session, int ring_fd);
  // Serves what the client had posted by now, then stops serving its ring. Unknown sessions are ignored.
  void Remove(SessionId session);

  std::vector<Counter> Counters() const;  // names start with ring_

 private:
  struct Served {
    SessionId session;
    RingMap ring;
    uint64_t head = 0;  // the server's own; the shared one is only told
  };
  enum class Step { kServed, kEmpty, kLie };

  static constexpr uint32_t kRequestsPerLookMax = 32;
  static constexpr uint64_t kNapWindowNs = 20 * kNsPerMs;  // naps only, for this long after a request
  static constexpr int kNice = -10;
  static constexpr uint64_t kTickNs = kNsPerS;
  static constexpr uint64_t kReclaimAgainNs = 5 * kNsPerMs;
  static constexpr uint64_t kReclaimSlotsMax = 1024;

  void Run();
  uint32_t LookLocked();  // one look at every ring; requests served
  Step ServeOneLocked(Served& served);
  void Answer(Served& served);
  void Reply(Served& served, Outcome outcome, LeaseId lease, const SlotRef* slots, uint32_t slot_count,
             const Grant* grants, uint32_t grant_count);
  void CloseLocked(Served& served);
  void KeepHouse(uint64_t now_ns);
  void MakeRoom(uint64_t now_ns);
  void Sleep(uint64_t now_ns);
  // Held by whoever changes `rings_`; the serving thread steps aside for it between looks.
  class Change;

  Store& store_;
  Doorbell doorbell_;
  std::mutex mutex_;
  std::atomic<uint32_t> changes_waiting_{0};
  std::vector<std::unique_ptr<Served>> rings_;  // guarded by mutex_
  RequestReader reader_;                        // guarded by mutex_
  std::thread thread_;
  std::atomic<bool> stop_{false};
  Pace pace_;               // the thread's own
  uint64_t tick_ns_ = 0;    // the thread's own: when KeepHouse is due
  bool announced_ = false;  // the thread's own: sleep is announced in the rings

  std::atomic<uint64_t> sessions_{0}, requests_{0}, posted_failures_{0}, sleeps_{0}, rings_closed_{0},
      busy_ns_{0}, room_ns_{0};  // on free slots for the next reserve, between requests
};

}  // namespace tpu_sync_native
