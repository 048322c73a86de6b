#include "problem_layout.hpp"

#include <algorithm>
#include <functional>
#include <queue>

namespace placewright {
namespace {

// Sorts values that are nearly sorted, as after a small change; falls back to std::sort.
template <typename Before>
void sort_nearly_sorted(std::vector<int32_t>& values, Before before) {
  size_t moves_left = 2 * values.size();  // places that values may still move
  for (size_t i = 1; i < values.size(); ++i) {
    const int32_t value = values[i];
    size_t at = i;
    for (; at > 0 && moves_left > 0 && before(value, values[at - 1]); --at, --moves_left) values[at] = values[at - 1];
    values[at] = value;
    if (moves_left == 0) return std::sort(values.begin(), values.end(), before);
  }
}

}  // namespace

void ProblemLayout::derive() {
  scheduled_ops.clear();
  any_alias = false;
  scheduled_inputs.assign(ops, 0);
  start_bytes.assign(ops, 0);
  reader_slot.assign(inputs.size(), 0);
  std::vector<int32_t> filled(first_reader.begin(), first_reader.end() - 1);
  for (int op = 0; op < ops; ++op) {
    if (scheduled[op]) scheduled_ops.push_back(op);
    for (int i = first_input[op]; i < first_input[op + 1]; ++i) {
      reader_slot[i] = filled[inputs[i]]++;  // readers are in graph order, and so is this loop
      scheduled_inputs[op] += scheduled[producer[inputs[i]]];
    }
    start_bytes[op] = workspace[op];
    for (int t = first_tensor[op]; t < first_tensor[op + 1]; ++t) {
      if (alias[t] < 0) start_bytes[op] += sizes[t];
      any_alias |= alias[t] >= 0 && scheduled[op];
    }
  }
}

void PlanOrder::compute(const ProblemLayout& a, const double* priority, std::vector<int32_t>& order) {
  if (!priority) {
    order = a.scheduled_ops;
    return;
  }
  const auto before = [priority](int32_t x, int32_t y) {
    return priority[x] < priority[y] || (priority[x] == priority[y] && x < y);
  };
  if (sorted_.size() != a.scheduled_ops.size()) sorted_ = a.scheduled_ops;
  sort_nearly_sorted(sorted_, before);
  order = sorted_;
  rank_.assign(a.ops, -1);
  for (size_t at = 0; at < order.size(); ++at) rank_[order[at]] = static_cast<int32_t>(at);
  // Priorities that never put an op ahead of its producer already are the plan's order.
  bool topological = true;
  for (const int32_t op : order) {
    for (int i = a.first_input[op]; i < a.first_input[op + 1] && topological; ++i) {
      topological = rank_[a.producer[a.inputs[i]]] < rank_[op];
    }
  }
  if (topological) return;

  waiting_ = a.scheduled_inputs;
  order.clear();
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> ready;
  for (const int32_t op : a.scheduled_ops) {
    if (waiting_[op] == 0) ready.push(rank_[op]);
  }
  while (!ready.empty()) {
    const int32_t op = sorted_[ready.top()];
    ready.pop();
    order.push_back(op);
    for (int t = a.outputs_begin(op); t < a.outputs_end(op); ++t) {
      for (int r = a.first_reader[t]; r < a.first_reader[t + 1]; ++r) {
        if (--waiting_[a.readers[r]] == 0) ready.push(rank_[a.readers[r]]);
      }
    }
  }
}

void check_placement(const ProblemLayout& a, const int32_t* device) {
  for (int op = 0; op < a.ops; ++op) {
    const int place = device[op];
    if (place < 0 || place >= a.devices || !a.allowed[size_t(op) * a.devices + place] ||
        place != device[a.unit_head[op]]) {
      throw MalformedPlan{MalformedPlan::kPlacement, op};
    }
  }
}

}  // namespace placewright
