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
#define PLACEWRIGHT_NO_INLINE __attribute__((noinline))
#else
#define PLACEWRIGHT_PREFETCH(address) ((void)(address))
#define PLACEWRIGHT_NO_INLINE
#endif

namespace placewright {

template <typename Simd, typename T>
struct SkinnyLoops {
  using Vector = typename Simd::Vector;
  using Factor = typename Simd::template Factor<T>;  // of x, as it is arranged
  static constexpr int64_t kBlock = 2 * Simd::lanes;
  static constexpr int64_t kStep = Simd::template depth_step<T>;  // weight rows that `adds` multiplies at once
  // The figures below were measured on a core that reads 45 GB/s alone, where a product has least time. Reads run
  // ahead of the arithmetic by themselves only while there are few instructions for a line: then prefetching is a loss.
  // Loops with more instructions, because elements are converted or rows are many, reach 0.5 to 0.7 of a read loop
  // without prefetching, and 0.75 to 0.9 with it.
  static constexpr bool kConverts = Simd::template converts<T>;
  static constexpr int64_t kPrefetchBytes = 8192;    // ahead, in a single stream
  static constexpr int64_t kNearFactors = 20 << 10;  // bytes of x that stay in the nearest cache beside a stream
  static constexpr int64_t kChunkBytes = 2048;       // of each weight row, where the next rows are prefetched
  static constexpr int64_t kPrefetchColumns = 512;   // ahead, where weight rows are added

  static void prefetch(const T* from, int64_t bytes) {
    for (int64_t line = 0; line < static_cast<int64_t>(kBlock * sizeof(T)); line += 64)
      PLACEWRIGHT_PREFETCH(reinterpret_cast<uintptr_t>(from) + bytes + line);
  }

  // -- dot products: a weight of N x K -----------------------------------------------------------

  // Dot products of `Rows` rows of x with `tiles` times `Columns` rows of the weight, or of a part of their depth,
  // which `adds_up` to what `out` has. Each has `Unroll` sums, or additions would wait for each other. Rows of x lie
  // side by side, block by block, so that what is read of them fills all sets of a cache evenly. Between two tiles
  // there must be next to nothing, or reads do not run on.
  template <int Rows, int Columns, int Unroll, bool Prefetch>
  static void dot_tiles(const Factor* x, const T* weight, int64_t weight_stride, int64_t depth, int64_t ahead,
                        int64_t tiles, float* out, int64_t out_stride, bool adds_up) {
    const int64_t whole = depth / (Unroll * kBlock) * (Unroll * kBlock);
    for (; tiles > 0; --tiles, weight += Columns * weight_stride, out += Columns) {
      // All loops over sums are unrolled: an index that is no constant would put them into memory.
      Vector sums[Rows * Columns][Unroll];
#pragma GCC unroll 16
      for (int sum = 0; sum < Rows * Columns; ++sum)
#pragma GCC unroll 4
        for (int part = 0; part < Unroll; ++part) sums[sum][part] = Simd::zero();
      for (int64_t k = 0; k < whole; k += Unroll * kBlock) {
#pragma GCC unroll 4
        for (int part = 0; part < Unroll; ++part) {
#pragma GCC unroll 4
          for (int column = 0; column < Columns; ++column) {
            const T* from = weight + column * weight_stride + k + part * kBlock;
            if (Prefetch) prefetch(from, ahead);
            const auto block = Simd::load_block(from);
#pragma GCC unroll 4
            for (int row = 0; row < Rows; ++row)
              Simd::dot(block, x + (k + part * kBlock) * Rows + row * kBlock, sums[row * Columns + column][part]);
          }
        }
      }
#pragma GCC unroll 16
      for (int sum = 0; sum < Rows * Columns; ++sum)
#pragma GCC unroll 4
        for (int part = 1; part < Unroll; ++part) sums[sum][0] = Simd::add(sums[sum][0], sums[sum][part]);
      if (whole < depth) {
        Vector rest[Rows * Columns];
        dot_rest<Rows, Columns>(x + whole * Rows, weight + whole, weight_stride, depth - whole, rest);
#pragma GCC unroll 16
        for (int sum = 0; sum < Rows * Columns; ++sum) sums[sum][0] = Simd::add(sums[sum][0], rest[sum]);
      }
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row) {
        Vector totals[Columns];
#pragma GCC unroll 4
        for (int column = 0; column < Columns; ++column) totals[column] = sums[row * Columns + column][0];
        float* to = out + row * out_stride;
        if constexpr (Columns == 4) {
          Simd::sum_four(totals, to, adds_up);
        } else {
          for (int column = 0; column < Columns; ++column)
            to[column] = (adds_up ? to[column] : 0) + Simd::sum(totals[column]);
        }
      }
    }
  }

