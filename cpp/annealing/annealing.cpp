#include "annealing/annealing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "annealing/state.hpp"

namespace placewright {

void MoveBlocks::derive(const ProblemLayout& a) {
  std::vector<int32_t> unit_of(a.ops);
  int units = 0;
  for (int op = 0; op < a.ops; ++op) unit_of[op] = a.unit_head[op] == op ? units++ : unit_of[a.unit_head[op]];
  first_op.assign(units + 1, 0);
  for (int op = 0; op < a.ops; ++op) ++first_op[unit_of[op] + 1];
  for (int u = 0; u < units; ++u) first_op[u + 1] += first_op[u];
  ops.resize(a.ops);
  std::vector<int32_t> filled(first_op.begin(), first_op.end() - 1);
  stores.assign(units, 1);
  seconds.assign(size_t(units) * a.devices, 0.0);
  resident.assign(units, 0);
  allowed.assign(size_t(units) * a.devices, 1);
  for (int op = 0; op < a.ops; ++op) {
    const int u = unit_of[op];
    ops[filled[u]++] = op;
    stores[u] &= a.is_weight[op];
    resident[u] += a.resident[op];
    for (int d = 0; d < a.devices; ++d) {
      allowed[size_t(u) * a.devices + d] &= a.allowed[size_t(op) * a.devices + d];
      if (a.scheduled[op]) seconds[size_t(u) * a.devices + d] += a.compute[size_t(op) * a.devices + d];
    }
  }
}

AnnealingState::AnnealingState(const ProblemLayout& a, const MoveBlocks& blocks, EventKernel& event,
                               const OwnedPlan& start,
           const AnnealingSettings& settings, const DeviceProbs& device_probs, uint64_t seed)
    : a_(a), b_(blocks), event_(event), s_(settings), device_probs_(device_probs),
      plan_(start), loads_(a, settings.overlap),
      scout_(a, settings.capacity), random_(seed) {
  smallest_capacity_ = std::numeric_limits<double>::infinity();
  for (int d = 0; d < a.devices; ++d) {
    if (s_.capacity[d] > 0) smallest_capacity_ = std::min(smallest_capacity_, static_cast<double>(s_.capacity[d]));
  }
  if (std::isinf(smallest_capacity_)) smallest_capacity_ = 1.0;
  if (!plan_.priority.empty()) number_priorities();
  reset();
  judged_staging_ = plan_.staging;
  if (!device_probs_.empty()) down_weight();
}

MoveSamples AnnealingState::samples(int count) {
  MoveSamples out;
  const Score before = score();
  peak_ = event_.peak();
  for (int i = 0; i < count; ++i) {
    old_units_.clear(), old_priorities_.clear(), old_staging_.clear();
    const int level = sample_index(s_.level_share);
    const int kinds[] = {kMove, kMove, kMoveRun};
    Candidate move;
    sample_candidate(move, kinds[random_.below(3)], level);
    if (move.ops.empty()) continue;
    out.features.resize(out.features.size() + Scout::kFeatures);
    extract_features(move, out.features.data() + out.features.size() - Scout::kFeatures);
    apply_move(move);
    out.change.push_back(score().cost / before.cost - 1.0);
    undo();
  }
  return out;
}

AnnealingResult AnnealingState::run() {
  if (s_.overflow_first) start_value_ = score().value;
  Score current = score(), best = current;
  peak_ = event_.peak();
  AnnealingResult out;
  out.best = judged_plan();
  const double cooling = s_.hot > 0 ? std::log(s_.cold / s_.hot) : 0.0;
  int64_t accepted = 0;
  for (int64_t n = 1; n < s_.evaluations; ++n) {
    const double temperature = s_.hot > 0 ? s_.hot * std::exp(cooling * double(n) / double(s_.evaluations)) : 0.0;
    old_units_.clear(), old_priorities_.clear(), old_staging_.clear();
    limit_ = current.cost * (1.0 + temperature);
    propose();
    n += std::exchange(extra_evaluations_, 0);  // recording the whole plan costs as much as evaluating one
    const double limit = current.cost * (1.0 - temperature * std::log(1.0 - random_.uniform()));
    if (old_units_.empty() && old_priorities_.empty() && old_staging_.empty()) continue;
    if (cost_lower_bound() > limit) {
      undo();
      continue;
    }
    const Score proposed = score();
    if (!(proposed.cost <= limit)) {
      undo();
      continue;
    }
    current = proposed;
    ++moves_since_record_;
    if (!uses_loads()) peak_ = event_.peak();
    if (std::tie(proposed.overflow, proposed.value) < std::tie(best.overflow, best.value)) {
      best = proposed;
      out.best = judged_plan();
    }
    if (++accepted % 100'000 == 0) reset();
  }
  out.last = plan_;
  out.overflow = best.overflow;
  out.value = best.value;
  return out;
}

// Priorities become positions in the plan's order, so that they never contradict the graph.
void AnnealingState::number_priorities() {
  PlanOrder plan_order;
  std::vector<int32_t> order;
  plan_order.compute(a_, plan_.priority.data(), order);
  std::fill(plan_.priority.begin(), plan_.priority.end(), 0.0);
  for (size_t at = 0; at < order.size(); ++at) plan_.priority[order[at]] = static_cast<double>(at);
}

void AnnealingState::reset() {
  busy_.assign(a_.devices, 0.0);
  resident_.assign(a_.devices, 0);
  for (size_t u = 0; u < b_.resident.size(); ++u) {
    const int d = plan_.device[b_.ops[b_.first_op[u]]];
    busy_[d] += b_.seconds[u * a_.devices + d];
    resident_[d] += b_.resident[u];
  }
  if (uses_loads()) loads_.reset(plan_.device);
}

// A lower bound on the cost of any plan with these loads and resident bytes.
double AnnealingState::cost_lower_bound() const {
  double busiest = 0.0;
  int64_t over = 0;
  for (int d = 0; d < a_.devices; ++d) {
    busiest = std::max(busiest, busy_[d]);
    over += std::max<int64_t>(0, resident_[d] - s_.capacity[d]);
  }
  return cost(busiest * (1 - 1e-9), over);
}

// Grows with the value and the bytes over. With `overflow_first` the value only decides between plans
// that are over by about as much: it adds 5 % of what a plan that fits costs, at most.
double AnnealingState::cost(double value, int64_t overflow) const {
  const double factor = 1.0 + s_.penalty * double(overflow) / smallest_capacity_;
  if (!s_.overflow_first) return value * factor;
  return factor + (value > 0.0 ? 0.05 * (value / (value + start_value_)) : 0.0);
}

Score AnnealingState::score() {
  Score out;
  double smooth_value = 0.0;
  if (uses_loads()) {
    for (int d = 0; d < a_.devices; ++d) {
      out.overflow += std::max<int64_t>(0, resident_[d] - s_.capacity[d] + s_.memory_margin[d]);
    }
    out.value = loads_.largest();
    smooth_value = loads_.power_mean(s_.doublings);
  } else {
    raise_staging();
    const PlanView view{plan_.device.data(), plan_.priority.empty() ? nullptr : plan_.priority.data(),
                        judged_staging_.empty() ? nullptr : judged_staging_.data()};
    const double step_time = event_.run(view, s_.in_order, nullptr);
    out.value = smooth_value = s_.period ? period_.evaluate(a_, view, s_.overlap) : step_time;
    for (int d = 0; d < a_.devices; ++d) {
      out.overflow += std::max<int64_t>(0, event_.peak()[d] - s_.capacity[d]);
    }
  }
  out.cost = cost(smooth_value, out.overflow);
  return out;
}

// Staging buffers as evaluated: at least what the largest op needs, so that no plan is malformed, and
// none where nothing is streamed.
void AnnealingState::raise_staging() {
  if (plan_.staging.empty()) return;
  judged_staging_.assign(a_.devices, -1);
  min_staging_.assign(a_.devices, 0);
  for (const int32_t op : a_.scheduled_ops) {
    const int place = plan_.device[op];
    int64_t need = 0;
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
      const int source = a_.producer[a_.inputs[i]];
      if (a_.is_weight[source] && plan_.device[source] != place) need += a_.sizes[a_.inputs[i]];
    }
    min_staging_[place] = std::max(min_staging_[place], need);
  }
  for (int d = 0; d < a_.devices; ++d) {
    if (plan_.staging[d] >= 0 && min_staging_[d] > 0) judged_staging_[d] = std::max(plan_.staging[d], min_staging_[d]);
  }
}

OwnedPlan AnnealingState::judged_plan() const {
  OwnedPlan out = plan_;
  out.staging = judged_staging_;
  return out;
}

void AnnealingState::undo() {
  for (auto it = old_units_.rbegin(); it != old_units_.rend(); ++it)
    place_unit(it->first, unit_device(it->first), it->second);
  for (auto it = old_priorities_.rbegin(); it != old_priorities_.rend(); ++it) plan_.priority[it->first] = it->second;
  for (auto it = old_staging_.rbegin(); it != old_staging_.rend(); ++it) plan_.staging[it->first] = it->second;
}

AnnealingResult anneal(const ProblemLayout& a, const MoveBlocks& blocks, EventKernel& event, const OwnedPlan& start,
            const AnnealingSettings& settings, const DeviceProbs& device_probs, uint64_t seed) {
  return AnnealingState(a, blocks, event, start, settings, device_probs, seed).run();
}

MoveSamples sample_moves(const ProblemLayout& a, const MoveBlocks& blocks, EventKernel& event, const OwnedPlan& start,
                     const AnnealingSettings& settings, int count, uint64_t seed) {
  const DeviceProbs nothing;
  return AnnealingState(a, blocks, event, start, settings, nothing, seed).samples(count);
}

}  // namespace placewright
