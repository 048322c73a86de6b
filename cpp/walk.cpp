#include "walk.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "walking.hpp"

namespace placewright {

void Blocks::derive(const Layout& a) {
  std::vector<int32_t> unit_of(a.ops);
  int units = 0;
  for (int op = 0; op < a.ops; ++op) unit_of[op] = a.head[op] == op ? units++ : unit_of[a.head[op]];
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
    stores[u] &= a.weight[op];
    resident[u] += a.resident[op];
    for (int d = 0; d < a.devices; ++d) {
      allowed[size_t(u) * a.devices + d] &= a.allowed[size_t(op) * a.devices + d];
      if (a.turn[op]) seconds[size_t(u) * a.devices + d] += a.compute[size_t(op) * a.devices + d];
    }
  }
}

Walk::Walk(const Layout& a, const Blocks& blocks, EventKernel& event, const WalkPlan& start,
           const WalkSettings& settings, const Likely& likely, uint64_t seed)
    : a_(a), b_(blocks), event_(event), s_(settings), likely_(likely), plan_(start), loads_(a, settings.overlap),
      scout_(a, settings.capacity), random_(seed) {
  smallest_ = std::numeric_limits<double>::infinity();
  for (int d = 0; d < a.devices; ++d) {
    if (s_.capacity[d] > 0) smallest_ = std::min(smallest_, static_cast<double>(s_.capacity[d]));
  }
  if (std::isinf(smallest_)) smallest_ = 1.0;
  if (!plan_.priority.empty()) number();
  reset();
  effective_ = plan_.room;
  if (!likely_.empty()) doubt();
}

Samples Walk::samples(int count) {
  Samples out;
  const Score now = score();
  peak_ = event_.peak();
  for (int i = 0; i < count; ++i) {
    old_units_.clear(), old_priorities_.clear(), old_rooms_.clear();
    const int level = drawn(s_.level_share);
    const int kinds[] = {kMove, kMove, kStretch};
    Candidate one;
    candidate(one, kinds[random_.below(3)], level);
    if (one.ops.empty()) continue;
    out.features.resize(out.features.size() + Scout::kFeatures);
    look(one, out.features.data() + out.features.size() - Scout::kFeatures);
    take(one);
    out.change.push_back(score().cost / now.cost - 1.0);
    take_back();
  }
  return out;
}