  // The last elements of rows, fewer than a loop takes at once; memory behind the weight is not read.
  template <int Rows, int Columns>
  PLACEWRIGHT_NO_INLINE static void dot_rest(const Factor* x, const T* weight, int64_t weight_stride, int64_t depth,
                                             Vector* sums) {
    for (int sum = 0; sum < Rows * Columns; ++sum) sums[sum] = Simd::zero();
    for (int64_t k = 0; k < depth; k += kBlock) {
      for (int column = 0; column < Columns; ++column) {
        T part[kBlock] = {};
        const int64_t count = depth - k < kBlock ? depth - k : kBlock;
        std::memcpy(part, weight + column * weight_stride + k, count * sizeof(T));
        const auto block = Simd::load_block(part);
        for (int row = 0; row < Rows; ++row)
          Simd::dot(block, x + k * Rows + row * kBlock, sums[row * Columns + column]);
      }
    }
  }

  // All rows of x, in groups of 4, 2 and 1; if there are several, tile by tile, so that the first group brings the
  // weight to the nearest cache.
  template <int Columns, bool Prefetch>
  static void dot_rows(const Factor* x, int64_t x_stride, int64_t rows, int64_t k, const T* weight,
                       int64_t weight_stride, int64_t depth, int64_t tiles, float* out, int64_t out_stride,
                       bool adds_up) {
    constexpr int kFit = Columns < Simd::registers / 8 ? Columns : Simd::registers / 8;  // columns of four rows
    constexpr int kUnrollTwo = Prefetch || Columns == 1 || Simd::registers < 32 ? 1 : 2;
    constexpr int kUnrollOne = Prefetch ? 1 : Columns == 1 ? 4 : 2;
    const int64_t ahead = 4 * weight_stride * static_cast<int64_t>(sizeof(T));
    const int64_t at_once = rows <= 4 ? tiles : 1;
    for (int64_t tile = 0; tile < tiles; tile += at_once, weight += Columns * weight_stride, out += Columns) {
      for (int64_t row = 0; row < rows; row += 4) {
        const int64_t group = rows - row >= 4 ? 4 : rows - row;
        const Factor* from = x + row * x_stride + k * group;
        float* to = out + row * out_stride;
        const auto loop =
            row > 0 ? (group == 4   ? dot_tiles<4, kFit, 1, false>
                       : group == 2 ? dot_tiles<2, Columns, kUnrollTwo, false>
                                    : dot_tiles<1, Columns, kUnrollOne, false>)
                    : (group == 4   ? dot_tiles<4, kFit, 1, Prefetch>
                       : group == 2 ? dot_tiles<2, Columns, kUnrollTwo, Prefetch>
                                    : dot_tiles<1, Columns, kUnrollOne, Prefetch>);
        loop(from, weight, weight_stride, depth, ahead, at_once * (group == 4 ? Columns / kFit : 1), to, out_stride,
             adds_up);
      }
    }
  }

