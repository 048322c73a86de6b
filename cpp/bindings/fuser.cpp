// Python bindings of greedy fusion: one Fuser per problem, which fuses plans in batches.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "transforms/fuser.hpp"
#include "numpy.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {

class BatchFuser {
 public:
  BatchFuser(const Row<int8_t>& role, const Row<int32_t>& first_producer, const Row<int32_t>& producers,
          const Row<int32_t>& first_reader, const Row<int32_t>& readers) {
    graph_.ops = static_cast<int>(role.size());
    graph_.role = to_vector(role);
    graph_.first_producer = to_vector(first_producer);
    graph_.producers = to_vector(producers);
    graph_.first_reader = to_vector(first_reader);
    graph_.readers = to_vector(readers);
    graph_.derive();
  }

  // Plans × ops: each op's group, or -1. Without urgencies, like a compiler.
  nb::ndarray<nb::numpy, int32_t> fuse(const Matrix<int32_t>& device, const std::optional<Matrix<double>>& urgency,
                                       int threads) {
    const size_t plans = device.shape(0), ops = graph_.ops;
    if (device.shape(1) != ops || (urgency && (urgency->shape(0) != plans || urgency->shape(1) != ops))) {
      throw nb::value_error("the fuser was given arrays of the wrong shape");
    }
    std::vector<int32_t> group(plans * ops);
    std::atomic<size_t> next{0};
    const auto work = [&] {
      Fuser fuser(graph_);
      for (size_t p = next++; p < plans; p = next++) {
        int32_t* out = group.data() + p * ops;
        if (urgency) {
          fuser.by_urgency(device.data() + p * ops, urgency->data() + p * ops, out);
        } else {
          fuser.into_readers(device.data() + p * ops, out);
        }
      }
    };
    {
      nb::gil_scoped_release release;
      std::vector<std::thread> helpers;
      const int count = std::clamp<int>(threads, 1, static_cast<int>(std::max<size_t>(plans, 1)));
      for (int i = 1; i < count; ++i) helpers.emplace_back(work);
      work();
      for (std::thread& helper : helpers) helper.join();
    }
    return to_numpy<int32_t>(std::move(group), {plans, ops});
  }

 private:
  FuseGraph graph_;
};

}  // namespace placewright

NB_MODULE(_fuser, m) {
  nb::set_leak_warnings(false);  // problems cached for the whole process are no leaks
  using placewright::BatchFuser;
  using Ints = placewright::Row<int32_t>;
  nb::class_<BatchFuser>(m, "Fuser")
      .def(nb::init<const placewright::Row<int8_t>&, const Ints&, const Ints&, const Ints&, const Ints&>(), "role"_a,
           "first_producer"_a, "producers"_a, "first_reader"_a, "readers"_a)
      .def("fuse", &BatchFuser::fuse, "device"_a, "urgency"_a.none(), "threads"_a);
}
