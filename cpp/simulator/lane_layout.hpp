// The arrays that the lane kernels read, for one order of a problem's ops.
#pragma once

#include <cstdint>
#include <vector>

#include "problem_layout.hpp"

namespace placewright {

// Of a tensor: its memory is given back in the step; it is a view of another; another is a view of it; it is an output.
constexpr uint8_t kReleasable = 1, kView = 2, kViewed = 4, kOutput = 8;

// Plans that share one order of ops, on a cluster whose channels have one sender each and whose devices share no
// issuer, without streamed weights and fused ops. Then a device's sends are handed over in its own order of ops, a
// channel serves them in that order, and one sweep in the plan's order knows all that an op waits for.
struct LaneLayout {
  static constexpr int kMaxDevices = 24;  // a lane's receivers are bits of an exact float32

  // Whether the rules above hold for a problem, whatever its plans.
  static bool applies_to(const ProblemLayout& layout);

  // `priority`: of all ops; null: the graph's order. `row`: of each op, where its device stands in a plan; null: ops.
  LaneLayout(const ProblemLayout& layout, const double* priority, const int32_t* row);

  const ProblemLayout& a;
  bool is_graph_order;
  int slots = 0;  // arrivals that are stored at a time
  std::vector<int32_t> order, fixed_op, resident_op, op_row;
  std::vector<int32_t> first_edge, edge_row, edge_slot;
  std::vector<int32_t> first_read, read_slot, read_tensor;
  std::vector<int32_t> channel_of, class_of;  // devices × devices, with a spare one from a device to itself
  std::vector<double> transfer;               // tensors × classes, and 0 for the spare class
  std::vector<uint8_t> tensor_flags;
  std::vector<int64_t> all_bytes;  // ops: workspace and all outputs

 private:
  void assign_slots(const std::vector<int32_t>& edge_reader);
};

}  // namespace placewright
