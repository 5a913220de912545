#include "copy/job.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tpu_sync_native {
namespace {

[[noreturn]] void Refuse(const std::string& what) { throw std::invalid_argument("submit: " + what); }

void CheckShapes(const CopyRequest& request) {
  const size_t chunks = request.slots.size();
  if (request.generations.size() != chunks || request.offsets.size() != chunks) {
    Refuse("slots, generations and offsets have " + std::to_string(chunks) + ", " +
           std::to_string(request.generations.size()) + " and " + std::to_string(request.offsets.size()) +
           " entries, not the same number");
  }
  if (request.block_ids.size() != request.block_positions.size()) {
    Refuse("block_ids and block_positions have " + std::to_string(request.block_ids.size()) + " and " +
           std::to_string(request.block_positions.size()) + " entries, not the same number");
  }
  if (request.layouts.size() != request.group_sizes.size()) {
    Refuse("layouts and group_sizes have " + std::to_string(request.layouts.size()) + " and " +
           std::to_string(request.group_sizes.size()) + " entries, not the same number");
  }
}

// chunk_bytes: 0 when the chunk is lost; then it is not copied.
void CheckSlot(uint64_t offset, uint64_t chunk_bytes, const CopyLayout& layout, uint64_t arena_bytes) {
  const uint64_t part =
      layout.chunk_offset() + layout.chunk_bytes();  // fits the arena: checked by CopyLayout
  if (chunk_bytes != 0 && part > chunk_bytes) {
    Refuse("a layout that takes " + std::to_string(part) + " bytes of a slot, whose chunk has " +
           std::to_string(chunk_bytes) + " bytes");
  }
  if (offset > arena_bytes - part) {
    Refuse("offsets has " + std::to_string(offset) + "; with " + std::to_string(part) +
           " bytes a chunk that is outside the arena of " + std::to_string(arena_bytes) + " bytes");
  }
}

}  // namespace

CopyJob::CopyJob(const CopyRequest& request, const LayoutList& layouts, uint64_t arena_bytes,
                 const SlotGuard* guard)
    : id_(request.job), direction_(request.direction) {
  CheckShapes(request);
  chunks_.reserve(request.slots.size());
  bool pending = false;
  for (size_t i = 0; i < request.slots.size(); ++i) {
    Chunk chunk{request.slots[i], request.generations[i], request.offsets[i], UINT64_MAX, false};
    if (guard != nullptr) {
      chunk.bytes = guard->ChunkBytes(chunk.slot, chunk.generation, chunk.offset);
      chunk.pending = direction_ == CopyDirection::kLoad && chunk.bytes != 0 &&
                      guard->ReadinessOf(chunk.slot, chunk.generation) == Readiness::kPending;
    }
    pending |= chunk.pending;
    chunks_.push_back(chunk);
  }
  invalid_ = std::make_unique<std::atomic<bool>[]>(chunks_.size());
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].bytes == 0) MarkInvalid(i);
  }
  size_t first = 0;
  for (size_t group = 0; group < request.layouts.size(); ++group) {
    const int64_t layout = request.layouts[group];
    const int64_t size = request.group_sizes[group];
    if (layout < 0 || static_cast<uint64_t>(layout) >= layouts.size()) {
      Refuse("layouts has " + std::to_string(layout) + ", which add_layout never gave");
    }
    if (size < 0 || static_cast<uint64_t>(size) > request.block_ids.size() - first) {
      Refuse("group_sizes has " + std::to_string(size) + " where " +
             std::to_string(request.block_ids.size() - first) + " blocks are left");
    }
    layouts_.push_back(layouts[layout]);
    AddGroup(request, static_cast<uint32_t>(group), first, size, arena_bytes);
    first += size;
  }
  if (first != request.block_ids.size()) {
    Refuse("group_sizes counts " + std::to_string(first) + " blocks, block_ids has " +
           std::to_string(request.block_ids.size()));
  }
  if (!pending) ready_run_ = runs_.size();
  bytes_left = bytes_;
}