  // sums[row][column] of `columns` rows of the weight.
  static void dots(const void* x_pointer, int64_t x_bytes, int64_t rows, const void* weight_pointer,
                   int64_t weight_stride, int64_t depth, int64_t columns, float* out, int64_t out_stride) {
    const Factor* x = static_cast<const Factor*>(x_pointer);
    const T* weight = static_cast<const T*>(weight_pointer);
    const int64_t x_stride = x_bytes / static_cast<int64_t>(sizeof(Factor));
    if (kConverts && rows == 1 && depth * static_cast<int64_t>(sizeof(Factor)) <= kNearFactors) {
      dot_tiles<1, 1, 4, kConverts>(x, weight, weight_stride, depth, kPrefetchBytes, columns, out, out_stride, false);
      return;  // one stream is fastest
    }
    constexpr int64_t kChunk = kChunkBytes / static_cast<int64_t>(sizeof(T));
    const bool has_chunks = kConverts || rows > 2;  // of x, which stay in the nearest cache beside eight weight rows
    const int64_t chunk = !has_chunks ? depth + 1 : rows > 4 ? kChunk / 2 : kChunk;
    int64_t k = 0;
    do {  // once if there is no depth: the sums are zeros
      const int64_t size = depth - k < chunk ? depth - k : chunk, whole = columns / 4 * 4;
      (has_chunks ? dot_rows<4, true> : dot_rows<4, false>)(x, x_stride, rows, k, weight + k, weight_stride, size,
                                                           whole / 4, out, out_stride, k > 0);
      dot_rows<1, false>(x, x_stride, rows, k, weight + whole * weight_stride + k, weight_stride, size,
                         columns - whole, out + whole, out_stride, k > 0);
      k += chunk;
    } while (k < depth);
  }

  // -- sums of weight rows: a weight of K x N ----------------------------------------------------

