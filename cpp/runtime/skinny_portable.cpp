// Products of few rows in plain C++, for every processor.
#include "skinny_kernels.hpp"

namespace placewright {
namespace {

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

float to_float(float value) { return value; }

float to_float(BFloat16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = value.bits >> 10 & 0x1f, fraction = value.bits & 0x3ff;
  if (exponent == 0x1f) return float_of(sign | 0x7f800000 | (fraction ? fraction << 13 | 0x400000 : 0));
  if (exponent != 0) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
  const float size = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // 2^-24, the unit of subnormals
  return float_of(sign | bits_of(size));
}

void round_to(float value, float& to) { to = value; }

void round_to(float value, BFloat16& to) {
  const uint32_t bits = bits_of(value);
  const uint32_t nearest = bits + 0x7fff + (bits >> 16 & 1);
  to.bits = static_cast<uint16_t>((value != value ? bits | 0x400000 : nearest) >> 16);
}

void round_to(float value, Float16& to) {
  const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  uint32_t half;
  if (size > 0x7f800000)
    half = 0x7e00 | (size >> 13 & 0x3ff);  // a NaN
  else if (size >= 0x477ff000)
    half = 0x7c00;  // rounds to infinity
  else if (size >= 0x38800000)
    half = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
  else  // subnormal: the sum puts the last bit of a half at the last bit of a float, which rounds
    half = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
  to.bits = static_cast<uint16_t>(sign | half);
}

struct Portable {
  static constexpr int64_t lanes = 8;
  struct Vector {
    float at[lanes];
  };
  template <typename T>
  using Factor = float;
  template <typename T>
  static constexpr int64_t depth_step = 1;
  template <typename T>
  static constexpr bool converts = false;
  static constexpr int registers = 16;

  struct Floats {
    Vector low, high;
  };

  static Vector zero() { return Vector{}; }
  static Vector load_floats(const float* from) {
    Vector result;
    std::memcpy(result.at, from, sizeof(result.at));
    return result;
  }
  static void store_floats(float* to, const Vector& value) { std::memcpy(to, value.at, sizeof(value.at)); }
  static Vector add(const Vector& a, const Vector& b) {
    Vector result;
    for (int64_t lane = 0; lane < lanes; ++lane) result.at[lane] = a.at[lane] + b.at[lane];
    return result;
  }
  static void multiply_add(const Vector& a, const Vector& b, Vector& sum) {
    for (int64_t lane = 0; lane < lanes; ++lane) sum.at[lane] += a.at[lane] * b.at[lane];
  }
  static float sum(const Vector& value) {
    float half[4];
    for (int lane = 0; lane < 4; ++lane) half[lane] = value.at[lane] + value.at[lane + 4];
    return (half[0] + half[2]) + (half[1] + half[3]);
  }
  static void sum_four(const Vector* values, float* to, bool adds_up) {
    for (int at = 0; at < 4; ++at) to[at] = (adds_up ? to[at] : 0) + sum(values[at]);
  }
  static Vector exclusive_or(const Vector& a, const Vector& b) {
    Vector result;
    for (int64_t lane = 0; lane < lanes; ++lane) result.at[lane] = float_of(bits_of(a.at[lane]) ^ bits_of(b.at[lane]));
    return result;
  }

  template <typename T>
  static Floats load_block(const T* from) {
    Floats block;
    for (int64_t lane = 0; lane < lanes; ++lane) block.low.at[lane] = to_float(from[lane]);
    for (int64_t lane = 0; lane < lanes; ++lane) block.high.at[lane] = to_float(from[lane + lanes]);
    return block;
  }
  static void dot(const Floats& block, const float* x, Vector& sum) {
    multiply_add(block.low, load_floats(x), sum);
    multiply_add(block.high, load_floats(x + lanes), sum);
  }
  template <typename T>
  static Floats load_rows(const T* from, int64_t) {
    return load_block(from);
  }
  static void multiply_rows(const Floats& block, const float* x, Vector& low, Vector& high) {
    Vector factor;
    for (float& lane : factor.at) lane = *x;
    multiply_add(block.low, factor, low);
    multiply_add(block.high, factor, high);
  }
  template <typename T>
  static void arrange_block(const T* from, float* to) {
    for (int64_t at = 0; at < 2 * lanes; ++at) to[at] = to_float(from[at]);
  }
  template <typename T>
  static void widen_block(const T* from, float* to) {
    arrange_block(from, to);
  }
  static const uint8_t* column_order(const void*) {
    static constexpr uint8_t order[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return order;
  }

  template <typename T>
  static void add_block(const T* bias, float* values) {
    for (int64_t at = 0; at < 2 * lanes; ++at) values[at] += to_float(bias[at]);
  }
  template <typename T>
  static void round_block(const float* from, T* to) {
    for (int64_t at = 0; at < 2 * lanes; ++at) round_to(from[at], to[at]);
  }
};

}  // namespace

InstructionSet portable_instructions() { return instruction_set_of<Portable>("portable"); }

}  // namespace placewright
