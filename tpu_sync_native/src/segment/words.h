// Words for what is wrong with bytes: field, value, what is allowed. And the checks every structure begins
// with.
#pragma once

#include <bit>
#include <cstring>
#include <string>
#include <string_view>

#include "base/crc32c.h"
#include "segment/layout.h"
#include "segment/names.h"

namespace tpu_sync_native {

static_assert(std::endian::native == std::endian::little, "structures are read as they lie in files");

inline std::string Hex(uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[value & 15]);
    value >>= 4;
  } while (value != 0);
  return "0x" + text;
}

// "epoch is 3; 2 is wanted"
inline std::string Wrong(std::string_view field, const std::string& value, const std::string& wanted) {
  return std::string(field) + " is " + value + "; " + wanted + " is wanted";
}
inline std::string Differs(std::string_view field, uint64_t value, uint64_t wanted) {
  return value == wanted ? "" : Wrong(field, std::to_string(value), std::to_string(wanted));
}
inline std::string IdDiffers(std::string_view field, const uint8_t value[16], const uint8_t wanted[16]) {
  return std::memcmp(value, wanted, 16) == 0 ? "" : Wrong(field, HexId(value), HexId(wanted));
}
inline std::string Outside(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return "";
  return std::string(field) + " is " + std::to_string(value) + "; " + std::to_string(low) + " to " +
         std::to_string(high) + " are allowed";
}
inline std::string NotUnits(std::string_view field, uint64_t value) {
  if (value % kStorageUnit == 0) return "";
  return Wrong(field, std::to_string(value), "a multiple of " + std::to_string(kStorageUnit));
}

inline bool AllZero(const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  return bytes == 0 || (at[0] == 0 && std::memcmp(at, at + 1, bytes - 1) == 0);
}

// Where `crc` of a structure of `bytes` bytes lies at `crc_offset`: the sum with that field taken as zero.
inline uint32_t CrcWithout(const uint8_t* data, size_t bytes, size_t crc_offset) {
  constexpr uint8_t kZeros[4] = {};
  uint32_t crc = Crc32c(0, data, crc_offset);
  crc = Crc32c(crc, kZeros, sizeof(kZeros));
  return Crc32c(crc, data + crc_offset + 4, bytes - crc_offset - 4);
}

// Magic, version and checksum, which stand at the same place in every structure: 0, 8 and 12. Another version
// is named before the checksum is looked at, for it may be reckoned otherwise there.
inline constexpr size_t kCrcOffset = 12;
inline std::string CheckStart(const uint8_t* data, size_t bytes, uint64_t magic) {
  uint64_t found_magic;
  uint32_t version;
  uint32_t crc;
  std::memcpy(&found_magic, data, 8);
  std::memcpy(&version, data + 8, 4);
  std::memcpy(&crc, data + kCrcOffset, 4);
  if (found_magic != magic) return Wrong("magic", Hex(found_magic), Hex(magic));
  if (version != kStorageVersion) {
    return "version is " + std::to_string(version) + "; this program reads version " +
           std::to_string(kStorageVersion);
  }
  const uint32_t computed = CrcWithout(data, bytes, kCrcOffset);
  return crc == computed ? "" : Wrong("checksum of the header", Hex(crc), Hex(computed));
}

// Fills in the checksum of what is encoded.
inline void FinishCrc(uint8_t* data, size_t bytes) {
  const uint32_t crc = CrcWithout(data, bytes, kCrcOffset);
  std::memcpy(data + kCrcOffset, &crc, 4);
}

// Key lengths and zeros behind the key; "" or what is wrong.
inline std::string CheckKey(const uint8_t key[kStoredKeyBytesMax], uint32_t key_bytes) {
  std::string wrong = Outside("key_bytes", key_bytes, kStoredKeyBytesMin, kStoredKeyBytesMax);
  if (wrong.empty() && !AllZero(key + key_bytes, kStoredKeyBytesMax - key_bytes)) {
    wrong = "key has bytes behind its " + std::to_string(key_bytes) + "; zeros are wanted";
  }
  return wrong;
}

// What lies behind the fields of a structure.
inline std::string CheckRest(const uint8_t* data, size_t fields_bytes, size_t bytes) {
  return AllZero(data + fields_bytes, bytes - fields_bytes) ? "" : "bytes behind its fields are not zero";
}

inline bool IsCodec(uint32_t codec) {
  return codec == static_cast<uint32_t>(Codec::kRaw) || codec == static_cast<uint32_t>(Codec::kLz4) ||
         codec == static_cast<uint32_t>(Codec::kLz4Shuffle2) ||
         codec == static_cast<uint32_t>(Codec::kLz4Shuffle4);
}

// What the checks of a structure share: the first that is not "" is the answer.
template <typename... Checks>
std::string FirstOf(const Checks&... checks) {
  std::string wrong;
  (void)((wrong = checks(), wrong.empty()) && ...);
  return wrong;
}

}  // namespace tpu_sync_native
