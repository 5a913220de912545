// Which codec a namespace's chunks are written with, found out from what they are and from how fast the
// medium is (storage_codec = auto). The first chunks that are demoted are tried with every codec, up to 1 MiB
// of each, and so are some of every kChunksBetweenLooks; the best codec that pays is used until the next
// look. A look costs a core some 0.1 s, on the thread that prepares demotes. What was written stays as it is:
// every record says its own codec.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>

#include "segment/layout.h"
#include "storage/codec_choice.h"

namespace tpu_sync_native {

class CodecTrial {
 public:
  static constexpr size_t kSampleChunks = 8;
  static constexpr uint64_t kChunksBetweenLooks = 4096;

  struct Choice {
    Codec codec = Codec::kRaw;
    Codec tried = Codec::kRaw;  // the codec that the figures are of; raw: nothing is decided yet
    double share = 0;           // of a chunk's bytes on the medium
    CodecCost cost{0, 0};
  };

  Codec codec() const { return codec_.load(std::memory_order_relaxed); }
  Choice choice() const;

  // These chunks, of chunk_bytes each, are about to be written. One call at a time.
  void Look(std::span<const uint8_t* const> chunks, uint64_t chunk_bytes, const MediumSpeeds& medium);

 private:
  struct Figures {
    uint64_t bytes = 0, stored = 0, encode_ns = 0, decode_ns = 0;
  };
  static constexpr std::array kCodecs = {Codec::kLz4, Codec::kLz4Shuffle2, Codec::kLz4Shuffle4};

  bool Sample(const uint8_t* chunk, uint64_t chunk_bytes);
  void Decide(uint64_t chunk_bytes, const MediumSpeeds& medium);

  std::atomic<Codec> codec_{Codec::kRaw};
  std::array<Figures, kCodecs.size()> figures_;
  size_t sampled_ = 0;
  uint64_t seen_ = 0;  // chunks since this look began
  bool decided_ = false;
  bool reads_known_ = false;  // when it was decided
  mutable std::mutex mutex_;
  Choice choice_;  // guarded by mutex_
};

}  // namespace tpu_sync_native
