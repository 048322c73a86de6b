// Python bindings of the longest-path bound's sweep.
#include <stdexcept>

#include "bounds/path_sweep.hpp"
#include "numpy.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {

template <typename T>
std::vector<T> flat(const Matrix<T>& matrix) {
  return std::vector<T>(matrix.data(), matrix.data() + matrix.size());
}

// Every number that is used as a position is checked here, so that the sweep need not.
void check(const PathSweep& sweep) {
  const size_t ops = sweep.ops, edges = sweep.parents.size();
  bool right = sweep.first_edge.size() == ops + 1 && sweep.tensors.size() == edges &&
               sweep.min_cost.size() == ops && sweep.scheduled.size() == ops &&
               sweep.transfer_row.size() == static_cast<size_t>(sweep.groups) * sweep.groups &&
               sweep.first_edge.front() == 0 && sweep.first_edge.back() == static_cast<int64_t>(edges);
  const int64_t rows = sweep.tensor_count ? static_cast<int64_t>(sweep.transfer.size()) / sweep.tensor_count : 0;
  // Without tensors there is no edge, so that no row is read.
  for (const int64_t row : sweep.transfer_row) right = right && (sweep.tensor_count == 0 || row < rows);
  for (const int64_t tensor : sweep.tensors) right = right && tensor >= 0 && tensor < sweep.tensor_count;
  for (size_t op = 0; right && op < ops; ++op) {
    right = sweep.first_edge[op] <= sweep.first_edge[op + 1];
    for (int64_t edge = sweep.first_edge[op]; right && edge < sweep.first_edge[op + 1]; ++edge) {
      right = sweep.parents[edge] >= 0 && sweep.parents[edge] < static_cast<int64_t>(op);
    }
  }
  if (!right) throw nb::value_error("a path sweep was given arrays that do not match");
}

}  // namespace placewright

NB_MODULE(_path_sweep, m) {
  using namespace placewright;
  m.def(
      "earliest_begins",
      [](const Row<int64_t>& first_edge, const Row<int64_t>& parents, const Row<int64_t>& tensors,
         const Matrix<double>& seconds, const Row<double>& min_cost, const Row<uint8_t>& scheduled,
         const Matrix<int64_t>& transfer_row, const Matrix<double>& transfer, int64_t window,
         double forbidden_seconds) {
        PathSweep sweep;
        sweep.ops = static_cast<int32_t>(seconds.shape(0));
        sweep.groups = static_cast<int32_t>(seconds.shape(1));
        sweep.window = window;
        sweep.first_edge = to_vector(first_edge);
        sweep.parents = to_vector(parents);
        sweep.tensors = to_vector(tensors);
        sweep.seconds = flat(seconds);
        sweep.min_cost = to_vector(min_cost);
        sweep.scheduled = to_vector(scheduled);
        sweep.transfer_row = flat(transfer_row);
        sweep.transfer = flat(transfer);
        sweep.tensor_count = static_cast<int64_t>(transfer.shape(1));
        sweep.forbidden_seconds = forbidden_seconds;
        check(sweep);
        std::vector<double> begins;
        {
          nb::gil_scoped_release release;
          begins = earliest_begins(sweep);
        }
        return to_numpy<double>(std::move(begins), {seconds.shape(0), seconds.shape(1)});
      },
      "first_edge"_a, "parents"_a, "tensors"_a, "seconds"_a, "min_cost"_a, "scheduled"_a, "transfer_row"_a,
      "transfer"_a, "window"_a, "forbidden_seconds"_a);
}
