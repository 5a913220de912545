// Makes freed space usable: whole segments of this host's own, the coldest first, until the root and every
// namespace are below their quota and the file system is above its watermark. Chunks that were used lately are
// copied forward before their segment goes, at most copy_forward_share of its bytes. Each host frees its own
// share, so nobody coordinates: a host above quota / hosts goes first.
#pragma once

#include <cstdint>
#include <memory>

#include "storage/context.h"
#include "storage/demoter.h"
#include "storage/peers.h"

namespace tpu_sync_native {

class Reclaimer {
 public:
  Reclaimer(std::shared_ptr<StorageContext> context, Peers& peers, Demoter& demoter);
  ~Reclaimer();
  // One round on a control-pool thread. Also opens and closes admission (StorageContext::admitting).
  IoError Round(uint64_t now_ms);
  // An append found no space: closes admission now, a round follows.
  void NoSpace();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
