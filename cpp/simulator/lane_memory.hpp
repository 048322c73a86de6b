// Types, loads, stores and bits of numbers, as a thread of a GPU has them, and on the host.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cstdint>
#include <cstring>
#endif

#if defined(__CUDACC__)  // nvcc and NVRTC
#define PLACEWRIGHT_DEVICE __host__ __device__ __forceinline__
#define PLACEWRIGHT_UNROLL _Pragma("unroll")
#define PLACEWRIGHT_NO_UNROLL _Pragma("unroll 1")
#else
#define PLACEWRIGHT_UNROLL
#define PLACEWRIGHT_NO_UNROLL
#define PLACEWRIGHT_DEVICE inline __attribute__((always_inline))
#endif

namespace placewright {

#if defined(__CUDACC_RTC__)
using uint8_t = unsigned char;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#else
using std::int32_t, std::int64_t, std::uint8_t, std::uint32_t, std::uint64_t;
#endif

template <typename T>
PLACEWRIGHT_DEVICE T* array_at(int64_t address) {
  return reinterpret_cast<T*>(static_cast<size_t>(address));
}

// Loads and stores, and what they bypass.
template <typename Record>
PLACEWRIGHT_DEVICE Record load_record(const char* at) {
  static_assert(sizeof(Record) % 16 == 0);
  Record record;
#if defined(__CUDA_ARCH__)
  uint4 quads[sizeof(Record) / 16];
  PLACEWRIGHT_UNROLL
  for (int quad = 0; quad < static_cast<int>(sizeof(Record) / 16); ++quad) {
    quads[quad] = __ldg(reinterpret_cast<const uint4*>(at) + quad);
  }
  memcpy(&record, quads, sizeof record);
#else
  memcpy(&record, at, sizeof record);
#endif
  return record;
}

// An address that the compiler takes as it is: a product and a sum then are one instruction, not four.
template <typename T>
PLACEWRIGHT_DEVICE auto opaque(T* pointer) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(pointer));
#endif
  return pointer;
}

PLACEWRIGHT_DEVICE uint32_t load_device(const uint8_t* at) {
#if defined(__CUDA_ARCH__)
  return __ldcg(at);
#else
  return *at;
#endif
}

PLACEWRIGHT_DEVICE float load_seconds(const char* at, uint32_t index) {
#if defined(__CUDA_ARCH__)
  return __ldg(reinterpret_cast<const float*>(at) + index);
#else
  float seconds;
  memcpy(&seconds, at + 4 * index, 4);
  return seconds;
#endif
}

PLACEWRIGHT_DEVICE uint32_t load_arrival(const uint32_t* at) {
#if defined(__CUDA_ARCH__)
  return __ldcg(at);
#else
  return *at;
#endif
}

PLACEWRIGHT_DEVICE void store_arrival(uint32_t* at, uint32_t word) {
#if defined(__CUDA_ARCH__)
  __stcg(at, word);
#else
  *at = word;
#endif
}

PLACEWRIGHT_DEVICE float as_time(uint32_t word) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(word);
#else
  float time;
  memcpy(&time, &word, 4);
  return time;
#endif
}

PLACEWRIGHT_DEVICE uint32_t as_word(float time) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(time);
#else
  uint32_t word;
  memcpy(&word, &time, 4);
  return word;
#endif
}

// 2 to a power from -126 to 127.
PLACEWRIGHT_DEVICE float power_of_two(int exponent) {
  const uint32_t word = static_cast<uint32_t>(exponent + 127) << 23;
#if defined(__CUDA_ARCH__)
  return __uint_as_float(word);
#else
  float power;
  memcpy(&power, &word, 4);
  return power;
#endif
}

PLACEWRIGHT_DEVICE int lowest_bit(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(bits)) - 1;
#else
  return __builtin_ctz(bits);
#endif
}

PLACEWRIGHT_DEVICE uint32_t count_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}

PLACEWRIGHT_DEVICE float later(float one, float two) {
#if defined(__CUDA_ARCH__)
  return fmaxf(one, two);
#else
  return one < two ? two : one;
#endif
}

template <typename T>
PLACEWRIGHT_DEVICE T larger(T one, T two) {
  return one < two ? two : one;
}

}  // namespace placewright
