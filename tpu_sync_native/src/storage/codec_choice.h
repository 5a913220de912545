// Whether a codec pays on a medium, as pure arithmetic. One core, one chunk after the other: what a chunk
// costs through the codec, as a share of what it costs raw.
#pragma once

#include <algorithm>

namespace tpu_sync_native {

// Of one kind of chunks, in bytes of the chunk.
struct CodecSpeed {
  double share = 1;     // stored, of the chunk's bytes
  double encode_s = 0;  // seconds a byte
  double decode_s = 0;
};

// Bytes a second; 0: not measured yet.
struct MediumSpeeds {
  double write = 0, read = 0;
};

// Time through the codec over time raw.
struct CodecCost {
  double write = 1, read = 1;
};

// A codec has to win by so much in both directions: it takes a core from others, and loads are what counts.
inline constexpr double kCodecCostMax = 0.9;

// Until something was read, reads are taken to be as fast as writes.
inline CodecCost CostOf(const CodecSpeed& codec, const MediumSpeeds& medium) {
  const double read = medium.read == 0 ? medium.write : medium.read;
  return {codec.share + codec.encode_s * medium.write, codec.share + codec.decode_s * read};
}

inline double WorseOf(const CodecCost& cost) { return std::max(cost.write, cost.read); }

inline bool Pays(const CodecCost& cost) { return WorseOf(cost) <= kCodecCostMax; }

}  // namespace tpu_sync_native