Walked Walk::run() {
  Score current = score(), best = current;
  peak_ = event_.peak();
  Walked out;
  out.best = judged();
  const double cooling = s_.hot > 0 ? std::log(s_.cold / s_.hot) : 0.0;
  int64_t accepted = 0;
  for (int64_t n = 1; n < s_.evaluations; ++n) {
    const double temperature = s_.hot > 0 ? s_.hot * std::exp(cooling * double(n) / double(s_.evaluations)) : 0.0;
    old_units_.clear(), old_priorities_.clear(), old_rooms_.clear();
    limit_ = current.cost * (1.0 + temperature);
    propose();
    n += std::exchange(looked_, 0);  // a look at the whole plan is as dear as judging one
    const double limit = current.cost * (1.0 - temperature * std::log(1.0 - random_.unit()));
    if (old_units_.empty() && old_priorities_.empty() && old_rooms_.empty()) continue;
    if (floor() > limit) {
      take_back();
      continue;
    }
    const Score found = score();
    if (!(found.cost <= limit)) {
      take_back();
      continue;
    }
    current = found;
    ++changed_;
    if (!s_.period) peak_ = event_.peak();
    if (std::tie(found.overflow, found.value) < std::tie(best.overflow, best.value)) {
      best = found;
      out.best = judged();
    }
    if (++accepted % 100'000 == 0) reset();
  }
  out.last = plan_;
  out.overflow = best.overflow;
  out.value = best.value;
  return out;
}

// Priorities become places in the plan's order, so that they never contradict the graph.
void Walk::number() {
  PlanOrder plan_order;
  std::vector<int32_t> order;
  plan_order.compute(a_, plan_.priority.data(), order);
  std::fill(plan_.priority.begin(), plan_.priority.end(), 0.0);
  for (size_t at = 0; at < order.size(); ++at) plan_.priority[order[at]] = static_cast<double>(at);
}

void Walk::reset() {
  busy_.assign(a_.devices, 0.0);
  resident_.assign(a_.devices, 0);
  for (size_t u = 0; u < b_.resident.size(); ++u) {
    const int d = plan_.device[b_.ops[b_.first_op[u]]];
    busy_[d] += b_.seconds[u * a_.devices + d];
    resident_[d] += b_.resident[u];
  }
  if (s_.period) loads_.reset(plan_.device);
}

// What no plan with these loads and resident bytes can cost less than.
double Walk::floor() const {
  double busiest = 0.0;
  int64_t over = 0;
  for (int d = 0; d < a_.devices; ++d) {
    busiest = std::max(busiest, busy_[d]);
    over += std::max<int64_t>(0, resident_[d] - s_.capacity[d]);
  }
  return busiest * (1 - 1e-9) * (1.0 + s_.penalty * double(over) / smallest_);
}

Score Walk::score() {
  Score out;
  double smooth = 0.0;
  if (s_.period) {
    for (int d = 0; d < a_.devices; ++d) {
      out.overflow += std::max<int64_t>(0, resident_[d] - s_.capacity[d] + s_.kept_back[d]);
    }
    out.value = loads_.largest();
    smooth = loads_.power_mean(s_.doublings);
  } else {
    make_room();
    const PlanView view{plan_.device.data(), plan_.priority.empty() ? nullptr : plan_.priority.data(),
                        effective_.empty() ? nullptr : effective_.data()};
    out.value = smooth = event_.run(view, s_.in_order, nullptr);
    for (int d = 0; d < a_.devices; ++d) {
      out.overflow += std::max<int64_t>(0, event_.peak()[d] - s_.capacity[d]);
    }
  }
  out.cost = smooth * (1.0 + s_.penalty * double(out.overflow) / smallest_);
  return out;
}

// Staging rooms as judged: at least what the largest op needs, so that no plan is malformed, and
// none where nothing is streamed.
void Walk::make_room() {
  if (plan_.room.empty()) return;
  effective_.assign(a_.devices, -1);
  need_.assign(a_.devices, 0);
  for (const int32_t op : a_.runnable) {
    const int place = plan_.device[op];
    int64_t need = 0;
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
      const int source = a_.producer[a_.inputs[i]];
      if (a_.weight[source] && plan_.device[source] != place) need += a_.sizes[a_.inputs[i]];
    }
    need_[place] = std::max(need_[place], need);
  }
  for (int d = 0; d < a_.devices; ++d) {
    if (plan_.room[d] >= 0 && need_[d] > 0) effective_[d] = std::max(plan_.room[d], need_[d]);
  }
}

WalkPlan Walk::judged() const {
  WalkPlan out = plan_;
  out.room = effective_;
  return out;
}

void Walk::take_back() {
  for (auto it = old_units_.rbegin(); it != old_units_.rend(); ++it) put(it->first, unit_device(it->first), it->second);
  for (auto it = old_priorities_.rbegin(); it != old_priorities_.rend(); ++it) plan_.priority[it->first] = it->second;
  for (auto it = old_rooms_.rbegin(); it != old_rooms_.rend(); ++it) plan_.room[it->first] = it->second;
}

Walked walk(const Layout& a, const Blocks& blocks, EventKernel& event, const WalkPlan& start,
            const WalkSettings& settings, const Likely& likely, uint64_t seed) {
  return Walk(a, blocks, event, start, settings, likely, seed).run();
}

Samples sample_moves(const Layout& a, const Blocks& blocks, EventKernel& event, const WalkPlan& start,
                     const WalkSettings& settings, int count, uint64_t seed) {
  const Likely nothing;
  return Walk(a, blocks, event, start, settings, nothing, seed).samples(count);
}

}  // namespace placewright
