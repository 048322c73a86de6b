// Step times of many plans side by side, for the in-order discipline: one sweep over the ops, a plan in each lane.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "simulator/lane_layout.hpp"

namespace placewright {

struct LaneBuffers;

class LaneKernel {
 public:
  static constexpr int kLanes = 16;

  explicit LaneKernel(const ProblemLayout& layout) : a_(layout) {}

  // The order of all plans that follow. Null: the graph's.
  void set_order(const double* priority);

  struct Verdict {
    double step_time[kLanes];
    bool exact[kLanes];         // false: hand-overs of one instant may be served in another order
    std::vector<int64_t> low;   // devices × lanes: the peak is at least this
    std::vector<int64_t> high;  // devices × lanes: and at most this
  };

  // `kLanes` plans; `device` has a pointer to the devices of each.
  void run(const int32_t* const* device, bool with_peaks, Verdict& verdict);

 private:
  void sweep_times(LaneBuffers buffers, double* step_time, int32_t* inexact);
  void sweep_with_peaks(LaneBuffers buffers, double* step_time, int32_t* inexact);

  const ProblemLayout& a_;
  std::optional<LaneLayout> layout_;
  std::vector<uint8_t> place_;   // ops × lanes
  std::vector<double> arrival_;  // slots × lanes
  std::vector<uint8_t> use_;     // slots × lanes
  std::vector<double> device_free_, channel_free_;
  std::vector<int64_t> live_low_, live_high_;
};

}  // namespace placewright
