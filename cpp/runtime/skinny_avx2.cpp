// Products of few rows with AVX2, FMA and F16C.
#include <immintrin.h>

#include "skinny_kernels.hpp"

namespace placewright {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr int64_t lanes = 8;
  template <typename T>
  using Factor = float;
  template <typename T>
  static constexpr int64_t depth_step = 1;
  template <typename T>
  static constexpr bool converts = sizeof(T) == 2;
  static constexpr int registers = 16;

  struct Floats {
    Vector low, high;
  };

  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector load_floats(const float* from) { return _mm256_loadu_ps(from); }
  static void store_floats(float* to, Vector value) { _mm256_storeu_ps(to, value); }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector exclusive_or(Vector a, Vector b) { return _mm256_xor_ps(a, b); }
  static float sum(Vector value) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
  }
  static void sum_four(const Vector* values, float* to, bool adds_up) {
    const Vector pairs = _mm256_hadd_ps(_mm256_hadd_ps(values[0], values[1]), _mm256_hadd_ps(values[2], values[3]));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storeu_ps(to, adds_up ? _mm_add_ps(_mm_loadu_ps(to), sums) : sums);
  }

  static Floats load_block(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + lanes)}; }
  static Floats load_block(const Float16* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + lanes)))};
  }
  static Floats load_block(const BFloat16* from) {  // even and odd elements
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))))};
  }
  static void dot(const Floats& block, const float* x, Vector& sum) {
    sum = _mm256_fmadd_ps(block.low, _mm256_loadu_ps(x), sum);
    sum = _mm256_fmadd_ps(block.high, _mm256_loadu_ps(x + lanes), sum);
  }
  template <typename T>
  static Floats load_rows(const T* from, int64_t) {
    return load_block(from);
  }
  static void multiply_rows(const Floats& block, const float* x, Vector& low, Vector& high) {
    const Vector factor = _mm256_set1_ps(*x);
    low = _mm256_fmadd_ps(block.low, factor, low);
    high = _mm256_fmadd_ps(block.high, factor, high);
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
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + half * lanes));
      store_floats(to + half * lanes, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)));
    }
  }
  static const uint8_t* column_order(const void*) {
    static constexpr uint8_t order[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return order;
  }
  static const uint8_t* column_order(const BFloat16*) {
    static constexpr uint8_t order[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
    return order;
  }

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
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(to + half * lanes),
          _mm256_cvtps_ph(load_floats(from + half * lanes), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void round_block(const float* from, BFloat16* to) {  // ties to even; a NaN stays one
    const __m256i first = rounded(load_floats(from)), second = rounded(load_floats(from + lanes));
    const __m256i packed = _mm256_packus_epi32(first, second);  // by halves of a vector, which are put in order
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static __m256i rounded(Vector value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m256 chosen = _mm256_blendv_ps(_mm256_castsi256_ps(nearest), _mm256_castsi256_ps(quiet), is_nan);
    return _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
  }
};

}  // namespace

InstructionSet avx2_instructions() { return instruction_set_of<Avx2>("avx2"); }

}  // namespace placewright
