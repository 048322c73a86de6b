// The loops of a product of few rows; each instruction set includes this with its own `Simd`.
//
// `Simd` has vectors of `lanes` floats and reads elements in blocks of two vectors. Which element comes to which lane
// is its own affair: bfloat16 is cheapest as even and odd elements. So x is arranged in the same way for dot products,
// and the sums of `adds` are put in order afterwards (`column_order`).
//
// No function in here may be shared with a file that is compiled for another instruction set: all are templates of
// `Simd`, which differs from file to file, and nothing of the standard library but memcpy is called.
#pragma once

#include <cstdint>
#include <cstring>

#include "skinny_gemm.hpp"

#if defined(__GNUC__) || defined(__clang__)
#define PLACEWRIGHT_PREFETCH(address) __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 3)
#else
#define PLACEWRIGHT_PREFETCH(address) ((void)(address))
#endif

namespace placewright {

template <typename Simd, typename T>
struct SkinnyLoops {
  using Vector = typename Simd::Vector;
  using Factor = typename Simd::template Factor<T>;  // of x, as it is arranged
  static constexpr int64_t kBlock = 2 * Simd::lanes;
  static constexpr int64_t kStep = Simd::template depth_step<T>;  // weight rows that `adds` multiplies at once
  // The figures below were measured on a core that reads 47 GB/s alone, where a product has least time.
  // Without prefetching, loops with more instructions for a line reached 0.75 to 0.82 of a read loop, with it 0.9.
  static constexpr bool kPrefetches = Simd::template prefetches<T>;
  static constexpr int64_t kPrefetchBytes = 8192;    // ahead, in a single stream
  static constexpr int64_t kNearFactors = 20 << 10;  // bytes of x that stay in the nearest cache beside a stream
  static constexpr int64_t kDepth = 8;               // weight rows that are added to a sum before it is written
  static constexpr int64_t kTile = 4096;             // columns of these rows, whose sums stay in the nearest cache

  static void prefetch(const T* from, int64_t bytes) {
    for (int64_t line = 0; line < static_cast<int64_t>(kBlock * sizeof(T)); line += 64)
      PLACEWRIGHT_PREFETCH(reinterpret_cast<uintptr_t>(from) + bytes + line);
  }

  // -- dot products: a weight of N x K -----------------------------------------------------------

  // `Rows` rows of x with `Columns` rows of the weight; `Unroll` sums for each, or additions would wait for each other.
  template <int Rows, int Columns, int Unroll, bool Prefetch>
  static void dot_tile(const Factor* x, int64_t x_stride, const T* weight, int64_t weight_stride, int64_t depth,
                       float* out, int64_t out_stride) {
    Vector sums[Rows][Columns][Unroll];
    for (int row = 0; row < Rows; ++row)
      for (int column = 0; column < Columns; ++column)
        for (int part = 0; part < Unroll; ++part) sums[row][column][part] = Simd::zero();
    int64_t k = 0;
    for (; k + Unroll * kBlock <= depth; k += Unroll * kBlock) {
#pragma GCC unroll 8
      for (int part = 0; part < Unroll; ++part) {
        const int64_t at = k + part * kBlock;
#pragma GCC unroll 8
        for (int column = 0; column < Columns; ++column) {
          const T* from = weight + column * weight_stride + at;
          if (Prefetch) prefetch(from, kPrefetchBytes);
          const auto block = Simd::load_block(from);
#pragma GCC unroll 4
          for (int row = 0; row < Rows; ++row)
            Simd::dot(block, x + row * x_stride + at, sums[row][column][part]);
        }
      }
    }
    for (; k < depth; k += kBlock) {
      for (int column = 0; column < Columns; ++column) {
        T part[kBlock] = {};  // memory behind the row is not read
        const int64_t count = depth - k < kBlock ? depth - k : kBlock;
        std::memcpy(part, weight + column * weight_stride + k, count * sizeof(T));
        const auto block = Simd::load_block(part);
        for (int row = 0; row < Rows; ++row) Simd::dot(block, x + row * x_stride + k, sums[row][column][0]);
      }
    }
    for (int row = 0; row < Rows; ++row)
      for (int column = 0; column < Columns; ++column) {
        Vector sum = sums[row][column][0];
        for (int part = 1; part < Unroll; ++part) sum = Simd::add(sum, sums[row][column][part]);
        out[row * out_stride + column] = Simd::sum(sum);
      }
  }

