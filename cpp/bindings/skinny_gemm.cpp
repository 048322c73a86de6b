// runtime/_skinny_gemm: products of few rows on the host.
#include "runtime/skinny_gemm.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {
namespace {

const InstructionSet& find_instructions(const std::string& name) {
  for (int index = 0; index < instruction_set_count(); ++index)
    if (name.empty() || instruction_set(index).name == name) return instruction_set(index);
  throw nb::value_error(("this processor has no instruction set " + name).c_str());
}

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void multiply_at(int dtype, uintptr_t x, int64_t rows, int64_t depth, int64_t x_row_stride, int64_t x_stride,
                 uintptr_t weight, int64_t columns, int64_t weight_stride, bool transposed, uintptr_t bias,
                 uintptr_t out, int64_t out_stride, uintptr_t launcher, int threads, const std::string& instructions) {
  if (dtype < 0 || dtype > 2) throw nb::value_error("a product's dtype is 0, 1 or 2");
  if (rows < 0 || depth < 0 || columns < 0) throw nb::value_error("a product's sizes are not negative");
  const InstructionSet& set = find_instructions(instructions);
  const SkinnyProduct product{static_cast<Dtype>(dtype), pointer<void>(x), rows, depth, x_row_stride, x_stride,
                              pointer<void>(weight), columns, weight_stride, transposed, pointer<void>(bias),
                              pointer<void>(out), out_stride};
  nb::gil_scoped_release release;
  multiply(product, set, reinterpret_cast<TeamLauncher>(launcher), threads);
}

uint64_t read_at(uintptr_t from, int64_t bytes, uintptr_t launcher, int threads) {
  const InstructionSet& set = find_instructions("");
  nb::gil_scoped_release release;
  return read_memory(pointer<void>(from), bytes, set, reinterpret_cast<TeamLauncher>(launcher), threads);
}

}  // namespace
}  // namespace placewright

NB_MODULE(_skinny_gemm, m) {
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (int index = 0; index < placewright::instruction_set_count(); ++index)
      names.emplace_back(placewright::instruction_set(index).name);
    return names;
  });
  m.def("multiply", &placewright::multiply_at, "dtype"_a, "x"_a, "rows"_a, "depth"_a, "x_row_stride"_a, "x_stride"_a,
        "weight"_a, "columns"_a, "weight_stride"_a, "transposed"_a, "bias"_a, "out"_a, "out_stride"_a, "launcher"_a,
        "threads"_a, "instructions"_a = "");
  m.def("read", &placewright::read_at, "from_address"_a, "bytes"_a, "launcher"_a, "threads"_a);
}
