#include "storage/segment_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/futex.h"
#include "segment/payload_codec.h"

namespace tpu_sync_native {
namespace {

// An I/O with more parts than the kernel takes at once would be several.
constexpr size_t kChunksMax = 300;  // header, payload and gap of each; IOV_MAX is 1024

// Aligned memory that a thread keeps for its next read: headers, encoded payloads, bytes read over.
class Scratch {
 public:
  // Room for so many bytes, what was in it is lost; null when there is no memory.
  uint8_t* Get(uint64_t bytes) {
    if (bytes > bytes_) {
      bytes_ = 0;
      data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kStorageUnit, RoundToUnit(bytes))));
      if (data_ != nullptr) bytes_ = RoundToUnit(bytes);
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(uint8_t* data) const { std::free(data); }
  };
  std::unique_ptr<uint8_t, Free> data_;
  uint64_t bytes_ = 0;
};

struct ThreadScratch {
  Scratch records;  // headers, and payloads that are not read into their slots
  Scratch gaps;     // bytes between records; every gap lands in the same place
  Scratch encoded;  // one payload that has to leave its slot to be decoded into it
  std::vector<IoVec> parts;
};

class Reader {
 public:
  Reader(StorageContext& context, Segment& segment, std::span<const WantedChunk> wanted,
         const std::function<void(size_t, ReadVerdict)>& done, IoPool* pool)
      : context_(context),
        segment_(segment),
        wanted_(wanted),
        done_(done),
        pool_(pool == nullptr ? *context.loads : *pool),
        slot_bytes_(RoundToUnit(segment.identity.chunk_bytes)) {}

  void Run() {
    for (size_t first = 0; first < wanted_.size();) {
      if (segment_.retired.load(std::memory_order_acquire)) {
        done_(first++, ReadVerdict::kMissing);
      } else if (!Plausible(wanted_[first])) {
        Reject(first++, ReadVerdict::kCorrupt);
      } else {
        const size_t count = PieceFrom(first);
        ReadPiece(first, count);
        first += count;
        IoPool::Progress();
      }
    }
  }

 private:
  // Whether the place can be one in this segment: what it says bounds what is written to the target.
  bool Plausible(const WantedChunk& chunk) const {
    return chunk.offset >= kStorageUnit && chunk.offset % kStorageUnit == 0 &&
           chunk.offset < kStoredSegmentBytesMax && chunk.stored_bytes > 0 &&
           chunk.stored_bytes % kStorageUnit == 0 && chunk.stored_bytes <= slot_bytes_;
  }

  // How many chunks one I/O reads.
  size_t PieceFrom(size_t first) const {
    size_t count = 1;
    const uint64_t from = wanted_[first].offset;
    for (size_t i = first + 1; i < wanted_.size() && count < kChunksMax; ++i, ++count) {
      const WantedChunk& chunk = wanted_[i];
      if (!Plausible(chunk) || !ReadsOn(EndOf(wanted_[i - 1]), chunk.offset)) break;
      if (EndOf(chunk) - from > context_.options.io_bytes) break;
    }
    return count;
  }

  bool IntoSlot(const WantedChunk& chunk) const { return chunk.stored_bytes == slot_bytes_; }

  void ReadPiece(size_t first, size_t count) {
    const IoError error = Read(first, count);
    if (error.ok()) {
      uint8_t* record = scratch_.records.Get(0);
      for (size_t i = first; i < first + count; ++i) {
        Settle(i, record);
        record += kStorageUnit + (IntoSlot(wanted_[i]) ? 0 : wanted_[i].stored_bytes);
      }
      return;
    }
    if (count == 1 || error.not_found()) {
      for (size_t i = first; i < first + count; ++i) Fail(i, error);
      return;
    }
    // One bad place must not cost its neighbours: each alone, until a second one says that it is not one
    // place.
    int failures = 0;
    for (size_t i = first; i < first + count; ++i) {
      IoPool::Progress();
      const IoError again = failures < 2 ? Read(i, 1) : error;
      if (again.ok()) {
        Settle(i, scratch_.records.Get(0));
      } else {
        if (again.code != IoError::kShort) ++failures;
        Fail(i, again);
      }
    }
  }

