// What the demoter's tasks do, on threads of the control pool.
#include <algorithm>
#include <utility>

#include "storage/demoter_impl.h"
#include "storage/live_cells.h"

namespace tpu_sync_native {

void Demoter::Impl::Prepare(const std::shared_ptr<Lane>& lane) {
  const Codec codec = lane->ns->codec_now();
  std::unique_ptr<DemoteBatch> batch;
  try {
    batch = std::make_unique<DemoteBatch>(pins);
    {
      const std::lock_guard lock(mutex);
      if (!lane->spare.empty()) {
        batch->records = std::move(lane->spare.back());
        lane->spare.pop_back();
      }
    }
    if (batch->records == nullptr || batch->records->codec() != codec) {
      const StorageOptions& options = context->options;
      batch->records = std::make_unique<RecordBatch>(lane->chunk_bytes, codec, options.io_bytes,
                                                     options.segment_bytes, options.sealer, lane->ns->id);
    }
    Fill(*lane, *batch);
    TryCodecs(*lane, *batch);
  } catch (...) {            // no memory: what was taken is dropped
    if (batch == nullptr) {  // nothing was; the next tick tries again
      const std::lock_guard lock(mutex);
      lane->preparing = false;
      AdvanceLocked(*lane);
      return;
    }
    Count(context->counters.dropped_error, batch->pinned.size());
    batch->records = nullptr;
  }
  const uint64_t size = batch->records == nullptr ? 0 : batch->records->size();
  // Chunks that are copied forward need no room: the segment they come from makes more than they take.
  const bool copies = !batch->held.empty();
  if (size != 0 && !context->TakeRoom(*lane->ns, batch->records->stored_bytes()) && !copies) {
    Count(context->counters.dropped_full, batch->pinned.size());
    batch->records->Clear();
  }
  Trash trash;
  const std::lock_guard lock(mutex);
  lane->preparing = false;
  if (batch->records == nullptr || batch->records->size() == 0 || stopping) {
    trash.push_back(std::move(batch));
  } else {
    batch->through = lane->taken;
    lane->ready.push_back(std::move(batch));
  }
  AppendLocked(lane, &trash);
  PrepareLocked(lane);
  AdvanceLocked(*lane);
}

// Takes from the queue until the batch is full or the queue is empty.
void Demoter::Impl::Fill(Lane& lane, DemoteBatch& batch) {
  StorageNamespace& ns = *lane.ns;
  batch.epoch = ns.epoch.load();  // before any pin: what is pinned is of this epoch or an earlier one
  if (ns.clearing.load()) return;
  std::vector<uint32_t> slots;
  while (batch.records->size() < batch.records->size_max()) {
    const size_t room = batch.records->size_max() - batch.records->size();
    uint32_t store_epoch = 0;
    CommitTime time;
    CopyItem copy;
    slots.clear();
    {
      const std::lock_guard lock(mutex);
      if (!context->admitting.load()) DropQueueLocked(lane, context->counters.dropped_full);
      if (!lane.items.empty()) {
        DemoteItem& item = lane.items.front();
        time = item.time;
        store_epoch = item.store_epoch;
        const size_t count = std::min(room, item.slots.size() - item.next);
        slots.assign(item.slots.begin() + static_cast<ptrdiff_t>(item.next),
                     item.slots.begin() + static_cast<ptrdiff_t>(item.next + count));
        item.next += count;
        if (item.next == item.slots.size()) lane.items.pop_front();
        lane.taken += count;
        queued_bytes -= count * lane.chunk_bytes;
      } else if (!lane.copies.empty()) {
        copy = std::move(lane.copies.front());
        lane.copies.pop_front();
        queued_bytes -= lane.chunk_bytes;
        copied_bytes -= lane.chunk_bytes;
      } else {
        return;
      }
    }
    if (copy.bytes != nullptr) {
      if (copy.epoch == batch.epoch && batch.records->Add(copy.key, copy.bytes.get()))
        batch.held.push_back(std::move(copy.bytes));
    } else if (!time.IsOf(ns, batch.epoch)) {
      Count(context->counters.dropped_evicted, slots.size());
    } else {
      AddPinned(lane, batch, slots, store_epoch);
    }
  }
}

// Those of the slots that are still what was committed, and are not on storage yet.
void Demoter::Impl::AddPinned(Lane& lane, DemoteBatch& batch, std::span<const uint32_t> slots,
                              uint32_t epoch) {
  const std::vector<DemoteChunk> chunks = pins->Pin(lane.ns->ns, epoch, slots);
  Count(context->counters.dropped_evicted, slots.size() - chunks.size());
  std::vector<DemoteChunk> present;
  LiveCells cells(*context, *lane.ns);
  batch.pinned.reserve(batch.pinned.size() + chunks.size());
  for (const DemoteChunk& chunk : chunks) {
    const std::string_view key(reinterpret_cast<const char*>(chunk.key), chunk.key_bytes);
    if (cells.Find(key) != 0) {
      present.push_back(chunk);
      continue;
    }
    batch.pinned.push_back(chunk);
    batch.records->Add(key, reinterpret_cast<const uint8_t*>(arena->data()) + chunk.ref.offset);
  }
  Count(context->counters.dropped_present, present.size());
  pins->End(present);
}

void Demoter::Impl::TryCodecs(const Lane& lane, const DemoteBatch& batch) {
  if (lane.ns->trial == nullptr) return;
  std::vector<const uint8_t*> chunks;
  chunks.reserve(batch.pinned.size());
  for (const DemoteChunk& chunk : batch.pinned)
    chunks.push_back(reinterpret_cast<const uint8_t*>(arena->data()) + chunk.ref.offset);
  lane.ns->trial->Look(chunks, lane.chunk_bytes, context->speeds());
}

// A turn goes on as long as nobody else waits for one and no promote is under way: between two writes no
// other thread has to wake up.
void Demoter::Impl::Append(const std::shared_ptr<Lane>& lane) {
  for (bool more = true; more;) {
    AppendStep step = TakeStep(lane);
    RunStep(*lane, step);
    more = EndStep(lane, step);
  }
}

AppendStep Demoter::Impl::TakeStep(const std::shared_ptr<Lane>& lane) {
  AppendStep step;
  const std::lock_guard lock(mutex);
  lane->append_began_ms = SteadyNowMs();
  if (!stopping && !lane->ready.empty()) {
    step.batch = std::move(lane->ready.front());
    lane->ready.pop_front();
    PrepareLocked(lane);
  }
  step.sync = std::exchange(lane->sync_wanted, false);
  step.seal = std::exchange(lane->seal_wanted, false);
  return step;
}

void Demoter::Impl::RunStep(Lane& lane, AppendStep& step) {
  const uint64_t began_ns = SteadyNs();
  try {
    if (lane.writer == nullptr) lane.writer = std::make_unique<SegmentWriter>(context, lane.ns);
    if (step.batch != nullptr) {
      Write(lane, *step.batch);
      const std::lock_guard lock(mutex);
      lane.append_began_ms = SteadyNowMs();
    }
    if (step.seal) {
      lane.writer->Seal();
    } else if (step.sync || lane.writer->unsynced_bytes() >= context->options.sync_bytes) {
      lane.writer->Sync();
    }
  } catch (...) {  // no memory
    Count(context->counters.dropped_error, step.batch == nullptr ? 0 : step.batch->records->size());
  }
  const uint64_t spent_ns = SteadyNs() - began_ns;
  Count(context->counters.demote_ns, spent_ns);
  MeasureSpeed(lane, spent_ns);
}

// True: another step of this turn follows.
bool Demoter::Impl::EndStep(const std::shared_ptr<Lane>& lane, AppendStep& step) {
  Trash trash;
  std::unique_ptr<RecordBatch> records;
  if (step.batch != nullptr) records = std::move(step.batch->records);
  const uint64_t through = step.batch == nullptr ? 0 : step.batch->through;
  step.batch = nullptr;  // the pins end before anybody hears that it was written
  const std::lock_guard lock(mutex);
  lane->appended = std::max(lane->appended, through);
  if (records != nullptr && (lane->queued() || lane->preparing || !lane->ready.empty())) {
    records->Clear();
    lane->spare.push_back(std::move(records));
  } else if (!lane->preparing) {
    lane->spare.clear();
  }
  const bool wanted = !lane->ready.empty() || lane->sync_wanted || lane->seal_wanted;
  if (wanted && turns.empty() && !YieldsLocked() && !stopping && !lane->hangs) {
    SettleLocked(*lane);
    return true;
  }
  EndTurnLocked(*lane);
  AppendLocked(lane, &trash);
  NextTurnsLocked(&trash);
  return false;
}

void Demoter::Impl::Write(Lane& lane, DemoteBatch& batch) {
  const IoError error = lane.writer->Append(*batch.records, batch.epoch);
  if (error.ok()) lane.speed_bytes += batch.records->stored_bytes();
  if (error.ok()) return;
  Count(error.no_space() ? context->counters.dropped_full : context->counters.dropped_error,
        batch.records->size());
  if (error.no_space() && no_space) no_space();
}

// From sync to sync: where appends go into a cache, the sync is what takes the time.
void Demoter::Impl::MeasureSpeed(Lane& lane, uint64_t ns) {
  lane.speed_ns += ns;
  if (lane.writer == nullptr || lane.writer->unsynced_bytes() != 0) return;
  if (lane.speed_bytes >= context->telling_bytes()) context->writes.Add(lane.speed_bytes, lane.speed_ns);
  lane.speed_bytes = lane.speed_ns = 0;
}

}  // namespace tpu_sync_native
