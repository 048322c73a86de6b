// Ways to the end of a graph as Python sees them: Ways are made once a problem, and asked for plans in batches.
#include <algorithm>
#include <limits>
#include <vector>

#include "numpy.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {

class Ways {
 public:
  // Edges come in the order of their sources, the last first, so that all readers of a source are done before it.
  Ways(const Row<int32_t>& source, const Row<int32_t>& reader, const Row<int32_t>& tensor,
       const Matrix<double>& seconds, const Matrix<int32_t>& link_class, const Matrix<double>& transfer)
      : source_(listed(source)),
        reader_(listed(reader)),
        tensor_(listed(tensor)),
        seconds_(seconds.data(), seconds.data() + seconds.size()),
        link_class_(link_class.data(), link_class.data() + link_class.size()),
        transfer_(transfer.data(), transfer.data() + transfer.size()),
        ops_(seconds.shape(0)),
        devices_(seconds.shape(1)),
        tensors_(transfer.shape(1)) {
    if (reader_.size() != source_.size() || tensor_.size() != source_.size() ||
        link_class_.size() != devices_ * devices_) {
      throw nb::value_error("ways were given arrays of the wrong shape");
    }
  }

  // Plans × ops: the longest way from an op's start to the end, transfers included.
  nb::ndarray<nb::numpy, double> longest(const Matrix<int32_t>& device) const {
    return each(device, [this](const int32_t* place, double* level) {
      for (size_t op = 0; op < ops_; ++op) level[op] = seconds(op, place);
      for (size_t edge = 0; edge < source_.size();) {
        const int32_t source = source_[edge];
        double most = -std::numeric_limits<double>::infinity();
        for (; edge < source_.size() && source_[edge] == source; ++edge) {
          most = std::max(most, level[reader_[edge]] + sending(edge, place));
        }
        level[source] += most;
      }
    });
  }

  // Plans × ops: the shortest way from an op's end to a send to another device; or infinity.
  nb::ndarray<nb::numpy, double> shortest(const Matrix<int32_t>& device) const {
    return each(device, [this](const int32_t* place, double* ahead) {
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

  double sending(size_t edge, const int32_t* place) const {
    const int32_t link = link_class_[place[source_[edge]] * devices_ + place[reader_[edge]]];
    return link < 0 ? 0.0 : transfer_[link * tensors_ + tensor_[edge]];
  }

  template <typename Work>
  nb::ndarray<nb::numpy, double> each(const Matrix<int32_t>& device, const Work& work) const {
    const size_t plans = device.shape(0);
    if (device.shape(1) != ops_) throw nb::value_error("ways were given plans of the wrong shape");
    std::vector<double> made(plans * ops_);
    {
      nb::gil_scoped_release release;
      for (size_t plan = 0; plan < plans; ++plan) work(device.data() + plan * ops_, made.data() + plan * ops_);
    }
    return to_numpy<double>(std::move(made), {plans, ops_});
  }

  std::vector<int32_t> source_, reader_, tensor_;
  std::vector<double> seconds_;
  std::vector<int32_t> link_class_;
  std::vector<double> transfer_;
  size_t ops_, devices_, tensors_;
};

}  // namespace placewright

NB_MODULE(_path_lengths, m) {
  using placewright::Ways;
  using Ints = placewright::Row<int32_t>;
  nb::class_<Ways>(m, "Ways")
      .def(nb::init<const Ints&, const Ints&, const Ints&, const placewright::Matrix<double>&,
                    const placewright::Matrix<int32_t>&, const placewright::Matrix<double>&>(),
           "source"_a, "reader"_a, "tensor"_a, "seconds"_a, "link_class"_a, "transfer"_a)
      .def("longest", &Ways::longest, "device"_a)
      .def("shortest", &Ways::shortest, "device"_a);
}