  // Headers, one behind the other in scratch memory, each followed by its payload unless that goes to its
  // slot.
  IoError Read(size_t first, size_t count) {
    uint64_t scratch_bytes = 0;
    uint64_t gap_bytes_max = 0;
    for (size_t i = first; i < first + count; ++i) {
      scratch_bytes += kStorageUnit + (IntoSlot(wanted_[i]) ? 0 : wanted_[i].stored_bytes);
      if (i > first) gap_bytes_max = std::max(gap_bytes_max, wanted_[i].offset - EndOf(wanted_[i - 1]));
    }
    uint8_t* record = scratch_.records.Get(scratch_bytes);
    uint8_t* const gap = scratch_.gaps.Get(gap_bytes_max);
    if (record == nullptr || (gap == nullptr && gap_bytes_max > 0)) return {ENOMEM};
    std::vector<IoVec>& parts = scratch_.parts;
    parts.clear();
    uint64_t at = wanted_[first].offset;
    for (size_t i = first; i < first + count; ++i) {
      const WantedChunk& chunk = wanted_[i];
      if (chunk.offset > at) parts.push_back({gap, chunk.offset - at});
      at = EndOf(chunk);
      if (IntoSlot(chunk)) {
        parts.push_back({record, kStorageUnit});
        parts.push_back({chunk.target, chunk.stored_bytes});
        record += kStorageUnit;
      } else {
        parts.push_back({record, kStorageUnit + chunk.stored_bytes});
        record += kStorageUnit + chunk.stored_bytes;
      }
    }
    const uint64_t began_ns = SteadyNs();
    IoError error = ReadOpen(wanted_[first].offset, parts);
    const uint64_t bytes = at - wanted_[first].offset;
    if (error.ok() && bytes >= context_.telling_bytes()) context_.reads.Add(bytes, SteadyNs() - began_ns);
    // The descriptor may be of a file that was replaced or has grown elsewhere: once more with a new one.
    if (error.not_found() || error.code == IoError::kShort) {
      context_.segments->DropFile(segment_.id);
      error = ReadOpen(wanted_[first].offset, parts);
    }
    pool_.Report(error);
    return error;
  }

  IoError ReadOpen(uint64_t offset, std::span<const IoVec> parts) {
    std::shared_ptr<ReadFile> file;
    const IoError error = context_.segments->OpenFile(segment_, &file);
    return error.ok() ? file->Read(offset, parts) : error;
  }

  // The record is in memory: is it the chunk?
  void Settle(size_t i, uint8_t* record) {
    const ReadVerdict verdict = Verify(wanted_[i], record);
    if (verdict == ReadVerdict::kCorrupt) {
      Reject(i, verdict);
    } else {
      done_(i, verdict);
    }
  }

  ReadVerdict Verify(const WantedChunk& chunk, uint8_t* record) {
    RecordHeader header;
    if (!CheckRecordHeader({record, kStorageUnit}, segment_.identity, chunk.offset, &header).empty()) {
      return ReadVerdict::kCorrupt;
    }
    if (KeyOf(header) != chunk.key || RoundToUnit(header.stored_bytes) != chunk.stored_bytes) {
      return ReadVerdict::kCorrupt;
    }
    const Codec codec = static_cast<Codec>(header.codec);
    uint8_t* stored = IntoSlot(chunk) ? chunk.target : record + kStorageUnit;
    const Sealer* const sealer = context_.options.sealer.get();
    if (sealer == nullptr && header.seal != static_cast<uint32_t>(Seal::kNone)) return ReadVerdict::kMissing;
    if (sealer != nullptr && !sealer->HeaderHolds(header)) return ReadVerdict::kCorrupt;
    if (Crc32c(0, stored, header.stored_bytes) != header.payload_crc) return ReadVerdict::kCorrupt;
    if (sealer != nullptr && !sealer->OpenPayload(header, stored)) return ReadVerdict::kCorrupt;
    if (codec == Codec::kRaw) {
      // A raw payload is as long as its chunk, so it was read into the slot.
      return stored == chunk.target && header.stored_bytes == header.chunk_bytes ? ReadVerdict::kOk
                                                                                 : ReadVerdict::kCorrupt;
    }
    if (!CodecUnavailable(codec).empty()) return ReadVerdict::kMissing;  // sound, but not for this process
    if (stored == chunk.target) {
      uint8_t* const copy = scratch_.encoded.Get(header.stored_bytes);
      if (copy == nullptr) return ReadVerdict::kIo;
      std::memcpy(copy, stored, header.stored_bytes);
      stored = copy;
    }
    return DecodePayload(codec, stored, header.stored_bytes, chunk.target, header.chunk_bytes)
               ? ReadVerdict::kOk
               : ReadVerdict::kCorrupt;
  }

  void Fail(size_t i, const IoError& error) {
    if (error.not_found()) {
      done_(i, ReadVerdict::kMissing);
    } else if (error.code == IoError::kShort) {
      Reject(i, ReadVerdict::kMissing);
    } else {
      done_(i, ReadVerdict::kIo);
    }
  }

  // The catalog is wrong about this one.
  void Reject(size_t i, ReadVerdict verdict) {
    const WantedChunk& chunk = wanted_[i];
    context_.catalog->Remove(MakeCatalogKey(segment_.identity.namespace_id, chunk.key),
                             {segment_.id, chunk.offset, chunk.stored_bytes});
    if (verdict == ReadVerdict::kCorrupt) segment_.dead_records.fetch_add(1, std::memory_order_relaxed);
    done_(i, verdict);
  }

  StorageContext& context_;
  Segment& segment_;
  const std::span<const WantedChunk> wanted_;
  const std::function<void(size_t, ReadVerdict)>& done_;
  IoPool& pool_;
  const uint64_t slot_bytes_;
  static thread_local ThreadScratch scratch_;
};

thread_local ThreadScratch Reader::scratch_;

}  // namespace

void ReadChunks(StorageContext& context, Segment& segment, std::span<const WantedChunk> wanted,
                const std::function<void(size_t, ReadVerdict)>& done, IoPool* pool) {
  Reader(context, segment, wanted, done, pool).Run();
}

}  // namespace tpu_sync_native
