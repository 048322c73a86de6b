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
  // The figures below were measured on a core that reads 45 GB/s alone, where a product has least time. Reads run ahead
  // of the arithmetic by themselves only while there are few instructions for a line: then prefetching is a loss. Loops
  // with more instructions, because elements are converted or rows are many, reach 0.5 to 0.7 of a read loop without
  // prefetching, and 0.75 to 0.9 with it.
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

  // Rows of x lie side by side, block by block, so that what a tile reads of them fills all sets of a cache evenly.
  struct DotTile {
    const Factor* x;
    const T* weight;
    int64_t weight_stride, depth, ahead;  // bytes that are prefetched ahead
    float* out;
    int64_t out_stride;
    bool adds_up;  // to what `out` has
  };

  // `Rows` rows of x with `Columns` rows of the weight; `Unroll` sums for each, or additions would wait for each other.
  template <int Rows, int Columns, int Unroll, bool Prefetch>
  static void dot_tile(const DotTile& tile) {
    const T* weight = tile.weight;
    const int64_t weight_stride = tile.weight_stride, depth = tile.depth, ahead = tile.ahead;
    Vector sums[Rows][Columns][Unroll];
    for (int row = 0; row < Rows; ++row)
      for (int column = 0; column < Columns; ++column)
        for (int part = 0; part < Unroll; ++part) sums[row][column][part] = Simd::zero();
    int64_t k = 0;
    const Factor* x = tile.x;
    for (; k + Unroll * kBlock <= depth; k += Unroll * kBlock, x += Unroll * kBlock * Rows) {
#pragma GCC unroll 8
      for (int part = 0; part < Unroll; ++part) {
#pragma GCC unroll 8
        for (int column = 0; column < Columns; ++column) {
          const T* from = weight + column * weight_stride + k + part * kBlock;
          if (Prefetch) prefetch(from, ahead);
          const auto block = Simd::load_block(from);
#pragma GCC unroll 4
          for (int row = 0; row < Rows; ++row)
            Simd::dot(block, x + (part * Rows + row) * kBlock, sums[row][column][part]);
        }
      }
    }
    for (; k < depth; k += kBlock, x += kBlock * Rows) {
      for (int column = 0; column < Columns; ++column) {
        T part[kBlock] = {};  // memory behind the row is not read
        const int64_t count = depth - k < kBlock ? depth - k : kBlock;
        std::memcpy(part, weight + column * weight_stride + k, count * sizeof(T));
        const auto block = Simd::load_block(part);
        for (int row = 0; row < Rows; ++row) Simd::dot(block, x + row * kBlock, sums[row][column][0]);
      }
    }
    for (int row = 0; row < Rows; ++row) {
      Vector totals[Columns];
      for (int column = 0; column < Columns; ++column) {
        totals[column] = sums[row][column][0];
        for (int part = 1; part < Unroll; ++part) totals[column] = Simd::add(totals[column], sums[row][column][part]);
      }
      float values[Columns];
      if constexpr (Columns == 4)
        Simd::sum_four(totals, values);
      else
        for (int column = 0; column < Columns; ++column) values[column] = Simd::sum(totals[column]);
      float* out = tile.out + row * tile.out_stride;
      for (int column = 0; column < Columns; ++column) out[column] = (tile.adds_up ? out[column] : 0) + values[column];
    }
  }

  // All rows of x, in groups of 4, 2 and 1; the first group brings the weight to the nearest cache.
  template <int Columns, bool Prefetch>
  static void dot_rows(DotTile tile, int64_t rows, int64_t x_stride, int64_t k) {
    const Factor* x = tile.x;
    float* out = tile.out;
    for (int64_t row = 0; row < rows;) {
      const int64_t group = rows - row >= 4 ? 4 : rows - row;
      tile.x = x + row * x_stride + k * group;
      tile.out = out + row * tile.out_stride;
      const bool is_first = row == 0;
      if (group == 4) {
        constexpr int kFit = Columns < Simd::registers / 8 ? Columns : Simd::registers / 8;
        DotTile part = tile;
        for (int column = 0; column < Columns; column += kFit) {
          part.weight = tile.weight + column * tile.weight_stride;
          part.out = tile.out + column;
          is_first ? dot_tile<4, kFit, 1, Prefetch>(part) : dot_tile<4, kFit, 1, false>(part);
        }
      } else if (group == 2) {
        constexpr int kUnroll = Prefetch || Columns == 1 || Simd::registers < 32 ? 1 : 2;
        is_first ? dot_tile<2, Columns, kUnroll, Prefetch>(tile) : dot_tile<2, Columns, 1, false>(tile);
      } else {
        constexpr int kUnroll = Prefetch ? 1 : Columns == 1 ? 4 : 2;
        is_first ? dot_tile<1, Columns, kUnroll, Prefetch>(tile) : dot_tile<1, Columns, 1, false>(tile);
      }
      row += group;
    }
  }

  template <bool Prefetch>
  static void dot_columns(const DotTile& all, int64_t rows, int64_t x_stride, int64_t columns, int64_t chunk) {
    int64_t k = 0;
    do {  // no depth gives zeros
      DotTile tile = all;
      tile.depth = all.depth - k < chunk ? all.depth - k : chunk;
      tile.ahead = 4 * all.weight_stride * static_cast<int64_t>(sizeof(T));
      tile.adds_up = k > 0;
      for (int64_t column = 0; column < columns;) {
        tile.weight = all.weight + column * all.weight_stride + k;
        tile.out = all.out + column;
        const bool is_whole = column + 4 <= columns;
        is_whole ? dot_rows<4, Prefetch>(tile, rows, x_stride, k) : dot_rows<1, false>(tile, rows, x_stride, k);
        column += is_whole ? 4 : 1;
      }
      k += chunk;
    } while (k < all.depth);
  }

  // sums[row][column] of `columns` rows of the weight.
  static void dots(const void* x_pointer, int64_t x_bytes, int64_t rows, const void* weight_pointer,
                   int64_t weight_stride, int64_t depth, int64_t columns, float* out, int64_t out_stride) {
    const int64_t x_stride = x_bytes / static_cast<int64_t>(sizeof(Factor));
    DotTile tile{static_cast<const Factor*>(x_pointer), static_cast<const T*>(weight_pointer), weight_stride, depth,
                 kPrefetchBytes, out, out_stride, false};
    if (kConverts && rows == 1 && depth * static_cast<int64_t>(sizeof(Factor)) <= kNearFactors) {
      for (int64_t column = 0; column < columns; ++column) {  // one stream is fastest
        dot_tile<1, 1, 4, kConverts>(tile);
        tile.weight += weight_stride;
        ++tile.out;
      }
    } else if (kConverts || rows > 2) {
      // Chunks of x stay in the nearest cache, beside those of eight weight rows.
      const int64_t chunk = kChunkBytes / (rows > 4 ? 2 : 1) / static_cast<int64_t>(sizeof(T));
      dot_columns<true>(tile, rows, x_stride, columns, chunk);
    } else {
      dot_columns<false>(tile, rows, x_stride, columns, depth + 1);
    }
  }

  // -- sums of weight rows: a weight of K x N ----------------------------------------------------

  struct AddTile {
    const Factor* x;
    int64_t x_stride;
    const T* weight;
    int64_t weight_stride, columns;
    float* sums;
    int64_t sum_stride;
  };

  // Add `Steps` steps of weight rows to the sums of `Rows` rows of x, for a block of columns.
  template <int Rows, int Steps>
  static void add_block(const Factor* x, int64_t x_stride, const T* from, int64_t stride, float* sums,
                        int64_t sum_stride) {
    Vector low[Rows], high[Rows];
    for (int row = 0; row < Rows; ++row) {
      low[row] = Simd::load_floats(sums + row * sum_stride);
      high[row] = Simd::load_floats(sums + row * sum_stride + Simd::lanes);
    }
#pragma GCC unroll 8
    for (int step = 0; step < Steps; ++step) {
      const auto block = Simd::load_rows(from + step * kStep * stride, stride);
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row)
        Simd::multiply_rows(block, x + row * x_stride + step * kStep, low[row], high[row]);
    }
    for (int row = 0; row < Rows; ++row) {
      Simd::store_floats(sums + row * sum_stride, low[row]);
      Simd::store_floats(sums + row * sum_stride + Simd::lanes, high[row]);
    }
  }

  // `count` weight rows, at most `Steps` steps of them: the rest is zero. The rows after these are prefetched.
  template <int Rows, int Steps, bool Prefetch>
  static void add_tile(const AddTile& tile, int64_t count) {
    const Factor* x = tile.x;
    const int64_t x_stride = tile.x_stride, stride = tile.weight_stride, columns = tile.columns;
    const int64_t whole = count < Steps * kStep ? 0 : columns / kBlock * kBlock;
    const int64_t ahead = columns < kPrefetchColumns ? columns : kPrefetchColumns;
    const int64_t next_ahead = Steps * kStep * stride - columns + ahead;  // from the end of these rows to the next ones
    int64_t column = 0;
    for (; column < whole; column += kBlock) {
      if (Prefetch) {
        const int64_t bytes = (column + ahead < columns ? ahead : next_ahead) * static_cast<int64_t>(sizeof(T));
#pragma GCC unroll 16
        for (int row = 0; row < Steps * kStep; ++row) prefetch(tile.weight + row * stride + column, bytes);
      }
      add_block<Rows, Steps>(x, x_stride, tile.weight + column, stride, tile.sums + column, tile.sum_stride);
    }
    for (; column < columns; column += kBlock) {  // memory behind the weight is not read
      T part[Steps * kStep][kBlock] = {};
      const int64_t width = columns - column < kBlock ? columns - column : kBlock;
      for (int64_t k = 0; k < count; ++k)
        std::memcpy(part[k], tile.weight + k * stride + column, width * sizeof(T));
      add_block<Rows, Steps>(x, x_stride, part[0], kBlock, tile.sums + column, tile.sum_stride);
    }
  }

  template <int Steps, bool Prefetch>
  static void add_rows(AddTile tile, int64_t rows, int64_t count) {
    for (int64_t row = 0; row < rows;) {
      const int64_t group = rows - row >= 4 ? 4 : rows - row;
      const bool is_first = row == 0;
      if (group == 4)
        is_first ? add_tile<4, Steps, Prefetch>(tile, count) : add_tile<4, Steps, false>(tile, count);
      else if (group == 2)
        is_first ? add_tile<2, Steps, Prefetch>(tile, count) : add_tile<2, Steps, false>(tile, count);
      else
        is_first ? add_tile<1, Steps, Prefetch>(tile, count) : add_tile<1, Steps, false>(tile, count);
      row += group;
      tile.x += group * tile.x_stride;
      tile.sums += group * tile.sum_stride;
    }
  }

  // `Depth` weight rows are added to a sum before it is written; sums of a tile of columns stay in the nearest cache.
  template <int Depth, bool Prefetch>
  static void add_columns(const AddTile& all, int64_t rows, int64_t depth, int64_t tile_columns) {
    constexpr int kSteps = Depth / kStep;
    for (int64_t column = 0; column < all.columns; column += tile_columns) {
      AddTile tile = all;
      tile.columns = all.columns - column < tile_columns ? all.columns - column : tile_columns;
      tile.sums = all.sums + column;
      for (int64_t k = 0; k < depth; k += Depth) {
        tile.x = all.x + k;
        tile.weight = all.weight + k * all.weight_stride + column;
        add_rows<kSteps, Prefetch>(tile, rows, depth - k < Depth ? depth - k : Depth);
      }
    }
  }

  // Add the products of `depth` rows of the weight to sums[row][column], in the order of `column_order`. Rows of x are
  // padded with zeros to a multiple of 16.
  static void adds(const void* x_pointer, int64_t x_bytes, int64_t rows, const void* weight_pointer,
                   int64_t weight_stride, int64_t depth, int64_t columns, float* sums, int64_t sum_stride) {
    const AddTile all{static_cast<const Factor*>(x_pointer), x_bytes / static_cast<int64_t>(sizeof(Factor)),
                      static_cast<const T*>(weight_pointer), weight_stride, columns, sums, sum_stride};
    constexpr bool kPairs = kStep > 1;
    if (rows > 2)
      add_columns<8 * kStep, true>(all, rows, depth, kPairs ? 1024 : 2048);
    else if (kConverts || (rows == 2 && !kPairs))
      add_columns<8, true>(all, rows, depth, 4096);
    else
      add_columns<8, false>(all, rows, depth, 4096);
  }

  // -- x, bias and outputs -----------------------------------------------------------------------

  // A row of x: the last block is padded with zeros, and each block is `group` blocks after the one before.
  template <bool ForDots>
  static void arrange(const void* from_pointer, int64_t count, int64_t group, void* to_pointer) {
    const T* from = static_cast<const T*>(from_pointer);
    Factor* to = static_cast<Factor*>(to_pointer);
    for (int64_t at = 0; at < count; at += kBlock) {
      T part[kBlock] = {};
      const int64_t width = count - at < kBlock ? count - at : kBlock;
      std::memcpy(part, from + at, width * sizeof(T));
      ForDots ? Simd::arrange_block(part, to + at * group) : Simd::widen_block(part, to + at * group);
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
