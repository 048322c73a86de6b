// The arrays that the lane kernels read, for one order of a problem's ops.
#pragma once

#include <cstdint>
#include <vector>

#include "problem_layout.hpp"
#include "simulator/lane_sweep.hpp"

namespace placewright {

// Plans that share one order of ops, on a cluster whose channels have one sender each and whose devices share no
// issuer, without streamed weights and fused ops. Then a device's sends are handed over in its own order of ops, a
// channel serves them in that order, and one sweep in the plan's order knows all that an op waits for.
struct LaneLayout {
  static constexpr int kMaxDevices = 24;  // a lane's receivers are bits of an exact float32

  // Whether the rules above hold for a problem, whatever its plans.
  static bool applies_to(const ProblemLayout& layout);

  // `priority`: of all ops; null: the graph's order. `row`: of each op, where its device stands in a plan; null: ops.
  LaneLayout(const ProblemLayout& layout, const double* priority, const int32_t* row);

  // What a sweep reads; the seconds are pointers to `layout.compute` and `transfer`, or to copies of another type.
  template <typename Number>
  LaneProblem<Number> view(const Number* compute, const Number* transfer_seconds) const;

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

template <typename Number>
LaneProblem<Number> LaneLayout::view(const Number* compute, const Number* transfer_seconds) const {
  LaneProblem<Number> p;
  p.devices = a.devices, p.channels = a.channels + 1, p.classes = a.classes + 1;
  p.scheduled = static_cast<int32_t>(order.size()), p.fixed = static_cast<int32_t>(fixed_op.size());
  p.resident_ops = static_cast<int32_t>(resident_op.size());
  p.is_graph_order = is_graph_order;
  p.order = order.data(), p.fixed_op = fixed_op.data(), p.resident_op = resident_op.data(), p.op_row = op_row.data();
  p.is_resident = a.is_resident.data(), p.resident = a.resident.data(), p.workspace = a.workspace.data();
  p.start_bytes = a.start_bytes.data(), p.all_bytes = all_bytes.data(), p.compute = compute;
  p.first_tensor = a.first_tensor.data(), p.first_read = first_read.data();
  p.read_slot = read_slot.data(), p.read_tensor = read_tensor.data();
  p.first_edge = first_edge.data(), p.edge_row = edge_row.data(), p.edge_slot = edge_slot.data();
  p.sizes = a.sizes.data(), p.tensor_flags = tensor_flags.data(), p.transfer = transfer_seconds;
  p.channel_of = channel_of.data(), p.class_of = class_of.data();
  return p;
}

}  // namespace placewright
