#include "simulator/loads.hpp"

#include <algorithm>
#include <cmath>

namespace placewright {

void Loads::reset(const std::vector<int32_t>& device) {
  device_ = device;
  device_load_.assign(a_.devices, 0.0);
  channel_load_.assign(a_.channels, 0.0);
  readers_on_.assign(size_t(a_.tensors) * a_.devices, 0);
  for (int op = 0; op < a_.ops; ++op) device_load_[device[op]] += a_.compute[size_t(op) * a_.devices + device[op]];
  for (const int32_t op : a_.scheduled_ops) {
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) ++readers_on(a_.inputs[i], device[op]);
  }
  for (int t = 0; t < a_.tensors; ++t) add_tensor(t, 1.0);
}

// Adds what sending this tensor costs to the loads, or takes it off again.
void Loads::add_tensor(int tensor, double sign) {
  const int source = device_[a_.producer[tensor]];
  const int32_t* readers = readers_on_.data() + size_t(tensor) * a_.devices;
  double longest = 0.0;
  for (int target = 0; target < a_.devices; ++target) {
    if (!readers[target] || target == source) continue;
    const int pair = source * a_.devices + target;
    const double time = a_.transfer[size_t(a_.link_class[pair]) * a_.tensors + tensor];
    channel_load_[a_.channel[pair]] += sign * time;
    longest = std::max(longest, time);
    if (!overlap_ && !a_.is_host[target]) device_load_[target] += sign * time;
  }
  if (!overlap_ && !a_.is_host[source]) device_load_[source] += sign * longest;
}

void Loads::move(int op, int to) {
  const int from = device_[op];
  const int begin = a_.first_tensor[op], end = a_.first_tensor[op + 1];
  for (int t = begin; t < end; ++t) add_tensor(t, -1.0);
  const size_t row = size_t(op) * a_.devices;
  device_load_[from] -= a_.compute[row + from];
  device_load_[to] += a_.compute[row + to];
  if (a_.scheduled[op]) {
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
      const int t = a_.inputs[i];
      add_tensor(t, -1.0);
      --readers_on(t, from);
      ++readers_on(t, to);
      add_tensor(t, 1.0);
    }
  }
  device_[op] = to;
  for (int t = begin; t < end; ++t) add_tensor(t, 1.0);
}

double Loads::largest() const {
  double largest = 0.0;
  for (const double load : device_load_) largest = std::max(largest, load);
  if (overlap_) {
    for (const double load : channel_load_) largest = std::max(largest, load);
  }
  return largest;
}

double Loads::power_mean(int doublings) const {
  const double top = largest();
  if (!(top > 0.0)) return 0.0;
  double sum = 0.0;
  const auto add = [&](double load) {
    double share = load / top;
    for (int i = 0; i < doublings; ++i) share *= share;
    sum += share;
  };
  for (const double load : device_load_) add(load);
  if (overlap_) {
    for (const double load : channel_load_) add(load);
  }
  return top * std::pow(sum, std::ldexp(1.0, -doublings));
}

}  // namespace placewright
