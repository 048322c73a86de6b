// Python bindings of the lanes of one plan a thread: their arrays, their CUDA source, and the same on the host.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>

#include "arrays.hpp"
#include "bindings/lanes.hpp"
#include "simulator/lane_layout.hpp"
#include "simulator/lane_source.hpp"
#include "simulator/lane_threads.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {

namespace {

template <typename T, typename Stored>
nb::object as_array(const std::vector<Stored>& values) {
  return nb::cast(to_numpy<T>(std::vector<T>(values.begin(), values.end()), {values.size()}));
}

// The counts and arrays of `LaneProblem` by name, the number of slots, and the bytes of state that a thread needs.
nb::dict lane_arrays(const nb::object& arrays, const std::optional<Row<double>>& priority, const Row<int32_t>& row) {
  const ProblemLayout a = read_layout(arrays);
  if (!LaneLayout::applies_to(a) || row.size() != size_t(a.ops) || (priority && priority->size() != size_t(a.ops))) {
    throw nb::value_error("the lanes were given arrays of the wrong shape, or a problem that they cannot simulate");
  }
  const LaneLayout layout(a, priority ? priority->data() : nullptr, row.data());
  const std::vector<float> compute(a.compute.begin(), a.compute.end());
  const std::vector<float> transfer(layout.transfer.begin(), layout.transfer.end());
  const LaneProblem<float> p = layout.view(compute.data(), transfer.data());
  nb::dict out;
#define PLACEWRIGHT_COUNT(name) out[#name] = p.name;
  PLACEWRIGHT_LANE_COUNTS(PLACEWRIGHT_COUNT)
  out["slots"] = layout.slots;
  out["state_bytes"] = state_bytes(p.devices, p.channels);
  out["order"] = as_array<int32_t>(layout.order);
  out["fixed_op"] = as_array<int32_t>(layout.fixed_op);
  out["resident_op"] = as_array<int32_t>(layout.resident_op);
  out["op_row"] = as_array<int32_t>(layout.op_row);
  out["is_resident"] = as_array<uint8_t>(a.is_resident);
  out["resident"] = as_array<int64_t>(a.resident);
  out["workspace"] = as_array<int64_t>(a.workspace);
  out["start_bytes"] = as_array<int64_t>(a.start_bytes);
  out["all_bytes"] = as_array<int64_t>(layout.all_bytes);
  out["compute"] = as_array<float>(compute);
  out["first_tensor"] = as_array<int32_t>(a.first_tensor);
  out["first_read"] = as_array<int32_t>(layout.first_read);
  out["read_slot"] = as_array<int32_t>(layout.read_slot);
  out["read_tensor"] = as_array<int32_t>(layout.read_tensor);
  out["first_edge"] = as_array<int32_t>(layout.first_edge);
  out["edge_row"] = as_array<int32_t>(layout.edge_row);
  out["edge_slot"] = as_array<int32_t>(layout.edge_slot);
  out["sizes"] = as_array<int64_t>(a.sizes);
  out["tensor_flags"] = as_array<uint8_t>(layout.tensor_flags);
  out["transfer"] = as_array<float>(transfer);
  out["channel_of"] = as_array<int32_t>(layout.channel_of);
  out["class_of"] = as_array<int32_t>(layout.class_of);
  return out;
}

std::vector<std::string> lane_fields() {
  std::vector<std::string> names;
#define PLACEWRIGHT_COUNT_NAME(name) names.push_back(#name);
#define PLACEWRIGHT_ARRAY_NAME(type, name) names.push_back(#name);
  PLACEWRIGHT_LANE_COUNTS(PLACEWRIGHT_COUNT_NAME)
  PLACEWRIGHT_BATCH_COUNTS(PLACEWRIGHT_COUNT_NAME)
  PLACEWRIGHT_LANE_ARRAYS(PLACEWRIGHT_ARRAY_NAME)
  PLACEWRIGHT_BATCH_ARRAYS(PLACEWRIGHT_ARRAY_NAME)
  return names;
}

// The kernel on the host: its threads one after the other, in blocks of `block`.
void run_lane_threads(const Row<int64_t>& table, bool peaks, int block) {
  if (table.size() != k_lane_fields || block < 1) throw nb::value_error("the lanes were given a table of the wrong size");
  const int64_t* fields = table.data();
  std::vector<int64_t> state((state_bytes(fields[k_devices], fields[k_channels]) * block + 7) / 8);
  nb::gil_scoped_release release;
  for (int64_t thread = 0; thread < fields[k_threads]; ++thread) {
    const int32_t lane = static_cast<int32_t>(thread % block);
    if (peaks) {
      run_thread<true>(fields, thread, reinterpret_cast<char*>(state.data()), block, lane);
    } else {
      run_thread<false>(fields, thread, reinterpret_cast<char*>(state.data()), block, lane);
    }
  }
}

}  // namespace

void bind_lane_threads(nb::module_& m) {
  m.def("lane_arrays", &lane_arrays, "arrays"_a, "priority"_a.none(), "row"_a);
  m.def("lane_fields", &lane_fields);
  m.def("lane_source", [] { return std::string(kLaneSource); });
  m.def("run_lane_threads", &run_lane_threads, "table"_a, "peaks"_a, "block"_a);
}

}  // namespace placewright
