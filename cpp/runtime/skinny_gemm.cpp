// Shares a product of few rows among the threads of an OpenMP team.
//
// Sums do not depend on which thread computes them: equal inputs and an equal number of threads give equal bits.
#include "skinny_gemm.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

namespace placewright {
namespace {

constexpr int64_t kTasksPerThread = 4;  // so that threads end together, though one is delayed
constexpr int64_t kMinTask = 64 << 10, kMaxTask = 1 << 20;  // bytes of the weight that a thread takes at once
constexpr int64_t kMinPartDepth = 16;  // weight rows of a part; a multiple of what kernels add at once
constexpr int64_t kMinColumns = 256;   // that a thread adds up over all parts
constexpr int64_t kRowGroup = 4;       // rows of x that share what is read of the weight
constexpr int64_t kMaxBlock = 64, kLine = 64;

std::vector<InstructionSet> find_instruction_sets() {
  std::vector<InstructionSet> sets;
#ifdef PLACEWRIGHT_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    sets.push_back(avx512_instructions());
  if (!sets.empty() && __builtin_cpu_supports("avx512bf16")) sets.insert(sets.begin(), avx512_bf16_instructions());
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    sets.push_back(avx2_instructions());
#endif
  sets.push_back(portable_instructions());
  return sets;
}

const std::vector<InstructionSet>& instruction_sets() {
  static const std::vector<InstructionSet> sets = find_instruction_sets();
  return sets;
}

// Runs tasks 0 .. count - 1, each on one thread of a team; a smaller team than asked for runs them all, too.
template <typename Task>
void run_tasks(int64_t count, TeamLauncher launch, int threads, const Task& task) {
  if (launch == nullptr || threads < 2 || count < 2) {
    for (int64_t index = 0; index < count; ++index) task(index);
    return;
  }
  struct Team {
    std::atomic<int64_t> next;
    int64_t count;
    const Task* task;
  } team{0, count, &task};
  launch(
      [](void* pointer) {
        Team& shared = *static_cast<Team*>(pointer);
        for (int64_t index; (index = shared.next.fetch_add(1, std::memory_order_relaxed)) < shared.count;)
          (*shared.task)(index);
      },
      &team, static_cast<unsigned>(threads), 0);
}

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Memory that a thread keeps for its next product.
float* scratch(int64_t floats) {
  thread_local std::unique_ptr<char[]> memory;
  thread_local int64_t size = 0;
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float)) + kLine;
  if (size < bytes) {
    memory.reset(new char[bytes]);
    size = bytes;
  }
  return reinterpret_cast<float*>(round_up(reinterpret_cast<int64_t>(memory.get()), kLine));
}

// Rows of x, one element after the other, for x that is strided.
template <typename T>
void gather(const void* from, int64_t count, int64_t stride, void* to) {
  for (int64_t at = 0; at < count; ++at) static_cast<T*>(to)[at] = static_cast<const T*>(from)[at * stride];
}

class Multiplication {
 public:
  Multiplication(const SkinnyProduct& product, const InstructionSet& instructions, TeamLauncher launch, int threads)
      : p_(product), loops_(instructions.loops[static_cast<int>(product.dtype)]), block_(instructions.block),
        launch_(launch), threads_(std::max(1, threads)), item_(product.dtype == Dtype::float32 ? 4 : 2),
        x_bytes_(round_up(p_.depth, block_) * loops_.factor_bytes), width_(round_up(p_.columns, block_)),
        parts_(p_.transposed ? std::clamp<int64_t>(p_.depth / kMinPartDepth, 1, threads_) : 1),
        rows_(p_.rows % kRowGroup == 3 ? p_.rows + 1 : p_.rows), part_floats_(rows_ * width_) {
    const int64_t x_floats = round_up(rows_ * x_bytes_, kLine) / static_cast<int64_t>(sizeof(float));
    sums_ = scratch(x_floats + parts_ * part_floats_);
    x_ = reinterpret_cast<char*>(sums_ + parts_ * part_floats_);
  }

  void run() {
    arrange_x();
    p_.transposed ? run_adds() : run_dots();
  }

 private:
  const char* element(const void* base, int64_t index) const { return static_cast<const char*>(base) + index * item_; }

