#include "segment/names.h"

#include <optional>

namespace tpu_sync_native {
namespace {

constexpr std::string_view kAdopt = ".adopt.";
constexpr size_t kHexBytes = 32;
constexpr size_t kDigitsMax = 20;
constexpr size_t kDigitsPadded = 10;

std::string Numbered(std::string_view prefix, uint64_t number, size_t digits_min, std::string_view suffix) {
  const std::string digits = std::to_string(number);
  std::string name(prefix);
  if (digits.size() < digits_min) name.append(digits_min - digits.size(), '0');
  return name.append(digits).append(suffix);
}

bool ParseNumbered(std::string_view name, std::string_view prefix, size_t digits_min, std::string_view suffix,
                   uint64_t* number) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return false;
  if (name.size() <= prefix.size() + suffix.size()) return false;
  const std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  if (digits.size() > kDigitsMax) return false;
  uint64_t value = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return false;
    if (__builtin_mul_overflow(value, 10u, &value)) return false;
    if (__builtin_add_overflow(value, static_cast<uint64_t>(c - '0'), &value)) return false;
  }
  if (value == 0 || Numbered(prefix, value, digits_min, suffix) != name) return false;
  *number = value;
  return true;
}

std::optional<uint8_t> HexDigit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  return std::nullopt;
}

struct NamedCodec {
  Codec codec;
  const char* name;
};
constexpr NamedCodec kCodecs[] = {{Codec::kRaw, "raw"},
                                  {Codec::kLz4, "lz4"},
                                  {Codec::kLz4Shuffle2, "lz4-shuffle2"},
                                  {Codec::kLz4Shuffle4, "lz4-shuffle4"}};

}  // namespace

std::string HexId(const uint8_t id[16]) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (int i = 0; i < 16; ++i) {
    name.push_back(kDigits[id[i] >> 4]);
    name.push_back(kDigits[id[i] & 15]);
  }
  return name;
}

bool ParseHexId(std::string_view name, uint8_t id[16]) {
  if (name.size() != 32) return false;
  uint8_t parsed[16];
  for (size_t i = 0; i < 16; ++i) {
    const auto high = HexDigit(name[2 * i]);
    const auto low = HexDigit(name[2 * i + 1]);
    if (!high || !low) return false;
    parsed[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  for (size_t i = 0; i < 16; ++i) id[i] = parsed[i];
  return true;
}

std::string SegmentName(uint64_t number) { return Numbered("seg-", number, kDigitsPadded, ".kvs"); }
std::string IndexName(uint64_t number) { return Numbered("seg-", number, kDigitsPadded, ".idx"); }
std::string EpochName(uint64_t epoch) { return Numbered("epoch-", epoch, 1, ""); }

bool ParseSegmentName(std::string_view name, uint64_t* number) {
  return ParseNumbered(name, "seg-", kDigitsPadded, ".kvs", number);
}
bool ParseIndexName(std::string_view name, uint64_t* number) {
  return ParseNumbered(name, "seg-", kDigitsPadded, ".idx", number);
}
bool ParseEpochName(std::string_view name, uint64_t* epoch) {
  return ParseNumbered(name, "epoch-", 1, "", epoch);
}

std::string AdoptedName(const uint8_t host_id[16], const uint8_t adopter_id[16]) {
  return HexId(host_id).append(kAdopt).append(HexId(adopter_id));
}

bool ParseHostDirectory(std::string_view name, HostDirectoryName* parsed) {
  HostDirectoryName found;
  if (!ParseHexId(name.substr(0, kHexBytes), found.host_id)) return false;
  found.adopted = name.size() != kHexBytes;
  if (found.adopted) {
    name.remove_prefix(kHexBytes);
    if (!name.starts_with(kAdopt)) return false;
    if (!ParseHexId(name.substr(kAdopt.size()), found.adopter_id)) return false;
  }
  *parsed = found;
  return true;
}

std::string NamespaceDirectory(const uint8_t namespace_id[16]) {
  return std::string(kVersionName).append("/").append(HexId(namespace_id));
}

std::string HostsDirectory(const uint8_t namespace_id[16]) {
  return NamespaceDirectory(namespace_id).append("/").append(kHostsName);
}

const char* CodecName(Codec codec) {
  for (const NamedCodec& named : kCodecs) {
    if (named.codec == codec) return named.name;
  }
  return "unknown";
}

bool ParseCodec(std::string_view name, Codec* codec) {
  for (const NamedCodec& named : kCodecs) {
    if (name != named.name) continue;
    *codec = named.codec;
    return true;
  }
  return false;
}

}  // namespace tpu_sync_native
