// Python bindings of the lanes of one plan a thread: their arrays, their CUDA source, and the same on the host.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "arrays.hpp"
#include "bindings/lanes.hpp"
#include "simulator/lane_layout.hpp"
#include "simulator/lane_source.hpp"
#include "simulator/lane_stream.hpp"
#include "simulator/lane_threads.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {

namespace {

template <typename T, typename Stored>
nb::object as_array(const std::vector<Stored>& values) {
  return nb::cast(to_numpy<T>(std::vector<T>(values.begin(), values.end()), {values.size()}));
}

// What the kernel is told of a problem, by name: counts and arrays of its table, the stream of records, the number of
// slots, and what distinguishes kernels.
nb::dict lane_arrays(const nb::object& arrays, const std::optional<Row<double>>& priority, const Row<int32_t>& row) {
  const ProblemLayout a = read_layout(arrays);
  if (!LaneLayout::applies_to(a) || row.size() != size_t(a.ops) || (priority && priority->size() != size_t(a.ops))) {
    throw nb::value_error("the lanes were given arrays of the wrong shape, or a problem that they cannot simulate");
  }
  const LaneLayout layout(a, priority ? priority->data() : nullptr, row.data());
  const LaneStream stream(layout);
  nb::dict out;
  out["devices"] = a.devices, out["channels"] = a.channels + 1, out["classes"] = a.classes + 1;
  out["scheduled"] = layout.order.size(), out["fixed"] = layout.fixed_op.size();
  out["residents"] = layout.resident_op.size(), out["is_graph_order"] = int(layout.is_graph_order);
  out["unit"] = stream.unit, out["time_exponent"] = stream.time_exponent;
  out["channel_of"] = as_array<int32_t>(layout.channel_of), out["class_of"] = as_array<int32_t>(layout.class_of);
  out["records"] = as_array<int32_t>(stream.words);
  out["slots"] = layout.slots;
  out["is_one_channel"] = stream.is_one_channel, out["is_wide"] = stream.is_wide;
  return out;
}

std::vector<std::string> lane_fields() {
  std::vector<std::string> names;
#define PLACEWRIGHT_COUNT_NAME(name) names.push_back(#name);
#define PLACEWRIGHT_ARRAY_NAME(type, name) names.push_back(#name);
  PLACEWRIGHT_LANE_COUNTS(PLACEWRIGHT_COUNT_NAME)
  PLACEWRIGHT_LANE_ARRAYS(PLACEWRIGHT_ARRAY_NAME)
  return names;
}

// The kernel on the host: its threads one after the other, in blocks of `block`. `records`, `place`, `arrival`: addresses.
void run_lane_threads(const Row<int64_t>& table, int64_t records, int64_t place, int64_t arrival, uint32_t plans,
                      uint32_t threads, bool peaks, bool one_channel, bool wide, uint32_t block) {
  if (table.size() != k_lane_fields || block < 1) throw nb::value_error("the lanes were given a table of the wrong size");
  const int64_t* fields = table.data();
  const LaneBatch batch{array_at<const char>(records), array_at<const uint8_t>(place), array_at<uint32_t>(arrival), plans,
                        threads};
  struct alignas(16) Quad {
    char bytes[16];
  };
  const int64_t bytes_each = state_bytes(peaks, one_channel, wide ? 8 : 4, fields[k_devices], fields[k_channels]);
  std::vector<Quad> state(bytes_each * block / 16 + 1);
  char* bytes = state.data()->bytes;
  const auto run = [&](auto is_peaks, auto is_one, auto count) {
    for (uint32_t thread = 0; thread < threads; ++thread) {
      run_thread<is_peaks.value, is_one.value, decltype(count)>(fields, batch, thread, bytes, block, thread % block);
    }
  };
  const auto run_count = [&](auto is_peaks, auto is_one) {
    if (wide) {
      run(is_peaks, is_one, uint64_t{});
    } else {
      run(is_peaks, is_one, uint32_t{});
    }
  };
  const auto run_links = [&](auto is_peaks) {
    if (one_channel) {
      run_count(is_peaks, std::true_type{});
    } else {
      run_count(is_peaks, std::false_type{});
    }
  };
  nb::gil_scoped_release release;
  if (peaks) {
    run_links(std::true_type{});
  } else {
    run_links(std::false_type{});
  }
}

}  // namespace

void bind_lane_threads(nb::module_& m) {
  m.def("lane_arrays", &lane_arrays, "arrays"_a, "priority"_a.none(), "row"_a);
  m.def("lane_fields", &lane_fields);
  m.def("lane_source", [] { return std::string(kLaneSource); });
  m.def("lane_state_bytes", &state_bytes, "peaks"_a, "one_channel"_a, "count_bytes"_a, "devices"_a, "channels"_a);
  m.def("run_lane_threads", &run_lane_threads, "table"_a, "records"_a, "place"_a, "arrival"_a, "plans"_a, "threads"_a,
        "peaks"_a, "one_channel"_a, "wide"_a, "block"_a);
}

}  // namespace placewright
