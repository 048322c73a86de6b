#include "layout.hpp"

#include <algorithm>
#include <functional>
#include <queue>

namespace placewright {
namespace {

// Sorts what is nearly sorted already, as after a small change; far from it, as std::sort does.
template <typename Before>
void sort_again(std::vector<int32_t>& values, Before before) {
  size_t left = 2 * values.size();  // places that values may still move
  for (size_t i = 1; i < values.size(); ++i) {
    const int32_t value = values[i];
    size_t at = i;
    for (; at > 0 && left > 0 && before(value, values[at - 1]); --at, --left) values[at] = values[at - 1];
    values[at] = value;
    if (left == 0) return std::sort(values.begin(), values.end(), before);
  }
}

}  // namespace

void Layout::derive() {
  runnable.clear();
  any_alias = false;
  turn_inputs.assign(ops, 0);
  start_bytes.assign(ops, 0);
  reader_slot.assign(inputs.size(), 0);
  std::vector<int32_t> filled(first_reader.begin(), first_reader.end() - 1);
  for (int op = 0; op < ops; ++op) {
    if (turn[op]) runnable.push_back(op);
    for (int i = first_input[op]; i < first_input[op + 1]; ++i) {
      reader_slot[i] = filled[inputs[i]]++;  // readers are in graph order, and so is this loop
      turn_inputs[op] += turn[producer[inputs[i]]];
    }
    start_bytes[op] = workspace[op];
    for (int t = first_tensor[op]; t < first_tensor[op + 1]; ++t) {
      if (alias[t] < 0) start_bytes[op] += sizes[t];
      any_alias |= alias[t] >= 0 && turn[op];
    }
  }
}

void PlanOrder::compute(const Layout& a, const double* priority, std::vector<int32_t>& order) {
  if (!priority) {
    order = a.runnable;
    return;
  }
  const auto before = [priority](int32_t x, int32_t y) {
    return priority[x] < priority[y] || (priority[x] == priority[y] && x < y);
  };
  if (sorted_.size() != a.runnable.size()) sorted_ = a.runnable;
  sort_again(sorted_, before);
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

  waiting_ = a.turn_inputs;
  order.clear();
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> heads;
  for (const int32_t op : a.runnable) {
    if (waiting_[op] == 0) heads.push(rank_[op]);
  }
  while (!heads.empty()) {
    const int32_t op = sorted_[heads.top()];
    heads.pop();
    order.push_back(op);
    for (int t = a.outputs_begin(op); t < a.outputs_end(op); ++t) {
      for (int r = a.first_reader[t]; r < a.first_reader[t + 1]; ++r) {
        if (--waiting_[a.readers[r]] == 0) heads.push(rank_[a.readers[r]]);
      }
    }
  }
}

void check_placement(const Layout& a, const int32_t* device) {
  for (int op = 0; op < a.ops; ++op) {
    const int place = device[op];
    if (place < 0 || place >= a.devices || !a.allowed[size_t(op) * a.devices + place] ||
        place != device[a.head[op]]) {
      throw Malformed{Malformed::kPlacement, op};
    }
  }
}

}  // namespace placewright
