// A scout: what is known of moving a block to a device before the plan is judged, and what a small
// trained network makes of it. Looking costs a hundredth of judging, and saves many plans that
// would be judged in vain.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/event_kernel.hpp"
#include "problem_layout.hpp"

namespace placewright {

// Layers of a network with one output, one after the other: first the biases, then for each input
// its weights. The inner layers are cut off at 0.
struct ScoutNet {
  std::vector<int32_t> widths;  // of the inner layers
  std::vector<float> weights;   // empty: no network
  double sharpness = 1.0;  // how much more a likelier move is preferred
  int candidates = 1;      // moves that are scored for one that is judged
  bool blind = false;      // whether it takes any of them, for comparison
};

class Scout {
 public:
  static constexpr int kFeatures = 36;

  Scout(const ProblemLayout& a, const std::vector<int64_t>& capacity);

  // Sets the timeline of the plan from which moves are made.
  void set_timeline(const int32_t* device, const Record& record, double step);

  // What is known of moving these ops, which now are on the device `from` (most of them), to another.
  void features(const int32_t* device, const std::vector<int32_t>& ops, int from, int to,
                const std::vector<double>& busy, const std::vector<int64_t>& peak, float* out);

  // The chance that a move gains, by what is known of it.
  double gain_probability(const ScoutNet& net, const float* features);

 private:
  double busy_share(int device, double begin, double end) const;
  double transfer_seconds(int tensor, int from, int to) const {
    return from == to ? 0.0 : a_.transfer[size_t(a_.link_class[from * a_.devices + to]) * a_.tensors + tensor];
  }

  const ProblemLayout& a_;
  const std::vector<int64_t>& capacity_;
  double step_ = 1.0;
  std::vector<double> start_, end_, latest_end_, device_free_;        // ops
  std::vector<int32_t> by_start_, next_op_;                // ops by start; the next on the device
  std::vector<std::vector<double>> begins_, ends_, sums_;  // devices: their ops in order, work before each
  std::vector<uint32_t> stamp_, tensor_stamp_;           // ops and tensors of the move looked at
  uint32_t move_id_ = 0;
  std::vector<float> in_, out_;
};

}  // namespace placewright