CopyJob::CopyJob(std::span<const uint64_t> rows) {
  for (size_t i = 0; i + 2 < rows.size(); i += 3) {
    if (rows[i + 2] == 0) continue;
    runs_.push_back({.begin = bytes_});
    rows_.push_back({rows[i], reinterpret_cast<uint8_t*>(rows[i + 1]), rows[i + 2]});
    bytes_ += rows[i + 2];
  }
  ready_run_ = runs_.size();
  bytes_left = bytes_;
}

void CopyJob::AddGroup(const CopyRequest& request, uint32_t group, size_t first, size_t count,
                       uint64_t arena_bytes) {
  const CopyLayout& layout = *layouts_[group];
  const uint64_t per_chunk = layout.blocks_per_chunk();
  const uint64_t positions = per_chunk * chunks_.size();
  const size_t first_run = runs_.size();
  for (size_t i = first; i < first + count; ++i) {
    const int64_t block = request.block_ids[i];
    const int64_t position = request.block_positions[i];
    if (block < 0 || static_cast<uint64_t>(block) >= layout.num_blocks()) {
      Refuse("block_ids has " + std::to_string(block) + ", outside 0.." +
             std::to_string(layout.num_blocks() - 1));
    }
    if (position < 0 || static_cast<uint64_t>(position) >= positions) {
      Refuse("block_positions has " + std::to_string(position) + ", outside the " +
             std::to_string(chunks_.size()) + " chunks of " + std::to_string(per_chunk) + " blocks");
    }
    const auto chunk = static_cast<uint32_t>(position / per_chunk);
    const auto in_chunk = static_cast<uint32_t>(position % per_chunk);
    if (runs_.size() > first_run) {
      BlockRun& last = runs_.back();
      if (last.chunk == chunk && last.first_in_chunk + last.count == in_chunk &&
          last.first_block + last.count == static_cast<uint64_t>(block)) {
        ++last.count;
        bytes_ += layout.block_bytes();
        continue;
      }
    }
    if (runs_.size() == first_run || runs_.back().chunk != chunk) {
      CheckSlot(chunks_[chunk].offset, chunks_[chunk].bytes, layout, arena_bytes);
    }
    runs_.push_back({group, chunk, in_chunk, 1, static_cast<uint64_t>(block), bytes_});
    bytes_ += layout.block_bytes();
  }
}

size_t CopyJob::FirstRun(uint64_t byte) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), byte,
                                      [](uint64_t value, const BlockRun& run) { return value < run.begin; });
  return static_cast<size_t>(after - runs_.begin()) - 1;
}

template <typename Visit>
void CopyJob::ForEachRun(uint64_t begin, uint64_t end, Visit&& visit) const {
  for (size_t i = FirstRun(begin); i < runs_.size() && runs_[i].begin < end; ++i) {
    const uint64_t run_begin = runs_[i].begin;
    const uint64_t run_end = i + 1 < runs_.size() ? runs_[i + 1].begin : bytes_;
    visit(i, std::max(begin, run_begin) - run_begin, std::min(end, run_end) - run_begin);
  }
}

uint64_t CopyJob::AdvanceReady(const SlotGuard* guard) {
  for (; ready_run_ < runs_.size(); ++ready_run_) {
    Chunk& chunk = chunks_[runs_[ready_run_].chunk];
    if (!chunk.pending) continue;
    if (guard->ReadinessOf(chunk.slot, chunk.generation) == Readiness::kPending) {
      return runs_[ready_run_].begin;
    }
    chunk.pending = false;
  }
  return bytes_;
}

void CopyJob::LosePending() {
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].pending) MarkInvalid(i);
    chunks_[i].pending = false;
  }
}

