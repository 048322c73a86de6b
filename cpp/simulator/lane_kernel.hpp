// Step times of many plans side by side, for the in-order discipline: one sweep over the ops, a plan in each lane.
#pragma once

#include <cstdint>
#include <vector>

#include "problem_layout.hpp"

namespace placewright {

// Plans that share one order of ops, on a cluster whose channels have one sender each and whose devices share no
// issuer, without streamed weights and fused ops. Then a device's sends are handed over in its own order of ops, a
// channel serves them in that order, and one sweep in the plan's order knows all that an op waits for.
class LaneKernel {
 public:
  static constexpr int kLanes = 16;
  static constexpr int kMaxDevices = 24;  // a lane's receivers are bits of an exact float32

  // Whether the rules above hold for a problem, whatever its plans.
  static bool applies_to(const ProblemLayout& layout);

  explicit LaneKernel(const ProblemLayout& layout) : a_(layout) {}

  // The order of all plans that follow. Null: the graph's.
  void set_order(const double* priority);

  struct Verdict {
    double step_time[kLanes];
    bool exact[kLanes];          // false: hand-overs of one instant may be served in another order
    std::vector<int64_t> low;    // devices × lanes: the peak is at least this
    std::vector<int64_t> high;   // devices × lanes: and at most this
  };

  // `kLanes` plans; `device` has a pointer to the devices of each.
  void run(const int32_t* const* device, bool with_peaks, Verdict& verdict);

 private:
  void sweep_times(Verdict& verdict);
  void sweep_with_peaks(Verdict& verdict);
  template <bool kPeaks>
  void sweep(Verdict& verdict);

  const ProblemLayout& a_;
  std::vector<int32_t> order_;        // scheduled ops
  std::vector<int32_t> first_edge_;   // tensors + 1
  std::vector<int32_t> edge_reader_;  // edges: the reading op, in the plan's order
  std::vector<int32_t> first_read_;   // ops + 1
  std::vector<int32_t> read_edge_;    // the edges that an op reads
  std::vector<int32_t> edge_tensor_;
  std::vector<int32_t> channel_of_, class_of_;  // devices × devices, with a spare one from a device to itself
  std::vector<double> transfer_;                // tensors × classes, and 0 for the spare class
  std::vector<uint8_t> releasable_;             // tensors: whether its memory is given back in the step
  std::vector<uint8_t> is_viewed_;              // tensors: whether another tensor is a view of it
  std::vector<int64_t> all_bytes_;              // ops: workspace and all outputs
  bool has_order_ = false, is_graph_order_ = true;

  std::vector<uint8_t> place_;  // ops × lanes
  std::vector<double> arrival_;  // edges × lanes
  std::vector<uint8_t> use_;     // edges × lanes: first and last read of a copy
  std::vector<double> device_free_, channel_free_;
};

}  // namespace placewright
