#include "storage/codec_trial.h"

#include <algorithm>
#include <memory>
#include <new>

#include "base/futex.h"
#include "segment/payload_codec.h"

namespace tpu_sync_native {
namespace {

// Of a larger chunk so many parts are tried: its layers need not be alike.
constexpr uint64_t kParts = 4;
constexpr uint64_t kPartBytes = 256 << 10;
constexpr uint64_t kItemBytesMax = 8;  // a part begins with a whole number

double PerByte(uint64_t ns, uint64_t bytes) {
  return static_cast<double>(ns) / static_cast<double>(kNsPerS) / static_cast<double>(bytes);
}

}  // namespace

CodecTrial::Choice CodecTrial::choice() const {
  const std::lock_guard lock(mutex_);
  return choice_;
}

void CodecTrial::Look(std::span<const uint8_t* const> chunks, uint64_t chunk_bytes,
                      const MediumSpeeds& medium) {
  if (seen_ >= kChunksBetweenLooks) {
    figures_ = {};
    sampled_ = 0;
    seen_ = 0;
    decided_ = false;
  }
  seen_ += chunks.size();
  for (const uint8_t* chunk : chunks) {
    if (sampled_ == kSampleChunks || !Sample(chunk, chunk_bytes)) break;
    ++sampled_;
  }
  const bool outdated = !decided_ || (!reads_known_ && medium.read != 0);
  if (sampled_ == kSampleChunks && outdated && medium.write != 0) Decide(chunk_bytes, medium);
}

// False: there is no memory for it now.
bool CodecTrial::Sample(const uint8_t* chunk, uint64_t chunk_bytes) {
  const bool whole = chunk_bytes <= kParts * kPartBytes;
  const uint64_t parts = whole ? 1 : kParts;
  const uint64_t part_bytes = whole ? chunk_bytes : kPartBytes;
  const std::unique_ptr<uint8_t[]> memory(new (std::nothrow) uint8_t[2 * part_bytes]);
  if (memory == nullptr) return false;
  uint8_t* const encoded = memory.get();
  uint8_t* const decoded = memory.get() + part_bytes;
  for (uint64_t part = 0; part < parts; ++part) {
    uint64_t offset = whole ? 0 : (chunk_bytes - part_bytes) / (kParts - 1) * part;
    offset -= offset % kItemBytesMax;
    const uint8_t* source = chunk + offset;
    for (size_t i = 0; i < kCodecs.size(); ++i) {
      Figures& figures = figures_[i];
      const uint64_t began_ns = SteadyNs();
      const uint64_t stored = EncodePayload(kCodecs[i], source, part_bytes, encoded);
      const uint64_t encoded_ns = SteadyNs();
      figures.bytes += part_bytes;
      figures.encode_ns += encoded_ns - began_ns;
      figures.stored += stored == 0 ? part_bytes : stored;
      if (stored == 0) continue;  // it would be written raw
      // What does not come back shall never pay.
      if (!DecodePayload(kCodecs[i], encoded, stored, decoded, part_bytes)) figures.stored += part_bytes;
      figures.decode_ns += SteadyNs() - encoded_ns;
    }
  }
  return true;
}

void CodecTrial::Decide(uint64_t chunk_bytes, const MediumSpeeds& medium) {
  Choice best;
  for (size_t i = 0; i < kCodecs.size(); ++i) {
    const Figures& figures = figures_[i];
    const double bytes = static_cast<double>(chunk_bytes);
    const double share = static_cast<double>(figures.stored) / static_cast<double>(figures.bytes);
    // A record takes whole units.
    const double stored = static_cast<double>(RoundToUnit(static_cast<uint64_t>(share * bytes)));
    const CodecSpeed speed{stored / static_cast<double>(RoundToUnit(chunk_bytes)),
                           PerByte(figures.encode_ns, figures.bytes),
                           PerByte(figures.decode_ns, figures.bytes)};
    const CodecCost cost = CostOf(speed, medium);
    if (best.tried != Codec::kRaw && WorseOf(cost) >= WorseOf(best.cost)) continue;
    best = {Pays(cost) ? kCodecs[i] : Codec::kRaw, kCodecs[i], speed.share, cost};
  }
  decided_ = true;
  reads_known_ = medium.read != 0;
  codec_.store(best.codec, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  choice_ = best;
}

}  // namespace tpu_sync_native
