// Makes freed space usable: whole segments of this host's own, the oldest first, until the root and every
// namespace are below their quota and the file system is above its watermark. Chunks that were used lately
// are copied forward before their segment goes, at most copy_forward_share of its bytes; a segment of which
// more was used is spared and counts as young again. Each host frees its own share, so nobody coordinates: a
// host above quota / hosts goes first, and when that was not enough for some rounds, everybody in proportion
// to what he has. What others read from a segment, its owner does not see.
//
// A quota is kept a few per cent free (see usage.h), and what is free is shared out anew in every round as
// room to append: hosts see each other with a delay, and must not fill the same space twice. Segments of
// cleared epochs go first, then what nobody has open any more (strangers.h).
//
// A segment goes in this order: no cell names it any more (misses at once), its index is removed, then its
// file. Who still reads it, reads on or misses.
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
  // One round on a control-pool thread, after a poll; now_ms is of the steady clock. Also opens and closes
  // admission, and sets the room to append.
  IoError Round(uint64_t now_ms);
  // An append found no space, or a medium that cannot be written: closes admission now. It is tried again
  // after a pause that doubles while the attempts fail.
  void NoSpace();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
