// Products of few rows on the host: x (M x K) times a weight that is read once, at the speed of memory.
#pragma once

#include <cstdint>

namespace placewright {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

enum class Dtype { bfloat16 = 0, float16 = 1, float32 = 2 };

// The loops for one instruction set and one dtype; `skinny_kernels.hpp` says what each does.
struct DtypeLoops {
  int64_t factor_bytes;        // of one element of x, as `arrange` writes it
  const uint8_t* column_order;  // the column of each of a block's sums, after `add_rows`
  void (*arrange_for_dots)(const void* x, int64_t count, int64_t group, int64_t row, void* to);
  void (*arrange_for_adds)(const void* x, int64_t count, int64_t group, int64_t row, void* to);
  void (*dots)(const void* x, int64_t x_bytes, int64_t rows, const void* weight, int64_t weight_stride, int64_t depth,
               int64_t columns, float* sums, int64_t sum_stride);
  void (*adds)(const void* x, int64_t x_bytes, int64_t rows, int64_t first, const void* weight, int64_t weight_stride,
               int64_t depth, int64_t columns, float* sums, int64_t sum_stride);
  void (*round)(const float* sums, const void* bias, int64_t count, void* to);
};

struct InstructionSet {
  const char* name;
  int64_t block;  // elements that are read at once, at least 16; rows of x and of sums are padded to a multiple
  DtypeLoops loops[3];
  uint64_t (*read)(const void* from, int64_t bytes);
};

InstructionSet portable_instructions();
// Where the build has them: PLACEWRIGHT_X86.
InstructionSet avx2_instructions();
InstructionSet avx512_instructions();
InstructionSet avx512_bf16_instructions();

// The instruction sets that this processor has, the best first.
int instruction_set_count();
const InstructionSet& instruction_set(int index);

// OpenMP's own entry point: runs a function on a team of threads, the calling one among them.
using TeamLauncher = void (*)(void (*)(void*), void*, unsigned, unsigned);

// One product. Strides are in elements; the last dimension of weight, bias and out is contiguous.
struct SkinnyProduct {
  Dtype dtype;
  const void* x;
  int64_t rows, depth, x_row_stride, x_stride;
  const void* weight;
  int64_t columns, weight_stride;
  bool transposed;   // the weight is K x N, else N x K
  const void* bias;  // N elements, or null
  void* out;
  int64_t out_stride;
};

void multiply(const SkinnyProduct& product, const InstructionSet& instructions, TeamLauncher launch, int threads);

// Reads memory in a plain loop: what a product is compared with.
uint64_t read_memory(const void* from, int64_t bytes, const InstructionSet& instructions, TeamLauncher launch,
                     int threads);

}  // namespace placewright
