#include "segment/payload_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "segment/lz4_library.h"
#include "segment_fixture.h"

namespace tpu_sync_native::testing {
namespace {

constexpr Codec kLz4Codecs[] = {Codec::kLz4, Codec::kLz4Shuffle2, Codec::kLz4Shuffle4};

// Exactly as large as it says, so that the sanitizer sees one byte too many.
struct Exact {
  explicit Exact(uint64_t bytes) : data(new uint8_t[bytes]), size(bytes) {}
  std::unique_ptr<uint8_t[]> data;
  uint64_t size;
};

// Slowly rising 4-byte items: every codec shrinks them.
std::string Shrinking(uint64_t bytes) {
  std::string data(bytes, '\0');
  for (uint64_t i = 0; i + 4 <= bytes; i += 4) {
    const auto value = static_cast<uint32_t>(i / 64);
    std::memcpy(data.data() + i, &value, 4);
  }
  return data;
}

std::string Encode(Codec codec, const std::string& data) {
  Exact target(data.size());
  const uint64_t bytes = EncodePayload(codec, AsBytes(data).data(), data.size(), target.data.get());
  return {reinterpret_cast<const char*>(target.data.get()), bytes};
}

bool Decode(Codec codec, const std::string& encoded, uint64_t bytes, std::string* decoded) {
  Exact source(encoded.size());
  if (!encoded.empty()) std::memcpy(source.data.get(), encoded.data(), encoded.size());
  Exact target(bytes);
  if (!DecodePayload(codec, source.data.get(), source.size, target.data.get(), bytes)) return false;
  decoded->assign(reinterpret_cast<const char*>(target.data.get()), bytes);
  return true;
}

TEST(RoundTrip) {
  CHECK(CodecUnavailable(Codec::kRaw).empty());
  Random random(1);
  for (const Codec codec : kLz4Codecs) {
    CHECK(CodecUnavailable(codec).empty());
    for (const uint64_t bytes : {1000ull, 4096ull, 262'144ull, 262'145ull, 600'003ull, 2'000'000ull}) {
      std::string data = Shrinking(bytes);
      for (int i = 0; i < 20; ++i) data[random() % bytes] = static_cast<char>(random());
      const std::string encoded = Encode(codec, data);
      CHECK(!encoded.empty() && encoded.size() <= bytes - bytes / 16);
      std::string decoded;
      CHECK(Decode(codec, encoded, bytes, &decoded));
      CHECK(decoded == data);
      // Not to another length, not from another length.
      CHECK(!Decode(codec, encoded, bytes - 1, &decoded));
      CHECK(!Decode(codec, encoded, bytes + 1, &decoded));
      CHECK(!Decode(codec, encoded + "x", bytes, &decoded));
      for (uint64_t cut = 0; cut < encoded.size(); cut += 1 + encoded.size() / 50) {
        CHECK(!Decode(codec, encoded.substr(0, cut), bytes, &decoded));
      }
    }
  }
}

TEST(ABlockThatDoesNotShrinkIsKeptAsItIs) {
  Random random(2);
  // Of four blocks, one is noise.
  const std::string data = Shrinking(524'288) + RandomBytes(random, 262'144) + Shrinking(262'000);
  for (const Codec codec : kLz4Codecs) {
    const std::string encoded = Encode(codec, data);
    CHECK(!encoded.empty() && encoded.size() > 262'144);
    std::string decoded;
    CHECK(Decode(codec, encoded, data.size(), &decoded) && decoded == data);
  }
}

TEST(NoiseIsLeftRaw) {
  Random random(3);
  for (const Codec codec : kLz4Codecs) {
    for (const uint64_t bytes : {1ull, 2ull, 15ull, 16ull, 300ull, 1'000'000ull, 3'000'000ull}) {
      CHECK(Encode(codec, RandomBytes(random, bytes)).empty());
    }
  }
  CHECK(Encode(Codec::kRaw, Shrinking(4096)).empty());
}

TEST(RawIsACopyOfTheSameLength) {
  Random random(4);
  const std::string data = RandomBytes(random, 5000);
  std::string decoded;
  CHECK(Decode(Codec::kRaw, data, 5000, &decoded) && decoded == data);
  CHECK(!Decode(Codec::kRaw, data, 4999, &decoded));
  CHECK(!Decode(Codec::kRaw, data, 5001, &decoded));
}

TEST(DamagedBytesDecodeToNothingOrToTheirLength) {
  Random random(5);
  const std::string data = Shrinking(300'000);
  for (const Codec codec : kLz4Codecs) {
    const std::string encoded = Encode(codec, data);
    for (int i = 0; i < 2000; ++i) {
      std::string damaged = encoded;
      for (uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      std::string decoded;
      if (Decode(codec, damaged, data.size(), &decoded)) CHECK(decoded.size() == data.size());
    }
    // The length that stands before a block may say anything.
    for (const uint32_t prefix : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu, 262'144u, 0x80040000u}) {
      std::string damaged = encoded;
      std::memcpy(damaged.data(), &prefix, 4);
      std::string decoded;
      CHECK(!Decode(codec, damaged, data.size(), &decoded));
    }
  }
}

TEST(ALibraryThatIsNotThereSaysSo) {
  const Lz4Library absent = LoadLz4("liblz4-that-nobody-has.so.1");
  CHECK(absent.compress == nullptr && absent.decompress == nullptr);
  CHECK(absent.error.find("lz4 is not available: ") == 0);
  CHECK(absent.error.find("liblz4-that-nobody-has.so.1") != std::string::npos);
  const Lz4Library other = LoadLz4("libm.so.6");
  CHECK(other.compress == nullptr && other.error.find("has no LZ4_compress_default") != std::string::npos);
  CHECK(CodecUnavailable(static_cast<Codec>(9)) == "codec 9 is not known");
}

}  // namespace
}  // namespace tpu_sync_native::testing

CHECK_MAIN()
