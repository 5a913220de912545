#include "base/crc32c.h"

#include <random>
#include <string>
#include <vector>

#include "check.h"

namespace tpu_sync_native {
namespace {

TEST(KnownVectors) {
  // RFC 3720, B.4, and the check value of the Rocksoft model.
  struct Vector {
    std::string data;
    uint32_t crc;
  };
  std::string rising(32, '\0');
  std::string falling(32, '\0');
  for (int i = 0; i < 32; ++i) {
    rising[i] = static_cast<char>(i);
    falling[i] = static_cast<char>(31 - i);
  }
  const std::vector<Vector> vectors = {{"", 0},
                                       {"123456789", 0xe3069283},
                                       {std::string(32, '\0'), 0x8a9136aa},
                                       {std::string(32, '\xff'), 0x62a8ab43},
                                       {rising, 0x46dd794e},
                                       {falling, 0x113fdb5c}};
  for (const Vector& vector : vectors) {
    CHECK(Crc32c(0, vector.data.data(), vector.data.size()) == vector.crc);
    CHECK(Crc32cTable(0, vector.data.data(), vector.data.size()) == vector.crc);
  }
}

// One bit at a time, as the polynomial says.
uint32_t BitByBit(uint32_t crc, const uint8_t* data, size_t bytes) {
  crc = ~crc;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

TEST(EveryLengthAndAlignment) {
  std::mt19937_64 random(1);
  std::vector<uint8_t> data(80 << 10);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  // Around the lengths at which the runs change: 8, 3 * 256, 3 * 8192.
  std::vector<size_t> lengths;
  for (size_t i = 0; i < 40; ++i) lengths.push_back(i);
  for (const size_t edge : {768u, 1536u, 24576u, 24576u + 768u, 49152u}) {
    for (size_t i = edge - 9; i <= edge + 9; ++i) lengths.push_back(i);
  }
  for (const size_t length : lengths) {
    const size_t start = random() % 64;
    const auto seed = static_cast<uint32_t>(random());
    const uint32_t wanted = BitByBit(seed, data.data() + start, length);
    CHECK(Crc32c(seed, data.data() + start, length) == wanted);
    CHECK(Crc32cTable(seed, data.data() + start, length) == wanted);
  }
}

TEST(PartsMakeTheWhole) {
  std::mt19937_64 random(2);
  std::vector<uint8_t> data(200'001);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  const uint32_t whole = Crc32c(0, data.data(), data.size());
  CHECK(whole == Crc32cTable(0, data.data(), data.size()));
  for (int i = 0; i < 50; ++i) {
    const size_t cut = random() % data.size();
    CHECK(Crc32c(Crc32c(0, data.data(), cut), data.data() + cut, data.size() - cut) == whole);
  }
}

}  // namespace
}  // namespace tpu_sync_native

CHECK_MAIN()