  template <int Columns, int Unroll, bool Prefetch>
  static void dot_rows(const Factor* x, int64_t x_stride, int64_t rows, const T* weight, int64_t weight_stride,
                       int64_t depth, float* out, int64_t out_stride) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4)
      dot_tile<4, Columns, 1, false>(x + row * x_stride, x_stride, weight, weight_stride, depth,
                                     out + row * out_stride, out_stride);
    const Factor* rest = x + row * x_stride;
    float* to = out + row * out_stride;
    if (rows - row == 3) dot_tile<3, Columns, 1, false>(rest, x_stride, weight, weight_stride, depth, to, out_stride);
    if (rows - row == 2)
      dot_tile<2, Columns, Unroll == 1 ? 1 : 2, Prefetch>(rest, x_stride, weight, weight_stride, depth, to, out_stride);
    if (rows - row == 1)
      dot_tile<1, Columns, Unroll, Prefetch>(rest, x_stride, weight, weight_stride, depth, to, out_stride);
  }

  // sums[row][column] of `columns` rows of the weight.
  static void dots(const void* x_pointer, int64_t x_bytes, int64_t rows, const void* weight_pointer,
                   int64_t weight_stride, int64_t depth, int64_t columns, float* out, int64_t out_stride) {
    const Factor* x = static_cast<const Factor*>(x_pointer);
    const int64_t x_stride = x_bytes / static_cast<int64_t>(sizeof(Factor));
    const T* weight = static_cast<const T*>(weight_pointer);
    int64_t column = 0;
    if (rows <= 2 && rows * depth * static_cast<int64_t>(sizeof(Factor)) <= kNearFactors) {
      // One stream is fastest. The last rows are not prefetched: what follows is another thread's.
      const int64_t last = columns - 1 - kPrefetchBytes / (weight_stride * static_cast<int64_t>(sizeof(T)) + 1);
      for (; column < last; ++column)
        dot_rows<1, kPrefetches ? 4 : 8, kPrefetches>(x, x_stride, rows, weight + column * weight_stride,
                                                      weight_stride, depth, out + column, out_stride);
    } else {  // x comes from a farther cache: each read of it serves four rows of the weight
      for (; column + 4 <= columns; column += 4)
        dot_rows<4, 1, false>(x, x_stride, rows, weight + column * weight_stride, weight_stride, depth, out + column,
                              out_stride);
    }
    for (; column < columns; ++column)
      dot_rows<1, 4, false>(x, x_stride, rows, weight + column * weight_stride, weight_stride, depth, out + column,
                            out_stride);
  }

  // -- sums of weight rows: a weight of K x N ----------------------------------------------------

  // Add `Steps` steps of weight rows to the sums of `Rows` rows of x; `count` weight rows, the rest is zero.
  template <int Rows, int Steps, bool Prefetch>
  static void add_tile(const Factor* x, int64_t x_stride, const T* weight, int64_t weight_stride, int64_t count,
                       int64_t columns, float* sums, int64_t sum_stride) {
    for (int64_t column = 0; column < columns; column += kBlock) {
      Vector low[Rows], high[Rows];
      for (int row = 0; row < Rows; ++row) {
        low[row] = Simd::load_floats(sums + row * sum_stride + column);
        high[row] = Simd::load_floats(sums + row * sum_stride + column + Simd::lanes);
      }
#pragma GCC unroll 8
      for (int step = 0; step < Steps; ++step) {
        const T* from = weight + step * kStep * weight_stride + column;
        if (Prefetch) prefetch(from, weight_stride * static_cast<int64_t>(sizeof(T)));
        T part[kStep][kBlock];
        int64_t stride = weight_stride;
        if (columns - column < kBlock || count < Steps * kStep) {  // memory behind the weight is not read
          std::memset(part, 0, sizeof(part));
          const int64_t width = columns - column < kBlock ? columns - column : kBlock;
          for (int64_t k = 0; k < kStep && step * kStep + k < count; ++k)
            std::memcpy(part[k], from + k * weight_stride, width * sizeof(T));
          from = part[0];
          stride = kBlock;
        }
        const auto block = Simd::load_rows(from, stride);
#pragma GCC unroll 4
        for (int row = 0; row < Rows; ++row)
          Simd::multiply_rows(block, x + row * x_stride + step * kStep, low[row], high[row]);
      }
      for (int row = 0; row < Rows; ++row) {
        Simd::store_floats(sums + row * sum_stride + column, low[row]);
        Simd::store_floats(sums + row * sum_stride + column + Simd::lanes, high[row]);
      }
    }
  }

  template <int Steps, bool Prefetch>
  static void add_rows(const Factor* x, int64_t x_stride, int64_t rows, const T* weight, int64_t weight_stride,
                       int64_t count, int64_t columns, float* sums, int64_t sum_stride) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4)
      add_tile<4, Steps, false>(x + row * x_stride, x_stride, weight, weight_stride, count, columns,
                                sums + row * sum_stride, sum_stride);
    if (row + 2 <= rows) {
      add_tile<2, Steps, false>(x + row * x_stride, x_stride, weight, weight_stride, count, columns,
                                sums + row * sum_stride, sum_stride);
      row += 2;
    }
    if (row < rows)
      add_tile<1, Steps, Prefetch>(x + row * x_stride, x_stride, weight, weight_stride, count, columns,
                                   sums + row * sum_stride, sum_stride);
  }

  // Add the products of `depth` rows of the weight to sums[row][column], in the order of `column_order`.
  static void adds(const void* x_pointer, int64_t x_bytes, int64_t rows, const void* weight_pointer,
                   int64_t weight_stride, int64_t depth, int64_t columns, float* sums, int64_t sum_stride) {
    const Factor* x = static_cast<const Factor*>(x_pointer);
    const int64_t x_stride = x_bytes / static_cast<int64_t>(sizeof(Factor));
    const T* weight = static_cast<const T*>(weight_pointer);
    if (kStep == 1 && rows == 1 && columns <= kTile) {  // one stream, whose sums stay in the nearest cache
      for (int64_t k = 0; k + 1 < depth; ++k)
        add_rows<1, true>(x + k, x_stride, rows, weight + k * weight_stride, weight_stride, 1, columns, sums,
                          sum_stride);
      if (depth > 0)
        add_rows<1, false>(x + depth - 1, x_stride, rows, weight + (depth - 1) * weight_stride, weight_stride, 1,
                           columns, sums, sum_stride);
      return;
    }
    for (int64_t column = 0; column < columns; column += kTile) {
      const int64_t width = columns - column < kTile ? columns - column : kTile;
      int64_t k = 0;
      for (; k + kDepth <= depth; k += kDepth)
        add_rows<kDepth / kStep, false>(x + k, x_stride, rows, weight + k * weight_stride + column, weight_stride,
                                        kDepth, width, sums + column, sum_stride);
      for (; k < depth; k += kStep)
        add_rows<1, false>(x + k, x_stride, rows, weight + k * weight_stride + column, weight_stride,
                           depth - k < kStep ? depth - k : kStep, width, sums + column, sum_stride);
    }
  }

  // -- x, bias and outputs -----------------------------------------------------------------------

  template <bool ForDots>
  static void arrange(const void* from_pointer, int64_t count, void* to_pointer) {
    const T* from = static_cast<const T*>(from_pointer);
    Factor* to = static_cast<Factor*>(to_pointer);
    for (int64_t at = 0; at < count; at += kBlock) {
      T part[kBlock] = {};
      const int64_t width = count - at < kBlock ? count - at : kBlock;
      std::memcpy(part, from + at, width * sizeof(T));
      ForDots ? Simd::arrange_block(part, to + at) : Simd::widen_block(part, to + at);
    }
  }

  // Sums in the order of columns, with the bias, rounded once.
  static void round(const float* sums, const void* bias_pointer, int64_t count, void* to_pointer) {
    const T* bias = static_cast<const T*>(bias_pointer);
    T* to = static_cast<T*>(to_pointer);
    for (int64_t at = 0; at < count; at += kBlock) {
      const int64_t width = count - at < kBlock ? count - at : kBlock;
      float values[kBlock] = {};
      std::memcpy(values, sums + at, width * sizeof(float));
      T part[kBlock] = {};
      if (bias != nullptr) {
        std::memcpy(part, bias + at, width * sizeof(T));
        Simd::add_block(part, values);
      }
      Simd::round_block(values, part);
      std::memcpy(to + at, part, width * sizeof(T));
    }
  }

  static DtypeLoops table() {
    const uint8_t* order = Simd::column_order(static_cast<const T*>(nullptr));
    return {sizeof(Factor), order, arrange<true>, arrange<false>, dots, adds, round};
  }
};

// A plain read loop.
template <typename Simd>
uint64_t read_plainly(const void* from_pointer, int64_t bytes) {
  const float* from = static_cast<const float*>(from_pointer);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
  typename Simd::Vector sums[8];
  for (auto& sum : sums) sum = Simd::zero();
  for (int64_t at = 0; at + 8 * Simd::lanes <= count; at += 8 * Simd::lanes)
#pragma GCC unroll 8
    for (int part = 0; part < 8; ++part)
      sums[part] = Simd::exclusive_or(sums[part], Simd::load_floats(from + at + part * Simd::lanes));
  for (int part = 1; part < 8; ++part) sums[0] = Simd::exclusive_or(sums[0], sums[part]);
  float lanes[Simd::lanes];
  Simd::store_floats(lanes, sums[0]);
  uint32_t first;
  std::memcpy(&first, lanes, sizeof(first));
  return first;
}

template <typename Simd>
InstructionSet instruction_set_of(const char* name) {
  return {name,
          2 * Simd::lanes,
          {SkinnyLoops<Simd, BFloat16>::table(), SkinnyLoops<Simd, Float16>::table(),
           SkinnyLoops<Simd, float>::table()},
          read_plainly<Simd>};
}

}  // namespace placewright