  // Add `Steps` steps of weight rows to the sums of `Rows` rows of x, for a block of columns. Rows of x lie side by
  // side, step by step.
  template <int Rows, int Steps, bool Prefetch>
  static void add_block(const Factor* x, const T* from, int64_t stride, int64_t ahead, float* sums,
                        int64_t sum_stride) {
    Vector low[Rows], high[Rows];
#pragma GCC unroll 4
    for (int row = 0; row < Rows; ++row) {
      low[row] = Simd::load_floats(sums + row * sum_stride);
      high[row] = Simd::load_floats(sums + row * sum_stride + Simd::lanes);
    }
#pragma GCC unroll 8
    for (int step = 0; step < Steps; ++step) {
      const T* row_pointer = from + step * kStep * stride;
      if (Prefetch)
        for (int k = 0; k < kStep; ++k) prefetch(row_pointer + k * stride, ahead);
      const auto block = Simd::load_rows(row_pointer, stride);
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row)
        Simd::multiply_rows(block, x + (step * Rows + row) * kStep, low[row], high[row]);
    }
#pragma GCC unroll 4
    for (int row = 0; row < Rows; ++row) {
      Simd::store_floats(sums + row * sum_stride, low[row]);
      Simd::store_floats(sums + row * sum_stride + Simd::lanes, high[row]);
    }
  }

  // Add weight rows, `Steps` steps at once; the columns and rows that are left over are in `add_rest`.
  template <int Rows, int Steps, bool Prefetch>
  static void add_tiles(const Factor* x, const T* weight, int64_t stride, int64_t depth, int64_t columns, float* sums,
                        int64_t sum_stride) {
    constexpr int kDepth = Steps * kStep;
    const int64_t whole = columns / kBlock * kBlock;
    const int64_t ahead = columns < kPrefetchColumns ? columns : kPrefetchColumns;
    const int64_t next_ahead = kDepth * stride - columns + ahead;  // from the end of these rows to the next ones
    for (; depth >= kDepth; depth -= kDepth, x += kDepth * Rows, weight += kDepth * stride) {
      for (int64_t column = 0; column < whole; column += kBlock) {
        const int64_t bytes = (column + ahead < columns ? ahead : next_ahead) * static_cast<int64_t>(sizeof(T));
        add_block<Rows, Steps, Prefetch>(x, weight + column, stride, bytes, sums + column, sum_stride);
      }
      if (whole < columns)
        add_rest<Rows, Steps>(x, weight + whole, stride, kDepth, columns - whole, sums + whole, sum_stride);
    }
    if (depth > 0) add_rest<Rows, Steps>(x, weight, stride, depth, columns, sums, sum_stride);
  }

  // Fewer columns than a block, or fewer weight rows than are added at once; memory behind the weight is not read.
  template <int Rows, int Steps>
  PLACEWRIGHT_NO_INLINE static void add_rest(const Factor* x, const T* weight, int64_t stride, int64_t depth,
                                             int64_t columns, float* sums, int64_t sum_stride) {
    for (int64_t column = 0; column < columns; column += kBlock) {
      T part[Steps * kStep][kBlock] = {};
      const int64_t width = columns - column < kBlock ? columns - column : kBlock;
      for (int64_t k = 0; k < depth; ++k) std::memcpy(part[k], weight + k * stride + column, width * sizeof(T));
      add_block<Rows, Steps, false>(x, part[0], kBlock, 0, sums + column, sum_stride);
    }
  }

  // All rows of x, in groups of 4, 2 and 1. `Depth` weight rows are added to a sum before it is written; sums of a tile
  // of columns stay in the nearest cache, and if there are several groups, so do the weight rows.
  template <int Depth, bool Prefetch>
  static void add_columns(const Factor* x, int64_t x_stride, int64_t rows, int64_t first, const T* weight,
                          int64_t weight_stride, int64_t depth, int64_t columns, float* sums, int64_t sum_stride,
                          int64_t tile) {
    constexpr int kSteps = Depth / kStep;
    const int64_t at_once = rows <= 4 ? depth : Depth;
    for (int64_t column = 0; column < columns; column += tile) {
      const int64_t width = columns - column < tile ? columns - column : tile;
      for (int64_t k = 0; k < depth; k += at_once) {
        for (int64_t row = 0; row < rows; row += 4) {
          const int64_t group = rows - row >= 4 ? 4 : rows - row;
          const auto loop = row > 0 ? (group == 4   ? add_tiles<4, kSteps, false>
                                       : group == 2 ? add_tiles<2, kSteps, false>
                                                    : add_tiles<1, kSteps, false>)
                                    : (group == 4   ? add_tiles<4, kSteps, Prefetch>
                                       : group == 2 ? add_tiles<2, kSteps, Prefetch>
                                                    : add_tiles<1, kSteps, Prefetch>);
          loop(x + row * x_stride + (first + k) * group, weight + k * weight_stride + column, weight_stride,
               depth - k < at_once ? depth - k : at_once, width, sums + row * sum_stride + column, sum_stride);
        }
      }
    }
  }

  // Add the products of `depth` rows of the weight, and of x from `first`, to sums[row][column], in the order of
  // `column_order`. Rows of x are padded with zeros to a multiple of 16.
  static void adds(const void* x_pointer, int64_t x_bytes, int64_t rows, int64_t first, const void* weight_pointer,
                   int64_t weight_stride, int64_t depth, int64_t columns, float* sums, int64_t sum_stride) {
    constexpr int kDepthOfFour = sizeof(T) == 4 ? 4 : 8;  // with more rows of x, fewer lines of the weight at once
    const auto loop = rows > 2 ? add_columns<kDepthOfFour, true> : add_columns<8, kConverts>;
    loop(static_cast<const Factor*>(x_pointer), x_bytes / static_cast<int64_t>(sizeof(Factor)), rows, first,
         static_cast<const T*>(weight_pointer), weight_stride, depth, columns, sums, sum_stride,
         rows > 2 ? 1024 : 4096);
  }

  // -- x, bias and outputs -----------------------------------------------------------------------

  // A row of x, one of a group whose rows lie side by side: for dot products block by block, else step by step. The
  // last block is padded with zeros.
  template <bool ForDots>
  static void arrange(const void* from_pointer, int64_t count, int64_t group, int64_t row, void* to_pointer) {
    const T* from = static_cast<const T*>(from_pointer);
    Factor* to = static_cast<Factor*>(to_pointer);
    for (int64_t at = 0; at < count; at += kBlock) {
      T part[kBlock] = {};
      const int64_t width = count - at < kBlock ? count - at : kBlock;
      std::memcpy(part, from + at, width * sizeof(T));
      if (ForDots) {
        Simd::arrange_block(part, to + at * group + row * kBlock);
        continue;
      }
      Factor widened[kBlock];
      Simd::widen_block(part, widened);
      for (int64_t k = 0; k < kBlock; k += kStep)
        std::memcpy(to + (at + k) * group + row * kStep, widened + k, kStep * sizeof(Factor));
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