  void arrange_x() {
    const auto arrange = p_.transposed ? loops_.arrange_for_adds : loops_.arrange_for_dots;
    std::vector<char> dense_row(p_.x_stride == 1 ? 0 : p_.depth * item_);
    if (rows_ > p_.rows) std::memset(x_ + p_.rows / kRowGroup * kRowGroup * x_bytes_, 0, kRowGroup * x_bytes_);
    for (int64_t row = 0; row < p_.rows; ++row) {
      const void* from = element(p_.x, row * p_.x_row_stride);
      if (p_.x_stride != 1) {
        (item_ == 4 ? gather<uint32_t> : gather<uint16_t>)(from, p_.depth, p_.x_stride, dense_row.data());
        from = dense_row.data();
      }
      const int64_t first = row / kRowGroup * kRowGroup;
      arrange(from, p_.depth, std::min(kRowGroup, rows_ - first), row - first, x_ + first * x_bytes_);
    }
  }

  // Each task computes whole outputs, of some rows of the weight.
  void run_dots() {
    const int64_t row_bytes = std::max<int64_t>(1, p_.depth * item_);
    const int64_t task_bytes = std::clamp(p_.columns * row_bytes / (kTasksPerThread * threads_), kMinTask, kMaxTask);
    const int64_t step = round_up(std::max<int64_t>(1, task_bytes / row_bytes), block_);
    run_tasks((p_.columns + step - 1) / step, launch_, threads_, [&](int64_t task) {
      const int64_t first = task * step, count = std::min(step, p_.columns - first);
      loops_.dots(x_, x_bytes_, rows_, element(p_.weight, first * p_.weight_stride), p_.weight_stride, p_.depth,
                  count, sums_ + first, width_);
      round_columns(first, count);
    });
  }

  // Each task sums over a part of the depth; then the parts are added, in their order.
  void run_adds() {
    const int64_t step = round_up((p_.depth + parts_ - 1) / parts_, kMinPartDepth);
    run_tasks(parts_, launch_, threads_, [&](int64_t part) {
      const int64_t first = std::min(p_.depth, part * step), count = std::min(step, p_.depth - first);
      float* sums = sums_ + part * part_floats_;
      std::fill(sums, sums + part_floats_, 0.0f);
      loops_.adds(x_, x_bytes_, rows_, first, element(p_.weight, first * p_.weight_stride), p_.weight_stride, count,
                  p_.columns, sums, width_);
    });
    const int64_t share = round_up((p_.columns + threads_ - 1) / threads_, kMinColumns);
    run_tasks((p_.columns + share - 1) / share, launch_, threads_, [&](int64_t task) {
      const int64_t first = task * share, count = std::min(share, p_.columns - first);
      for (int64_t row = 0; row < p_.rows; ++row) add_parts(sums_ + row * width_ + first, round_up(count, block_));
      round_columns(first, count);
    });
  }

  void add_parts(float* sums, int64_t count) {
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t at = 0; at < count; ++at) sums[at] += sums[part * part_floats_ + at];
    float block[kMaxBlock];
    for (int64_t first = 0; first < count; first += block_) {
      for (int64_t at = 0; at < block_; ++at) block[loops_.column_order[at]] = sums[first + at];
      std::copy(block, block + block_, sums + first);
    }
  }

  void round_columns(int64_t first, int64_t count) {
    for (int64_t row = 0; row < p_.rows; ++row)
      loops_.round(sums_ + row * width_ + first, p_.bias == nullptr ? nullptr : element(p_.bias, first), count,
                   const_cast<char*>(element(p_.out, row * p_.out_stride + first)));
  }

  const SkinnyProduct& p_;
  const DtypeLoops& loops_;
  const int64_t block_;
  const TeamLauncher launch_;
  const int64_t threads_, item_, x_bytes_, width_, parts_;
  const int64_t rows_;  // with a row of zeros where the last group would have three
  const int64_t part_floats_;
  float* sums_;
  char* x_;
};

}  // namespace

int instruction_set_count() { return static_cast<int>(instruction_sets().size()); }

const InstructionSet& instruction_set(int index) { return instruction_sets().at(index); }

void multiply(const SkinnyProduct& product, const InstructionSet& instructions, TeamLauncher launch, int threads) {
  if (product.rows == 0 || product.columns == 0) return;
  Multiplication(product, instructions, launch, threads).run();
}

uint64_t read_memory(const void* from, int64_t bytes, const InstructionSet& instructions, TeamLauncher launch,
                     int threads) {
  if (bytes <= 0) return 0;
  const int64_t step = round_up(bytes / std::max(1, threads) + 1, 4096);
  std::atomic<uint64_t> result{0};
  run_tasks((bytes + step - 1) / step, launch, threads, [&](int64_t task) {
    const int64_t first = task * step;
    result ^= instructions.read(static_cast<const char*>(from) + first, std::min(step, bytes - first));
  });
  return result;
}

}  // namespace placewright
