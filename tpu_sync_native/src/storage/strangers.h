// Namespaces on the root that this host does not serve: nobody has opened them here, or they were refused.
// Their bytes count towards the root's quota, and what dead hosts left in those that no host has open any
// more (a model that is served no longer) is freed first.
//
// Looked at seldom: one listing of v1/, and per such namespace one listing and one small read a host.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "storage/context.h"
#include "storage/peer_view.h"

namespace tpu_sync_native {

// One caller at a time.
class Strangers {
 public:
  // Looks, if it is time.
  IoError Look(StorageContext& context, uint64_t now_ms);
  // As of the last look, without those that were opened since: who has one open counts it himself.
  uint64_t bytes(const StorageContext& context) const;
  // Removes what is abandoned until so many bytes are free; returns how many are. Only files of ours go.
  uint64_t Free(StorageContext& context, uint64_t bytes, IoError* error);

 private:
  struct Watch {
    uint64_t counter = 0;
    uint64_t since_ms = 0;  // the counter has not moved since then
    uint64_t bytes = 0;
    bool listed = false;
    bool abandoned = false;
  };
  struct Place {  // a namespace
    uint8_t id[16] = {};
    bool listed = false;
    std::map<std::string, Watch> directories;  // below hosts/
  };

  IoError LookAt(StorageContext& context, Place& place, uint64_t now_ms);
  uint64_t FreeDirectory(StorageContext& context, const Place& place, const std::string& name,
                         IoError* error);

  std::map<std::string, Place> places_;
  uint64_t looked_ms_ = 0;
};

}  // namespace tpu_sync_native
