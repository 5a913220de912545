// Blocks small enough that block, shuffled block and what lz4 makes of it stay in a core's second-level
// cache.
#include "segment/payload_codec.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "segment/lz4_library.h"
#include "segment/words.h"

namespace tpu_sync_native {
namespace {

constexpr uint64_t kBlockBytes = 256 << 10;
constexpr uint64_t kPrefixBytes = 4;
constexpr uint32_t kAsItIs = 1u << 31;
// After so much that did not shrink, the rest is not tried: a chunk is of one kind.
constexpr uint64_t kTrialBytes = 4 * kBlockBytes;

constexpr uint64_t ShareAllowed(uint64_t bytes) { return bytes - (bytes + 15) / 16; }

const Lz4Library& Library() {
  static const Lz4Library library = LoadLz4();
  return library;
}

// One block, of this thread.
uint8_t* Scratch() {
  thread_local std::vector<uint8_t> block(kBlockBytes);
  return block.data();
}

template <uint64_t kItemBytes>
void ShuffleItems(const uint8_t* source, uint64_t bytes, uint8_t* target) {
  const uint64_t items = bytes / kItemBytes;
  for (uint64_t i = 0; i < items; ++i) {
    for (uint64_t k = 0; k < kItemBytes; ++k) target[k * items + i] = source[i * kItemBytes + k];
  }
  std::memcpy(target + items * kItemBytes, source + items * kItemBytes, bytes % kItemBytes);
}

template <uint64_t kItemBytes>
void UnshuffleItems(const uint8_t* source, uint64_t bytes, uint8_t* target) {
  const uint64_t items = bytes / kItemBytes;
  for (uint64_t i = 0; i < items; ++i) {
    for (uint64_t k = 0; k < kItemBytes; ++k) target[i * kItemBytes + k] = source[k * items + i];
  }
  std::memcpy(target + items * kItemBytes, source + items * kItemBytes, bytes % kItemBytes);
}

bool Shuffles(Codec codec) { return codec == Codec::kLz4Shuffle2 || codec == Codec::kLz4Shuffle4; }

void Shuffle(Codec codec, const uint8_t* source, uint64_t bytes, uint8_t* target) {
  if (codec == Codec::kLz4Shuffle2) ShuffleItems<2>(source, bytes, target);
  if (codec == Codec::kLz4Shuffle4) ShuffleItems<4>(source, bytes, target);
}

void Unshuffle(Codec codec, const uint8_t* source, uint64_t bytes, uint8_t* target) {
  if (codec == Codec::kLz4Shuffle2) UnshuffleItems<2>(source, bytes, target);
  if (codec == Codec::kLz4Shuffle4) UnshuffleItems<4>(source, bytes, target);
}

// Writes one block with its length before it; 0 when it needs more than `room_bytes`.
uint64_t EncodeBlock(Codec codec, const uint8_t* block, uint64_t bytes, uint8_t* target,
                     uint64_t room_bytes) {
  if (room_bytes <= kPrefixBytes) return 0;
  const uint8_t* from = block;
  if (Shuffles(codec)) {
    Shuffle(codec, block, bytes, Scratch());
    from = Scratch();
  }
  const uint64_t encoded_max = std::min(room_bytes - kPrefixBytes, bytes - 1);
  const int encoded = encoded_max == 0
                          ? 0
                          : Library().compress(reinterpret_cast<const char*>(from),
                                               reinterpret_cast<char*>(target + kPrefixBytes),
                                               static_cast<int>(bytes), static_cast<int>(encoded_max));
  auto length = static_cast<uint32_t>(std::max(encoded, 0));
  if (length == 0) {
    if (room_bytes - kPrefixBytes < bytes) return 0;
    length = static_cast<uint32_t>(bytes);
    std::memcpy(target + kPrefixBytes, block, length);
  }
  const uint32_t prefix = encoded > 0 ? length : length | kAsItIs;
  std::memcpy(target, &prefix, kPrefixBytes);
  return kPrefixBytes + length;
}

bool DecodeBlock(Codec codec, uint32_t prefix, const uint8_t* source, uint8_t* target, uint64_t bytes) {
  const uint32_t length = prefix & ~kAsItIs;
  if ((prefix & kAsItIs) != 0) {
    if (length != bytes) return false;
    std::memcpy(target, source, bytes);
    return true;
  }
  if (length == 0 || length >= bytes) return false;
  uint8_t* const to = Shuffles(codec) ? Scratch() : target;
  const int decoded = Library().decompress(reinterpret_cast<const char*>(source), reinterpret_cast<char*>(to),
                                           static_cast<int>(length), static_cast<int>(bytes));
  if (decoded < 0 || static_cast<uint64_t>(decoded) != bytes) return false;
  if (Shuffles(codec)) Unshuffle(codec, to, bytes, target);
  return true;
}

}  // namespace

std::string CodecUnavailable(Codec codec) {
  if (!IsCodec(static_cast<uint32_t>(codec))) {
    return "codec " + std::to_string(static_cast<uint32_t>(codec)) + " is not known";
  }
  return codec == Codec::kRaw ? "" : Library().error;
}

uint64_t EncodePayload(Codec codec, const uint8_t* source, uint64_t bytes, uint8_t* target) {
  if (codec == Codec::kRaw || !CodecUnavailable(codec).empty()) return 0;
  const uint64_t encoded_max = ShareAllowed(bytes);
  uint64_t encoded = 0;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t block = std::min(kBlockBytes, bytes - done);
    const uint64_t length = EncodeBlock(codec, source + done, block, target + encoded, encoded_max - encoded);
    if (length == 0) return 0;
    encoded += length;
    done += block;
    if (done == kTrialBytes && encoded > ShareAllowed(done)) return 0;
  }
  return encoded;
}

bool DecodePayload(Codec codec, const uint8_t* source, uint64_t source_bytes, uint8_t* target,
                   uint64_t bytes) {
  if (codec == Codec::kRaw) {
    if (source_bytes != bytes) return false;
    std::memcpy(target, source, bytes);
    return true;
  }
  if (!CodecUnavailable(codec).empty()) return false;
  const uint8_t* const end = source + source_bytes;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t block = std::min(kBlockBytes, bytes - done);
    uint32_t prefix = 0;
    if (static_cast<uint64_t>(end - source) < kPrefixBytes) return false;
    std::memcpy(&prefix, source, kPrefixBytes);
    source += kPrefixBytes;
    const uint64_t length = prefix & ~kAsItIs;
    if (static_cast<uint64_t>(end - source) < length) return false;
    if (!DecodeBlock(codec, prefix, source, target + done, block)) return false;
    source += length;
    done += block;
  }
  return source == end;
}

}  // namespace tpu_sync_native
