#include "copy/kernels.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tpu_sync_native {

void CopyCached(void* target, const void* source, uint64_t bytes) { std::memcpy(target, source, bytes); }

#if defined(__x86_64__)

namespace {

// `target` is aligned to a cache line and `bytes` is a multiple of kStepBytes in all three.
constexpr uint64_t kLineBytes = 64;
constexpr uint64_t kStepBytes = 256;

__attribute__((target("avx512f"))) void StreamAvx512(uint8_t* target, const uint8_t* source, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += kStepBytes) {
    const __m512i a = _mm512_loadu_si512(source + i);
    const __m512i b = _mm512_loadu_si512(source + i + 64);
    const __m512i c = _mm512_loadu_si512(source + i + 128);
    const __m512i d = _mm512_loadu_si512(source + i + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + i + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + i + 192), d);
  }
}

__attribute__((target("avx2"))) void StreamAvx2(uint8_t* target, const uint8_t* source, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += 128) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i + 96), d);
  }
}

void StreamSse2(uint8_t* target, const uint8_t* source, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += 64) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i + 16));
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i + 32));
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i + 48));
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i + 16), b);
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i + 32), c);
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i + 48), d);
  }
}

struct StreamKernel {
  const char* name;
  void (*stream)(uint8_t*, const uint8_t*, uint64_t);
};

StreamKernel ChooseKernel() {
  if (__builtin_cpu_supports("avx512f")) return {"avx512", StreamAvx512};
  if (__builtin_cpu_supports("avx2")) return {"avx2", StreamAvx2};
  return {"sse2", StreamSse2};
}

const StreamKernel& Kernel() {
  static const StreamKernel kernel = ChooseKernel();
  return kernel;
}

}  // namespace

void CopyNonTemporal(void* target, const void* source, uint64_t bytes) {
  auto* to = static_cast<uint8_t*>(target);
  const auto* from = static_cast<const uint8_t*>(source);
  const uint64_t misaligned = reinterpret_cast<uintptr_t>(to) % kLineBytes;
  const uint64_t head = misaligned == 0 ? 0 : kLineBytes - misaligned;
  if (bytes < head + kStepBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  const uint64_t body = (bytes - head) / kStepBytes * kStepBytes;
  Kernel().stream(to + head, from + head, body);
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
}

void NonTemporalFence() { _mm_sfence(); }

const char* NonTemporalKernelName() { return Kernel().name; }

#else

void CopyNonTemporal(void* target, const void* source, uint64_t bytes) { std::memcpy(target, source, bytes); }

void NonTemporalFence() {}

const char* NonTemporalKernelName() { return "memcpy"; }

#endif

}  // namespace tpu_sync_native
