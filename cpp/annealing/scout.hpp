// A scout: features of moving a block to a device, known before the plan is evaluated, and a small
// trained network that scores them. Scoring costs a hundredth of evaluating a plan, and avoids many
// evaluations that would gain nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/event_kernel.hpp"
#include "problem_layout.hpp"

namespace placewright {

// Layers of a network with one output, one after the other: first the biases, then the weights of
// each input. Hidden layers have ReLU activations.
struct ScoutNet {
  std::vector<int32_t> widths;  // of the hidden layers
  std::vector<float> weights;   // empty: no network
  double sharpness = 1.0;       // how strongly a likelier move is preferred
  int candidates = 1;           // moves that are scored for each one that is evaluated
  bool blind = false;           // whether it takes any of them, for comparison
};

class Scout {
 public:
  static constexpr int kFeatures = 36;

  Scout(const ProblemLayout& a, const std::vector<int64_t>& capacity);

  // Sets the timeline of the plan from which moves are made.
  void set_timeline(const int32_t* device, const Record& record, double step);

  // Features of moving these ops, most of which are on the device `from`, to another device.
  void features(const int32_t* device, const std::vector<int32_t>& ops, int from, int to,
                const std::vector<double>& busy, const std::vector<int64_t>& peak, float* out);

  // The probability that a move gains, by its features.
  double gain_probability(const ScoutNet& net, const float* features);

 private:
  double busy_share(int device, double begin, double end) const;
  double transfer_seconds(int tensor, int from, int to) const {
    return from == to ? 0.0 : a_.transfer[size_t(a_.link_class[from * a_.devices + to]) * a_.tensors + tensor];
  }

  const ProblemLayout& a_;
  const std::vector<int64_t>& capacity_;
  double step_ = 1.0;
  std::vector<double> start_, end_, latest_end_, device_free_;  // ops
  std::vector<int32_t> by_start_, next_op_;                     // ops by start; the next on the device
  std::vector<std::vector<double>> begins_, ends_, sums_;       // devices: their ops in order, work before each
  std::vector<uint32_t> stamp_, tensor_stamp_;                  // ops and tensors of the current move
  uint32_t move_id_ = 0;
  std::vector<float> in_, out_;
};

}  // namespace placewright
