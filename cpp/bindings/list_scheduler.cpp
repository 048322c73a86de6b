// Python bindings of list scheduling: one object per schedule, with times, devices and bytes.
#include <nanobind/stl/optional.h>

#include <optional>

#include "arrays.hpp"
#include "scheduling/list_scheduler.hpp"
#include "numpy.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {

// Arrays of the schedule itself, which Python reads without a copy while the schedule lives.
template <typename T>
nb::ndarray<nb::numpy, T> array_view(const nb::object& self, std::vector<T>& values) {
  return nb::ndarray<nb::numpy, T>(values.data(), {values.size()}, self);
}

void check(const ListSchedule& schedule, int op, int device = 0) {
  if (op < 0 || op >= schedule.a.ops || device < 0 || device >= schedule.a.devices) {
    throw nb::index_error("there is no such op or device");
  }
}

template <typename T>
nb::ndarray<nb::numpy, T> device_array(std::vector<T>&& values) {
  const size_t size = values.size();
  return to_numpy<T>(std::move(values), {size});
}

}  // namespace placewright

NB_MODULE(_list_scheduler, m) {
  nb::set_leak_warnings(false);  // problems cached for the whole process are no leaks
  using namespace placewright;
  nb::class_<ListSchedule>(m, "CompiledListSchedule", nb::dynamic_attr())
      .def(
          "__init__",
          [](ListSchedule* self, const nb::object& arrays, bool contended, const Row<int64_t>& capacity) {
            ProblemLayout layout = read_layout(arrays);
            if (capacity.size() != static_cast<size_t>(layout.devices)) {
              throw nb::value_error("a list schedule was given capacities of another number of devices");
            }
            new (self) ListSchedule(std::move(layout), to_vector(capacity), contended);
          },
          "arrays"_a, "contended"_a, "capacity"_a)
      .def_prop_ro("device", [](nb::object self) { return array_view(self, nb::cast<ListSchedule&>(self).device); })
      .def_prop_ro("start", [](nb::object self) { return array_view(self, nb::cast<ListSchedule&>(self).start); })
      .def_prop_ro("end", [](nb::object self) { return array_view(self, nb::cast<ListSchedule&>(self).end); })
      .def_prop_ro("free", [](nb::object self) { return array_view(self, nb::cast<ListSchedule&>(self).free); })
      .def_prop_ro("used", [](nb::object self) { return array_view(self, nb::cast<ListSchedule&>(self).used); })
      .def("ready",
           [](const ListSchedule& self, int op) {
             check(self, op);
             return device_array(self.ready(op));
           })
      .def("choices",
           [](const ListSchedule& self, int op) {
             check(self, op);
             return device_array(self.choices(op));
           })
      .def(
          "add",
          [](ListSchedule& self, int op, int device, bool insert) {
            check(self, op, device);
            self.add(op, device, insert);
          },
          "op"_a, "device"_a, "insert"_a = false)
      .def(
          "place",
          [](ListSchedule& self, int op, int preferred) {
            check(self, op, std::max(preferred, 0));
            const std::vector<uint8_t> choices = self.choices(op);
            const bool free = preferred >= 0 && choices[preferred];
            self.add(op, free ? preferred : self.first_to_finish(op, choices), true);
          },
          "op"_a, "preferred"_a = -1)
      .def(
          "earliest_first",
          [](ListSchedule& self, const Matrix<double>& slowdown, const Row<int64_t>& rank,
             const std::optional<Row<int64_t>>& favourite) {
            const size_t ops = self.a.ops, devices = self.a.devices;
            if (slowdown.shape(0) != ops || slowdown.shape(1) != devices || rank.size() != ops ||
                (favourite && favourite->size() != ops)) {
              throw nb::value_error("a list schedule was given arrays of the wrong shape");
            }
            const std::vector<double> slowdowns(slowdown.data(), slowdown.data() + slowdown.size());
            const std::vector<int64_t> ranked = to_vector(rank);
            const std::vector<int64_t> children = favourite ? to_vector(*favourite) : std::vector<int64_t>{};
            nb::gil_scoped_release release;
            earliest_first(self, slowdowns, ranked, children);
          },
          "slowdown"_a, "rank"_a, "favourite"_a = nb::none());
}
