// This host's lease in one namespace: made with the host's directory, moved by every heartbeat.
//
//   Beat   1 read the lease: is it still the one that was written last?   gone, or another's -> adopted
//          2 publish it with the counter moved                            gone               -> adopted
//
// A host that was paused for longer than the others wait finds its directory renamed: they took it for dead.
// Its segments are the adopter's; it goes on under a new id, in a new directory, at once. What its writer
// still puts into the old open file harms nobody: the adopter believes only records that verify, and nobody
// looks for those.
#pragma once

#include <atomic>
#include <cstdint>

#include "storage/context.h"

namespace tpu_sync_native {

// Beats of one namespace are not called at the same time.
class OwnLease {
 public:
  IoError Beat(StorageContext& context, StorageNamespace& ns, bool leaving);
  // A lease was published under the host's present id: what is adopted now has a keeper.
  bool stands() const { return stands_.load(std::memory_order_acquire); }

 private:
  enum class Check : uint8_t { kOurs, kLost, kUnknown };
  Check CheckOurs(StorageContext& context, const std::string& path, IoError* error) const;
  IoError WasAdopted(StorageContext& context, const StorageNamespace& ns, bool* adopted) const;
  IoError MakeHostDirectory(StorageContext& context, StorageNamespace& ns);
  void BecomeAnother(StorageContext& context, StorageNamespace& ns);

  uint8_t host_id_[16] = {};
  bool directory_made_ = false;
  uint64_t confirmed_ = 0;  // the counter of the last publish that succeeded; 0: none yet
  uint64_t attempted_ = 0;  // of the last one that was tried: a publish may have happened though it failed
  std::atomic<bool> stands_{false};
};

// A random id, as StorageOptions::host_id is.
void MakeHostId(uint8_t id[16]);

}  // namespace tpu_sync_native
