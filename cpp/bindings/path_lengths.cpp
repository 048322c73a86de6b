// Path lengths to the end of a graph, and their Python bindings: one PathKernel per problem, for batches of plans.
#include <algorithm>
#include <limits>
#include <vector>

#include "numpy.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {

class PathKernel {
 public:
  // Edges come in the order of their sources, the last first, so that all readers of a source are done before it.
  PathKernel(const Row<int32_t>& source, const Row<int32_t>& reader, const Row<int32_t>& tensor,
       const Matrix<double>& seconds, const Matrix<int32_t>& link_class, const Matrix<double>& transfer)
      : source_(to_vector(source)),
        reader_(to_vector(reader)),
        tensor_(to_vector(tensor)),
        seconds_(seconds.data(), seconds.data() + seconds.size()),
        link_class_(link_class.data(), link_class.data() + link_class.size()),
        transfer_(transfer.data(), transfer.data() + transfer.size()),
        ops_(seconds.shape(0)),
        devices_(seconds.shape(1)),
        tensors_(transfer.shape(1)) {
    if (reader_.size() != source_.size() || tensor_.size() != source_.size() ||
        link_class_.size() != devices_ * devices_) {
      throw nb::value_error("path lengths were given arrays of the wrong shape");
    }
  }

  // Plans × ops: the longest path from an op's start to the end, transfers included.
  nb::ndarray<nb::numpy, double> longest(const Matrix<int32_t>& device) const {
    return for_each_plan(device, [this](const int32_t* place, double* level) {
      for (size_t op = 0; op < ops_; ++op) level[op] = seconds(op, place);
      for (size_t edge = 0; edge < source_.size();) {
        const int32_t source = source_[edge];
        double longest_tail = -std::numeric_limits<double>::infinity();
        for (; edge < source_.size() && source_[edge] == source; ++edge) {
          longest_tail = std::max(longest_tail, level[reader_[edge]] + transfer_seconds(edge, place));
        }
        level[source] += longest_tail;
      }
    });
  }

  // Plans × ops: the shortest path from an op's end to a send to another device; or infinity.
  nb::ndarray<nb::numpy, double> shortest(const Matrix<int32_t>& device) const {
    return for_each_plan(device, [this](const int32_t* place, double* ahead) {
      std::fill(ahead, ahead + ops_, std::numeric_limits<double>::infinity());
      for (size_t edge = 0; edge < source_.size(); ++edge) {
        const int32_t source = source_[edge], reader = reader_[edge];
        const bool sent = place[source] != place[reader];
        ahead[source] = std::min(ahead[source], sent ? 0.0 : seconds(reader, place) + ahead[reader]);
      }
    });
  }

 private:
  double seconds(size_t op, const int32_t* place) const { return seconds_[op * devices_ + place[op]]; }

  double transfer_seconds(size_t edge, const int32_t* place) const {
    const int32_t link = link_class_[place[source_[edge]] * devices_ + place[reader_[edge]]];
    return link < 0 ? 0.0 : transfer_[link * tensors_ + tensor_[edge]];
  }

  template <typename Work>
  nb::ndarray<nb::numpy, double> for_each_plan(const Matrix<int32_t>& device, const Work& work) const {
    const size_t plans = device.shape(0);
    if (device.shape(1) != ops_) throw nb::value_error("path lengths were given plans of the wrong shape");
    std::vector<double> lengths(plans * ops_);
    {
      nb::gil_scoped_release release;
      for (size_t plan = 0; plan < plans; ++plan) work(device.data() + plan * ops_, lengths.data() + plan * ops_);
    }
    return to_numpy<double>(std::move(lengths), {plans, ops_});
  }

  std::vector<int32_t> source_, reader_, tensor_;
  std::vector<double> seconds_;
  std::vector<int32_t> link_class_;
  std::vector<double> transfer_;
  size_t ops_, devices_, tensors_;
};

}  // namespace placewright

NB_MODULE(_path_lengths, m) {
  nb::set_leak_warnings(false);  // problems cached for the whole process are no leaks
  using placewright::PathKernel;
  using Ints = placewright::Row<int32_t>;
  nb::class_<PathKernel>(m, "PathKernel")
      .def(nb::init<const Ints&, const Ints&, const Ints&, const placewright::Matrix<double>&,
                    const placewright::Matrix<int32_t>&, const placewright::Matrix<double>&>(),
           "source"_a, "reader"_a, "tensor"_a, "seconds"_a, "link_class"_a, "transfer"_a)
      .def("longest", &PathKernel::longest, "device"_a)
      .def("shortest", &PathKernel::shortest, "device"_a);
}
