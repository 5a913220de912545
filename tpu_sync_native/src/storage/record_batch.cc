#include "storage/record_batch.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/crc32c.h"
#include "segment/payload_codec.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kRecordsMax = 512;  // bounds what the headers of small chunks take

uint64_t RecordsIn(uint64_t chunk_bytes, uint64_t io_bytes, uint64_t segment_bytes) {
  const uint64_t payload_bytes = RoundToUnit(chunk_bytes);
  const uint64_t in_segment = (segment_bytes - kStorageUnit) / (kStorageUnit + payload_bytes);
  return std::clamp<uint64_t>(std::min(io_bytes / payload_bytes, in_segment), 1, kRecordsMax);
}

}  // namespace

AlignedBytes MakeAligned(uint64_t bytes) {
  return AlignedBytes(new (std::align_val_t{kStorageUnit}) uint8_t[bytes]);
}

RecordBatch::RecordBatch(uint64_t chunk_bytes, Codec codec, uint64_t io_bytes, uint64_t segment_bytes,
                         std::shared_ptr<const Sealer> sealer, const uint8_t* namespace_id)
    : chunk_bytes_(chunk_bytes),
      codec_(codec),
      encodes_(codec != Codec::kRaw && CodecUnavailable(codec).empty()),
      sealer_(std::move(sealer)),
      size_max_(RecordsIn(chunk_bytes, io_bytes, segment_bytes)),
      headers_(MakeAligned(size_max_ * kStorageUnit)) {
  records_.reserve(size_max_);
  if (sealer_ != nullptr) std::memcpy(namespace_id_, namespace_id, sizeof(namespace_id_));
  if (encodes_ || encrypts()) encoded_ = MakeAligned(size_max_ * RoundToUnit(chunk_bytes));
  if (encodes_ || chunk_bytes % kStorageUnit != 0) tails_ = MakeAligned(size_max_ * kStorageUnit);
}

bool RecordBatch::Add(std::string_view key, const uint8_t* data) {
  if (records_.size() == size_max_ || key.size() > kStoredKeyBytesMax) return false;
  Record record{};
  std::memcpy(record.key, key.data(), key.size());
  record.key_bytes = static_cast<uint32_t>(key.size());
  record.codec = Codec::kRaw;
  record.data = data;
  record.stored_bytes = chunk_bytes_;
  uint8_t* const target =
      encoded_ == nullptr ? nullptr : encoded_.get() + records_.size() * RoundToUnit(chunk_bytes_);
  if (encodes_) {
    const uint64_t bytes = EncodePayload(codec_, data, chunk_bytes_, target);
    if (bytes != 0) {
      record.codec = codec_;
      record.data = target;
      record.stored_bytes = bytes;
    }
  }
  if (sealer_ != nullptr) {  // behind the codec: what is encrypted does not shrink
    if (!sealer_->SealPayload(namespace_id_, record.data, record.stored_bytes, target, &record.seal)) {
      return false;
    }
    if (encrypts()) record.data = target;
  }
  record.payload_crc = Crc32c(0, record.data, record.stored_bytes);
  record.whole_bytes = record.stored_bytes / kStorageUnit * kStorageUnit;
  if (const uint64_t left = record.stored_bytes - record.whole_bytes; left != 0) {
    // What stands behind the chunk in its slot may be anybody's: zeros are written.
    std::memcpy(tail(records_.size()), record.data + record.whole_bytes, left);
    std::memset(tail(records_.size()) + left, 0, kStorageUnit - left);
  }
  stored_bytes_ += kStorageUnit + RoundToUnit(record.stored_bytes);
  records_.push_back(record);
  return true;
}

void RecordBatch::Clear() {
  records_.clear();
  stored_bytes_ = 0;
}

bool RecordBatch::Place(const SegmentIdentity& identity, uint64_t offset, std::vector<IoVec>* parts,
                        std::vector<IndexEntry>* entries) {
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const std::string_view key(reinterpret_cast<const char*>(record.key), record.key_bytes);
    uint8_t* header = headers_.get() + i * kStorageUnit;
    if (!EncodeRecordHeader(identity, offset, key, record.codec, record.stored_bytes, record.payload_crc,
                            header, sealer_.get(), &record.seal)) {
      return false;
    }
    parts->push_back({header, kStorageUnit});
    if (record.whole_bytes != 0) parts->push_back({const_cast<uint8_t*>(record.data), record.whole_bytes});
    if (record.whole_bytes != record.stored_bytes) parts->push_back({tail(i), kStorageUnit});
    entries->push_back(MakeIndexEntry(offset, key, record.codec, record.stored_bytes, record.payload_crc));
    offset += kStorageUnit + RoundToUnit(record.stored_bytes);
  }
  return true;
}

}  // namespace tpu_sync_native
