// The crc instruction takes 8 bytes a cycle but its result is three cycles late, so one stream of it runs at
// a third of its speed. Three neighbouring runs are summed at once and then joined: the sum of A B is the sum
// of A shifted by the length of B, plus the sum of B. A shift is a multiplication by x^(8 * length) in the
// field; for the two lengths in use it is four table lookups.
#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define KVTIER_CRC_TARGET __attribute__((target("sse4.2")))
#define KVTIER_CRC_8(crc, word) static_cast<uint32_t>(_mm_crc32_u64(crc, word))
#define KVTIER_CRC_1(crc, byte) _mm_crc32_u8(crc, byte)
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define KVTIER_CRC_TARGET
#define KVTIER_CRC_8(crc, word) __crc32cd(crc, word)
#define KVTIER_CRC_1(crc, byte) __crc32cb(crc, byte)
#endif

namespace tpu_sync_native {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
using Table = std::array<std::array<uint32_t, 256>, 4>;

// Product of two polynomials modulo the CRC's; the highest bit is x^0.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

constexpr uint32_t PowerOfX(uint64_t exponent) {
  uint32_t result = 1u << 31;
  for (uint32_t square = 1u << 30; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = Multiply(square, result);
    square = Multiply(square, square);
  }
  return result;
}

// [k][b]: byte k of a sum being b, moved on by `bytes` of zeros.
constexpr Table ShiftTable(uint64_t bytes) {
  const uint32_t factor = PowerOfX(8 * bytes);
  Table table{};
  for (uint32_t k = 0; k < 4; ++k) {
    for (uint32_t b = 0; b < 256; ++b) table[k][b] = Multiply(factor, b << (8 * k));
  }
  return table;
}

// By 4 bytes at once: [k][b] is byte b with k + 1 bytes of zeros behind it.
constexpr Table MakeSliceTable() {
  Table table{};
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t factor = PowerOfX(8 * (k + 1));
    for (uint32_t b = 0; b < 256; ++b) table[k][b] = Multiply(factor, b);
  }
  return table;
}

constexpr uint32_t LookUp(const Table& table, uint32_t word) {
  return table[0][word & 0xff] ^ table[1][(word >> 8) & 0xff] ^ table[2][(word >> 16) & 0xff] ^
         table[3][word >> 24];
}

constexpr Table kSlice = MakeSliceTable();

#if defined(KVTIER_CRC_TARGET)

constexpr size_t kLongBytes = 8192;
constexpr size_t kShortBytes = 256;
constexpr Table kShiftLong = ShiftTable(kLongBytes);
constexpr Table kShiftShort = ShiftTable(kShortBytes);

inline uint64_t Load8(const uint8_t* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Three runs of kRunBytes each.
template <size_t kRunBytes>
KVTIER_CRC_TARGET inline uint32_t ThreeRuns(uint32_t crc, const uint8_t* at, const Table& shift) {
  uint32_t second = 0;
  uint32_t third = 0;
  for (const uint8_t* const end = at + kRunBytes; at != end; at += 8) {
    crc = KVTIER_CRC_8(crc, Load8(at));
    second = KVTIER_CRC_8(second, Load8(at + kRunBytes));
    third = KVTIER_CRC_8(third, Load8(at + 2 * kRunBytes));
  }
  return LookUp(shift, LookUp(shift, crc) ^ second) ^ third;
}

KVTIER_CRC_TARGET uint32_t Crc32cHardware(uint32_t crc, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; bytes >= 3 * kLongBytes; at += 3 * kLongBytes, bytes -= 3 * kLongBytes) {
    crc = ThreeRuns<kLongBytes>(crc, at, kShiftLong);
  }
  for (; bytes >= 3 * kShortBytes; at += 3 * kShortBytes, bytes -= 3 * kShortBytes) {
    crc = ThreeRuns<kShortBytes>(crc, at, kShiftShort);
  }
  for (; bytes >= 8; at += 8, bytes -= 8) crc = KVTIER_CRC_8(crc, Load8(at));
  for (; bytes > 0; ++at, --bytes) crc = KVTIER_CRC_1(crc, *at);
  return ~crc;
}

#endif

struct Kernel {
  uint32_t (*run)(uint32_t, const void*, size_t);
  const char* name;
};

Kernel Choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return {&Crc32cHardware, "sse4.2"};
#elif defined(KVTIER_CRC_TARGET)
  return {&Crc32cHardware, "armv8"};
#endif
  return {&Crc32cTable, "table"};
}

const Kernel& Chosen() {
  static const Kernel kernel = Choose();
  return kernel;
}

}  // namespace

uint32_t Crc32cTable(uint32_t crc, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; bytes >= 4; at += 4, bytes -= 4) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(at[i]) << (8 * i);
    word ^= crc;
    crc = kSlice[3][word & 0xff] ^ kSlice[2][(word >> 8) & 0xff] ^ kSlice[1][(word >> 16) & 0xff] ^
          kSlice[0][word >> 24];
  }
  for (; bytes > 0; ++at, --bytes) crc = kSlice[0][(crc ^ *at) & 0xff] ^ (crc >> 8);
  return ~crc;
}

uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes) { return Chosen().run(crc, data, bytes); }

const char* Crc32cKernel() { return Chosen().name; }

}  // namespace tpu_sync_native