void CopyJob::LoseRest() {
  if (next_byte == bytes_) return;
  cut = true;
  // Rows have no chunks.
  for (size_t i = FirstRun(next_byte); i < runs_.size() && rows_.empty(); ++i) MarkInvalid(runs_[i].chunk);
  bytes_left -= bytes_ - next_byte;
  next_byte = bytes_;
}

void CopyJob::LoseAll() {
  for (uint32_t i = 0; i < chunks_.size(); ++i) MarkInvalid(i);
  LoseRest();
}

bool CopyJob::StillValid(uint32_t chunk, const SlotGuard* guard) const {
  if (invalid_[chunk].load(std::memory_order_relaxed)) return false;
  return guard == nullptr || guard->Unchanged(chunks_[chunk].slot, chunks_[chunk].generation, direction_);
}

uint64_t CopyJob::CopyPiece(uint64_t begin, uint64_t end, const CopyContext& with, const CopyHold* buffers) {
  ExtentList* const scratch = with.scratch;
  uint64_t extents = 0;
  bool moved = true;
  const auto flush = [&] {
    if (scratch->empty()) return;
    extents += scratch->view().size();
    const bool bounded = with.backend->capabilities().buffers && buffers != nullptr;
    const auto inside = [&](const CopyExtent& extent) { return !bounded || InBuffer(extent, *buffers); };
    moved = moved && !with.given_up->load() && std::ranges::all_of(scratch->view(), inside) &&
            with.backend->Copy(direction_, scratch->view(), buffers);
    scratch->clear();
  };
  const auto add = [&](uint64_t device, uint8_t* target, uint64_t bytes) {
    if (scratch->full()) flush();
    scratch->Add(device, target, bytes);
  };

  if (!rows_.empty()) {
    ForEachRun(begin, end, [&](size_t i, uint64_t from, uint64_t to) {
      add(rows_[i].device + from, rows_[i].arena + from, to - from);
    });
    flush();
    return extents;
  }

  // Before: do not write into a slot that is no longer ours, nor copy from one that has become another
  // chunk's.
  uint32_t checked = UINT32_MAX;
  bool valid = false;
  ForEachRun(begin, end, [&](size_t i, uint64_t from, uint64_t to) {
    const BlockRun& run = runs_[i];
    if (run.chunk != checked) {
      checked = run.chunk;
      valid = StillValid(run.chunk, with.guard);
      if (!valid) MarkInvalid(run.chunk);
    }
    if (!valid) return;
    layouts_[run.layout]->ForEachExtent(run, chunks_[run.chunk].offset, from, to,
                                        [&](uint64_t device, uint64_t offset, uint64_t bytes) {
                                          with.pages->Touch(offset, bytes);
                                          add(device, with.arena + offset, bytes);
                                        });
  });
  flush();

  // After: a generation only grows, so an unchanged one proves every byte read since the check before.
#if !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  checked = UINT32_MAX;
  ForEachRun(begin, end, [&](size_t i, uint64_t, uint64_t) {
    const uint32_t chunk = runs_[i].chunk;
    if (chunk == checked) return;
    checked = chunk;
    if (!moved || !StillValid(chunk, with.guard)) MarkInvalid(chunk);
  });
  return extents;
}

CopyCompletion CopyJob::Finish() const {
  CopyCompletion done;
  done.job = id_;
  done.ok = true;
  done.chunks_valid = static_cast<uint32_t>(chunks_.size());
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (!invalid_[chunk].load(std::memory_order_relaxed)) continue;
    done.ok = false;
    done.chunks_valid = chunk;
    break;
  }
  for (const BlockRun& run : runs_) {
    if (!rows_.empty()) break;
    if (invalid_[run.chunk].load(std::memory_order_relaxed)) continue;
    done.bytes += run.count * layouts_[run.layout]->block_bytes();
  }
  done.seconds = std::chrono::duration<double>(Clock::now() - submitted_).count();
  return done;
}

}  // namespace tpu_sync_native
