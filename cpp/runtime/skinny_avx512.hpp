// AVX-512 for `skinny_kernels.hpp`; bfloat16 with its own instruction where the file is compiled for that.
//
// All is in a namespace of the including file: files for different processors must share no function.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "skinny_kernels.hpp"

namespace placewright {
namespace {

constexpr uint8_t kInOrder[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                  16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

struct Avx512 {
  using Vector = __m512;
  static constexpr int64_t lanes = 16;
#ifdef __AVX512BF16__
  static constexpr bool kHasDots = true;  // of pairs of bfloat16
#else
  static constexpr bool kHasDots = false;
#endif
  template <typename T>
  static constexpr bool kPairs = kHasDots && std::is_same_v<T, BFloat16>;
  template <typename T>
  using Factor = std::conditional_t<kPairs<T>, BFloat16, float>;
  template <typename T>
  static constexpr int64_t depth_step = kPairs<T> ? 2 : 1;
  template <typename T>
  static constexpr bool converts = !kPairs<T> && sizeof(T) == 2;
  static constexpr int registers = 32;

  struct Floats {
    Vector low, high;
  };

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector load_floats(const float* from) { return _mm512_loadu_ps(from); }
  static void store_floats(float* to, Vector value) { _mm512_storeu_ps(to, value); }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static float sum(Vector value) { return _mm512_reduce_add_ps(value); }
  static void sum_four(const Vector* values, float* to, bool adds_up) {
    const Vector first = add(_mm512_unpacklo_ps(values[0], values[1]), _mm512_unpackhi_ps(values[0], values[1]));
    const Vector second = add(_mm512_unpacklo_ps(values[2], values[3]), _mm512_unpackhi_ps(values[2], values[3]));
    const __m512d a = _mm512_castps_pd(first), b = _mm512_castps_pd(second);
    const Vector lanes_of_four =
        add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    const __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(lanes_of_four), _mm512_extractf32x8_ps(lanes_of_four, 1));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    _mm_storeu_ps(to, adds_up ? _mm_add_ps(_mm_loadu_ps(to), sums) : sums);
  }
  static Vector exclusive_or(Vector a, Vector b) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }

  // -- elements as floats ------------------------------------------------------------------------

  static Floats load_block(const float* from) { return {_mm512_loadu_ps(from), _mm512_loadu_ps(from + lanes)}; }
  static Floats load_block(const Float16* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))),
            _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + lanes)))};
  }
  static void dot(const Floats& block, const float* x, Vector& sum) {
    sum = _mm512_fmadd_ps(block.low, _mm512_loadu_ps(x), sum);
    sum = _mm512_fmadd_ps(block.high, _mm512_loadu_ps(x + lanes), sum);
  }
  template <typename T>
  static Floats load_rows(const T* from, int64_t) {
    return load_block(from);
  }
  static void multiply_rows(const Floats& block, const float* x, Vector& low, Vector& high) {
    const Vector factor = _mm512_set1_ps(*x);
    low = _mm512_fmadd_ps(block.low, factor, low);
    high = _mm512_fmadd_ps(block.high, factor, high);
  }
  template <typename T>
  static void arrange_block(const T* from, float* to) {
    const Floats block = load_block(from);
    store_floats(to, block.low);
    store_floats(to + lanes, block.high);
  }
  template <typename T>
  static void widen_block(const T* from, float* to) {
    arrange_block(from, to);
  }
  static void widen_block(const BFloat16* from, float* to) {
    for (int half = 0; half < 2; ++half) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + half * lanes));
      _mm512_storeu_si512(to + half * lanes, _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
  }
  static const uint8_t* column_order(const void*) { return kInOrder; }

  // -- bfloat16 ----------------------------------------------------------------------------------

#ifdef __AVX512BF16__
  struct Bits {
    __m512i all;
  };
  struct BitRows {
    __m512i low, high;
  };

  static Bits load_block(const BFloat16* from) { return {_mm512_loadu_si512(from)}; }
  static void dot(const Bits& block, const BFloat16* x, Vector& sum) {
    sum = _mm512_dpbf16_ps(sum, (__m512bh)block.all, (__m512bh)_mm512_loadu_si512(x));
  }
  // The elements of two rows, side by side.
  static BitRows load_rows(const BFloat16* from, int64_t stride) {
    const __m512i first = _mm512_loadu_si512(from), second = _mm512_loadu_si512(from + stride);
    return {_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second)};
  }
  static void multiply_rows(const BitRows& block, const BFloat16* x, Vector& low, Vector& high) {
    int pair;
    std::memcpy(&pair, x, sizeof(pair));
    const __m512i factors = _mm512_set1_epi32(pair);
    low = _mm512_dpbf16_ps(low, (__m512bh)block.low, (__m512bh)factors);
    high = _mm512_dpbf16_ps(high, (__m512bh)block.high, (__m512bh)factors);
  }
  static void arrange_block(const BFloat16* from, BFloat16* to) { std::memcpy(to, from, 2 * lanes * sizeof(*to)); }
  static void widen_block(const BFloat16* from, BFloat16* to) { arrange_block(from, to); }
  static const uint8_t* column_order(const BFloat16*) {
    static constexpr uint8_t order[32] = {0, 1, 2, 3, 8,  9,  10, 11, 16, 17, 18, 19, 24, 25, 26, 27,
                                          4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31};
    return order;
  }
#else
  static Floats load_block(const BFloat16* from) {  // even and odd elements
    const __m512i pairs = _mm512_loadu_si512(from);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
  }
  static const uint8_t* column_order(const BFloat16*) {
    static constexpr uint8_t order[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                          1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    return order;
  }
#endif

  // -- bias and outputs --------------------------------------------------------------------------

  template <typename T>
  static void add_block(const T* bias, float* values) {
    float widened[2 * lanes];
    widen_block(bias, widened);
    for (int half = 0; half < 2; ++half)
      store_floats(values + half * lanes, add(load_floats(values + half * lanes), load_floats(widened + half * lanes)));
  }
  static void round_block(const float* from, float* to) { std::memcpy(to, from, 2 * lanes * sizeof(float)); }
  static void round_block(const float* from, Float16* to) {
    for (int half = 0; half < 2; ++half)
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(to + half * lanes),
          _mm512_cvtps_ph(load_floats(from + half * lanes), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void round_block(const float* from, BFloat16* to) {  // ties to even; a NaN stays one
    for (int half = 0; half < 2; ++half) {
      const Vector value = load_floats(from + half * lanes);
      const __m512i bits = _mm512_castps_si512(value);
      const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
      const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
      const __m512i rounded = _mm512_mask_or_epi32(nearest, is_nan, bits, _mm512_set1_epi32(0x00400000));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + half * lanes),
                          _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
    }
  }
};

}  // namespace
}  // namespace placewright
