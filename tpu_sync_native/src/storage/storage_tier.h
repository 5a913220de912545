// The tier below DRAM: log-structured segments on a shared directory.
//
//   Store::Commit -> Committed -> Demoter -> SegmentWriter -> seg-<n>.kvs, tail.idx      (control threads)
//   Store::Lease  -> Find (catalog), Promote -> Promoter -> ReadChunks -> the slot       (load threads)
//   every poll_ms: Peers (heartbeat, other hosts' indexes, adoption), Reclaimer          (control threads)
//
// A hung or failing medium stops none of the store's calls: everything that touches the medium is a task of
// an IoPool with a breaker, and the catalog stops serving while it is down.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena.h"
#include "storage/context.h"
#include "store/lower_tier.h"
#include "store/store.h"

namespace tpu_sync_native {

class StorageTier final : public LowerTier {
 public:
  // catalog_fd: an empty file (memfd), sized here. Touches the medium for nothing yet. Throws
  // std::invalid_argument naming the option.
  StorageTier(std::shared_ptr<FileSystem> files, Store& store, std::shared_ptr<Arena> arena, int catalog_fd,
              const StorageOptions& options);
  ~StorageTier() override;  // Stop(0)

  // Whether the root can be used; reads its marker, kvtier.json, or makes it; within wait_ms. "" or why not,
  // in words.
  std::string CheckRoot(uint64_t wait_ms);
  void Start();  // from now on the store's lower tier
  // Leaves in order as far as the medium answers within wait_ms; joins no thread that hangs. False: one does,
  // or not all was written in time.
  bool Stop(uint64_t wait_ms);

  // The daemon's namespaces. Directory and meta.json are made in the background. Known ones stay as they are.
  // No codec: whichever pays, found out (CodecTrial).
  // told: what the engine knows of an earlier daemon's time (NamespaceRecord::epoch_below), 0 if nothing; it
  // then goes on in that epoch, and a clear that was not confirmed is made up for.
  void OpenNamespace(uint32_t ns, std::string_view id, uint64_t chunk_bytes, std::string meta_json,
                     std::optional<Codec> codec, uint64_t told = 0);
  // After Store::ClearNamespace, from which on nothing is leased of it: now nothing is found of it either.
  // The root learns of it as soon as it answers. Walks over the whole catalog: 100 ms for 16 M records.
  void ClearNamespace(uint32_t ns);
  // Of one that is not open here: makes its next epoch on the root, within wait_ms. Whoever opens it from
  // then on finds nothing of before. *made: which one, 0 when the root has nothing of the namespace. "" or
  // why not.
  std::string ClearUnopened(std::string_view id, uint64_t wait_ms, uint64_t* made);
  bool Flush(uint64_t wait_ms);  // see Demoter

  uint32_t Find(uint32_t ns, const KeyBatch& keys, uint32_t first, Location* where) const override;
  bool Promote(uint32_t ns, std::span<const PromoteChunk> chunks, Urgency urgency) override;
  void Committed(uint32_t ns, uint32_t epoch, std::span<const uint32_t> slots) override;
  void Cleared(uint32_t ns) override;
  uint64_t EpochWord(uint32_t ns) const override;
  bool Refuses(uint32_t ns) const override;
  void Hurry(std::span<const uint32_t> slots) override;

  std::vector<Counter> Stats() const;  // names in storage/stats.h
  // "ok", "full: ...", "failing: ...", "down: ...": for people, /readyz and stats.
  std::string state() const;
  struct NamespaceState {
    uint32_t ns;
    std::string state;  // "ready", "apart: ..." (see epochs.h), "opening[: ...]", "clearing", "refused: ..."
    uint64_t records, bytes, hosts;
    CodecTrial::Choice codec;  // with figures where it was found out
  };
  std::vector<NamespaceState> Namespaces() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tpu_sync_native
