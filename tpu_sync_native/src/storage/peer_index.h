// Indexes of a host's directory into the catalog. Nothing in a file is believed that does not fit where it
// lies.
#pragma once

#include <cstdint>
#include <string>

#include "storage/context.h"
#include "storage/peer_view.h"

namespace tpu_sync_native {

// The bounds of one poll.
struct PollBudget {
  uint64_t index_bytes = 512 << 20;  // of index files that are read
  bool spent() const { return index_bytes == 0; }
  void Take(uint64_t bytes) { index_bytes -= bytes < index_bytes ? bytes : index_bytes; }
};

struct DirectoryLook {
  StorageContext& context;
  StorageNamespace& ns;
  SeenDirectory& seen;
  const std::string path;  // "v1/<ns>/hosts/<name>"
  const bool mine;         // adopted by this host: it seals, deletes and tidies here
  PollBudget& budget;
};

// Lists the directory, loads indexes that were not loaded, retires segments that are gone. seen.complete says
// whether all of it could be done.
IoError LookIntoDirectory(const DirectoryLook& look);
// Records of sealed segments that a full catalog refused, as far as it has room again.
void FindRefused(StorageContext& context, StorageNamespace& ns);
// One index file: `number` of a sealed segment, 0 for tail.idx. False: come back later.
bool LoadIndex(const DirectoryLook& look, uint64_t number, IoError* error);

}  // namespace tpu_sync_native
