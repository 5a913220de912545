// Records on their way into a segment, as far as they can be made before it is known where they will lie:
// payloads encoded, checksums computed, all of it aligned. So that one batch can be made while the one before
// is written.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include "fs/file_system.h"
#include "segment/segment_codec.h"

namespace tpu_sync_native {

// Memory that a medium which wants aligned addresses takes.
struct AlignedDelete {
  void operator()(uint8_t* bytes) const { ::operator delete[](bytes, std::align_val_t{kStorageUnit}); }
};
using AlignedBytes = std::unique_ptr<uint8_t[], AlignedDelete>;
AlignedBytes MakeAligned(uint64_t bytes);

// Not thread-safe. Refers to the chunks' bytes, which stay where they are until it is done with.
class RecordBatch {
 public:
  // Payloads of at most io_bytes in all and records of at most segment_bytes, but always one: four chunks of
  // 2 MiB are one write of 8 MiB, and their headers do not make it three.
  // sealer: of the root, null when it has no seal; namespace_id: whose records they are.
  RecordBatch(uint64_t chunk_bytes, Codec codec, uint64_t io_bytes,
              uint64_t segment_bytes = kStoredSegmentBytesMax, std::shared_ptr<const Sealer> sealer = nullptr,
              const uint8_t* namespace_id = nullptr);

  // `data`: chunk_bytes, aligned to kStorageUnit for speed. False: full, or it cannot be sealed; nothing was
  // added.
  bool Add(std::string_view key, const uint8_t* data);
  size_t size() const { return records_.size(); }
  size_t size_max() const { return size_max_; }
  Codec codec() const { return codec_; }                   // as it was asked for
  uint64_t stored_bytes() const { return stored_bytes_; }  // in the file, headers and padding included
  void Clear();

  // Writes the headers for a segment in which the first record begins at `offset`; appends what is to be
  // written to `parts`, in order, and what an index says of it to `entries`. False: a seal cannot be made,
  // and nothing of it may be written.
  bool Place(const SegmentIdentity& identity, uint64_t offset, std::vector<IoVec>* parts,
             std::vector<IndexEntry>* entries);

 private:
  struct Record {
    uint8_t key[kStoredKeyBytesMax];
    uint32_t key_bytes;
    Codec codec;
    const uint8_t* data;   // whole units of the payload
    uint64_t whole_bytes;  // so many; what is left stands in the record's tail, padded
    uint64_t stored_bytes;
    uint32_t payload_crc;
    PayloadSeal seal;  // nothing when there is no sealer
  };

  uint8_t* tail(size_t record) const { return tails_.get() + record * kStorageUnit; }

  const uint64_t chunk_bytes_;
  const Codec codec_;
  const bool encodes_;
  const std::shared_ptr<const Sealer> sealer_;
  uint8_t namespace_id_[16] = {};
  const uint64_t size_max_;
  std::vector<Record> records_;
  uint64_t stored_bytes_ = 0;
  AlignedBytes headers_;  // a unit each
  AlignedBytes tails_;    // a unit each; none when payloads are whole units
  AlignedBytes encoded_;  // a chunk each; none when payloads are written as they lie in their slots
  bool encrypts() const { return sealer_ != nullptr && sealer_->seal() == Seal::kEncrypt; }
};

}  // namespace tpu_sync_native
