// The period's closed form; src/placewright/simulator/period.py is its reference.
#include <algorithm>

#include "problem_layout.hpp"

namespace placewright {

double Period::evaluate(const ProblemLayout& a, const PlanView& plan, bool overlap) {
  device_load_.assign(a.devices, 0.0);
  channel_load_.assign(a.channels, 0.0);
  last_sent_.assign(a.devices, -1);
  const int32_t* device = plan.device;
  for (int op = 0; op < a.ops; ++op) {
    device_load_[device[op]] += a.compute[size_t(op) * a.devices + device[op]];
  }
  const auto seconds = [&](int source, int target, int tensor) {
    const int pair = source * a.devices + target;
    return a.transfer[size_t(a.link_class[pair]) * a.tensors + tensor];
  };
  const auto pay = [&](int place, double time) {
    if (!a.is_host[place]) device_load_[place] += time;
  };
  for (int t = 0; t < a.tensors; ++t) {
    const int source = device[a.producer[t]];
    double longest = 0.0;
    bool sent = false;
    for (int r = a.first_reader[t]; r < a.first_reader[t + 1]; ++r) {
      const int reader = a.readers[r], target = device[reader];
      if (target == source || last_sent_[target] == t || !a.scheduled[reader]) continue;
      if (a.is_weight[a.producer[t]] && plan.staging_bytes(target) >= 0) continue;
      last_sent_[target] = t;
      sent = true;
      const double time = seconds(source, target, t);
      channel_load_[a.channel[source * a.devices + target]] += time;
      if (!overlap) pay(target, time);
      longest = std::max(longest, time);
    }
    if (!overlap && sent) pay(source, longest);
  }
  if (plan.staging) {
    for (const int32_t op : a.scheduled_ops) {
      const int target = device[op];
      if (plan.staging_bytes(target) < 0) continue;
      for (int i = a.first_input[op]; i < a.first_input[op + 1]; ++i) {
        const int t = a.inputs[i], source = device[a.producer[t]];
        if (!a.is_weight[a.producer[t]] || source == target) continue;
        const double time = seconds(source, target, t);
        channel_load_[a.channel[source * a.devices + target]] += time;
        if (overlap) continue;
        pay(target, time);
        pay(source, time);
      }
    }
  }
  double largest = 0.0;
  for (const double load : device_load_) largest = std::max(largest, load);
  if (overlap) {
    for (const double load : channel_load_) largest = std::max(largest, load);
  }
  return largest;
}

}  // namespace placewright
