// The loads that make up the period, kept up to date while single ops move.
// src/placewright/simulator/period.py defines a load; weights are sent like any tensor here (no
// staging).
#pragma once

#include <cstdint>
#include <vector>

#include "problem_layout.hpp"

namespace placewright {

class Loads {
 public:
  Loads(const ProblemLayout& layout, bool overlap) : a_(layout), overlap_(overlap) {}

  // Recomputes all loads, which also removes accumulated rounding errors.
  void reset(const std::vector<int32_t>& device);
  void move(int op, int to);
  double largest() const;
  // The mean of the loads with large ones counting more, by 2 to the power `doublings`: unlike the
  // largest load it also falls when another device gets less work.
  double power_mean(int doublings) const;

 private:
  void add_tensor(int tensor, double sign);
  int32_t& readers_on(int tensor, int place) { return readers_on_[size_t(tensor) * a_.devices + place]; }

  const ProblemLayout& a_;
  const bool overlap_;
  std::vector<int32_t> device_;
  std::vector<int32_t> readers_on_;  // tensors × devices: scheduled ops there that read it
  std::vector<double> device_load_, channel_load_;
};

}  // namespace placewright
