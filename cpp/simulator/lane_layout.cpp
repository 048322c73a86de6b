#include "simulator/lane_layout.hpp"

#include <algorithm>

namespace placewright {

bool LaneLayout::applies_to(const ProblemLayout& a) {
  if (a.issuers > 0 || a.devices > kMaxDevices) return false;
  std::vector<int32_t> sender(a.channels, -1);
  for (int source = 0; source < a.devices; ++source) {
    for (int target = 0; target < a.devices; ++target) {
      const int32_t channel = source == target ? -1 : a.channel[source * a.devices + target];
      if (channel < 0) continue;
      if (sender[channel] >= 0 && sender[channel] != source) return false;
      sender[channel] = source;
    }
  }
  return true;
}

LaneLayout::LaneLayout(const ProblemLayout& layout, const double* priority, const int32_t* row)
    : a(layout), is_graph_order(!priority) {
  PlanOrder().compute(a, priority, order);
  std::vector<int32_t> rank(a.ops, -1);
  for (size_t at = 0; at < order.size(); ++at) rank[order[at]] = static_cast<int32_t>(at);
  for (int op = 0; op < a.ops; ++op) {
    op_row.push_back(row ? row[op] : op);
    if (!a.scheduled[op]) fixed_op.push_back(op);
    if (a.resident[op]) resident_op.push_back(op);
  }
  std::vector<int32_t> edge_reader;  // in the plan's order
  first_edge.assign(1, 0);
  for (int tensor = 0; tensor < a.tensors; ++tensor) {
    const size_t first = edge_reader.size();
    for (int at = a.first_reader[tensor]; at < a.first_reader[tensor + 1]; ++at) {
      if (rank[a.readers[at]] >= 0) edge_reader.push_back(a.readers[at]);
    }
    std::sort(edge_reader.begin() + first, edge_reader.end(),
              [&rank](int32_t one, int32_t two) { return rank[one] < rank[two]; });
    first_edge.push_back(static_cast<int32_t>(edge_reader.size()));
  }
  for (const int32_t reader : edge_reader) edge_row.push_back(op_row[reader]);
  assign_slots(edge_reader);
  const int devices = a.devices, classes = a.classes + 1;
  channel_of = a.channel, class_of = a.link_class;
  for (int device = 0; device < devices; ++device) {
    channel_of[device * devices + device] = a.channels;
    class_of[device * devices + device] = a.classes;
  }
  transfer.assign(static_cast<size_t>(a.tensors) * classes, 0.0);
  tensor_flags.assign(a.tensors, 0);
  all_bytes = a.workspace;
  for (int tensor = 0; tensor < a.tensors; ++tensor) {
    for (int link = 0; link < a.classes; ++link) {
      transfer[static_cast<size_t>(tensor) * classes + link] = a.transfer[static_cast<size_t>(link) * a.tensors + tensor];
    }
    const int op = a.producer[tensor];
    if (!a.is_output[tensor] && !(a.is_resident[op] && !a.scheduled[op])) tensor_flags[tensor] |= kReleasable;
    if (a.is_output[tensor]) tensor_flags[tensor] |= kOutput;
    if (a.alias[tensor] >= 0) {
      tensor_flags[tensor] |= kView;
      if (a.scheduled[op]) tensor_flags[a.alias[tensor]] |= kViewed;
    }
    all_bytes[op] += a.sizes[tensor];
  }
}

// An arrival is stored from when its tensor is made until its reader runs; then another one takes its slot. So a sweep
// needs as many slots as there are edges under way at a time, and these stay in a cache.
void LaneLayout::assign_slots(const std::vector<int32_t>& edge_reader) {
  std::vector<int32_t> count(a.ops + 1, 0);
  for (const int32_t reader : edge_reader) ++count[reader + 1];
  for (int op = 0; op < a.ops; ++op) count[op + 1] += count[op];
  first_read = count;
  edge_slot.resize(edge_reader.size()), read_slot.resize(edge_reader.size()), read_tensor.resize(edge_reader.size());
  std::vector<int32_t> unused;
  const auto make = [&](int op) {
    for (int tensor = a.outputs_begin(op); tensor < a.outputs_end(op); ++tensor) {
      for (int edge = first_edge[tensor]; edge < first_edge[tensor + 1]; ++edge) {
        if (unused.empty()) unused.push_back(slots++);
        const int32_t read = count[edge_reader[edge]]++;
        edge_slot[edge] = read_slot[read] = unused.back();
        read_tensor[read] = tensor;
        unused.pop_back();
      }
    }
  };
  for (const int32_t op : fixed_op) make(op);
  for (const int32_t op : order) {
    for (int read = first_read[op]; read < first_read[op + 1]; ++read) unused.push_back(read_slot[read]);
    make(op);
  }
}

}  // namespace placewright
