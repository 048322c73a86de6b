#include "walk.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "loads.hpp"
#include "random.hpp"

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

namespace {

struct Score {
  double cost = 0.0;  // what the walk goes by
  int64_t overflow = 0;
  double value = 0.0;
};

class Walk {
 public:
  Walk(const Layout& a, const Blocks& blocks, EventKernel& event, const WalkPlan& start,
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

  Samples samples(int count) {
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

  Walked run() {
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

 private:
  // Priorities become places in the plan's order, so that they never contradict the graph.
  void number() {
    PlanOrder plan_order;
    std::vector<int32_t> order;
    plan_order.compute(a_, plan_.priority.data(), order);
    std::fill(plan_.priority.begin(), plan_.priority.end(), 0.0);
    for (size_t at = 0; at < order.size(); ++at) plan_.priority[order[at]] = static_cast<double>(at);
  }

  void reset() {
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
  double floor() const {
    double busiest = 0.0;
    int64_t over = 0;
    for (int d = 0; d < a_.devices; ++d) {
      busiest = std::max(busiest, busy_[d]);
      over += std::max<int64_t>(0, resident_[d] - s_.capacity[d]);
    }
    return busiest * (1 - 1e-9) * (1.0 + s_.penalty * double(over) / smallest_);
  }

  Score score() {
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
  void make_room() {
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

  WalkPlan judged() const {
    WalkPlan out = plan_;
    out.room = effective_;
    return out;
  }

  int unit_device(int unit) const { return plan_.device[b_.ops[b_.first_op[unit]]]; }

  void set_unit(int unit, int device) {
    const int from = unit_device(unit);
    if (from == device || !b_.allowed[size_t(unit) * a_.devices + device]) return;
    old_units_.push_back({unit, from});
    put(unit, from, device);
  }

  void put(int unit, int from, int to) {
    shift(unit, from, to);
    for (int i = b_.first_op[unit]; i < b_.first_op[unit + 1]; ++i) {
      plan_.device[b_.ops[i]] = to;
      if (s_.period) loads_.move(b_.ops[i], to);
    }
  }

  void set_priority(int op, double priority) {
    old_priorities_.push_back({op, plan_.priority[op]});
    plan_.priority[op] = priority;
  }

  void take_back() {
    for (auto it = old_units_.rbegin(); it != old_units_.rend(); ++it) put(it->first, unit_device(it->first), it->second);
    for (auto it = old_priorities_.rbegin(); it != old_priorities_.rend(); ++it) plan_.priority[it->first] = it->second;
    for (auto it = old_rooms_.rbegin(); it != old_rooms_.rend(); ++it) plan_.room[it->first] = it->second;
  }

  int drawn(const std::vector<double>& shares) {
    double total = 0.0;
    for (const double share : shares) total += share;
    double at = random_.unit() * total;
    for (size_t i = 0; i < shares.size(); ++i) {
      if ((at -= shares[i]) < 0) return static_cast<int>(i);
    }
    return static_cast<int>(shares.size()) - 1;
  }

  // A device worth trying for a block: often that of an op it reads from or that reads it.
  int device_for(int block) {
    if (random_.below(3)) {
      const int unit = b_.units[b_.first[block] + random_.below(b_.first[block + 1] - b_.first[block])];
      const int op = b_.ops[b_.first_op[unit] + random_.below(b_.first_op[unit + 1] - b_.first_op[unit])];
      const int inputs = a_.first_input[op + 1] - a_.first_input[op];
      if (inputs && random_.below(2)) {
        const int tensor = a_.inputs[a_.first_input[op] + random_.below(inputs)];
        return plan_.device[a_.producer[tensor]];
      }
      const int begin = a_.first_reader[a_.first_tensor[op]], end = a_.first_reader[a_.first_tensor[op + 1]];
      if (end > begin) return plan_.device[a_.readers[begin + random_.below(end - begin)]];
    }
    return random_.below(a_.devices);
  }

  // How likely each device is for each block, the mean over its units; and how sure the proposer is
  // that the block should be elsewhere, summed up within each level, to draw blocks by.
  void doubt() {
    const size_t blocks = b_.first.size() - 1, devices = a_.devices;
    rows_.assign(blocks * devices, 0.0);
    doubts_.assign(blocks, 0.0);
    for (size_t level = 0; level + 1 < b_.level.size(); ++level) {
      double sum = 0.0;
      for (int block = b_.level[level]; block < b_.level[level + 1]; ++block) {
        int64_t count = 0;
        for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
          const size_t unit = b_.units[i];
          if (b_.stores[unit]) continue;
          ++count;
          for (size_t d = 0; d < devices; ++d) {
            const size_t at = unit * devices + d;
            if (b_.allowed[at]) rows_[block * devices + d] += likely_[at];
          }
        }
        const int here = block_device(block);
        for (size_t d = 0; d < devices; ++d) {
          double& row = rows_[block * devices + d];
          if (count) row /= double(count);
          if (int(d) != here) sum += row;
        }
        doubts_[block] = sum;
      }
    }
  }

  // A block that the proposer wants elsewhere, to where it wants it; false if it wants none moved.
  bool move_as_likely(int level, bool stores) {
    const auto begin = doubts_.begin() + b_.level[level], end = doubts_.begin() + b_.level[level + 1];
    if (begin == end || !(*(end - 1) > 0.0)) return false;
    const auto found = std::upper_bound(begin, end, random_.unit() * *(end - 1));
    const int block = static_cast<int>(std::min(found, end - 1) - doubts_.begin()), from = block_device(block);
    const double* row = rows_.data() + size_t(block) * a_.devices;
    double total = 0.0;
    for (int d = 0; d < a_.devices; ++d) total += d == from ? 0.0 : row[d];
    double at = random_.unit() * total;
    int to = from;
    for (int d = 0; d < a_.devices; ++d) {
      if (d == from || !(row[d] > 0.0)) continue;
      to = d;
      if ((at -= row[d]) < 0.0) break;
    }
    set_block(block, to, true, stores);
    if (random_.below(2)) reorder_few(block);
    return true;
  }

  void set_block(int block, int device, bool work, bool stores) {
    for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
      const int unit = b_.units[i];
      if (b_.stores[unit] ? stores : work) set_unit(unit, device);
    }
  }

  int block_device(int block) const {
    for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
      if (!b_.stores[b_.units[i]]) return unit_device(b_.units[i]);
    }
    return unit_device(b_.units[b_.first[block]]);
  }

  // Between the last op it reads from and the first that reads it: where this op's priority may be
  // without the plan's order having to put it right.
  std::pair<double, double> slack(int op) const {
    double low = -1.0, high = static_cast<double>(a_.ops);
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
      const int source = a_.producer[a_.inputs[i]];
      if (a_.turn[source]) low = std::max(low, plan_.priority[source]);
    }
    const int begin = a_.first_reader[a_.first_tensor[op]], end = a_.first_reader[a_.first_tensor[op + 1]];
    for (int r = begin; r < end; ++r) high = std::min(high, plan_.priority[a_.readers[r]]);
    return {low, std::max(low, high)};
  }

  // An op anywhere between what it reads and what reads it, or a little earlier or later.
  void reorder(int op) {
    const auto [low, high] = slack(op);
    if (!(low < high)) return;
    double to = low + (high - low) * random_.unit();
    if (random_.below(2)) to = std::clamp(plan_.priority[op] + (random_.unit() - 0.5) * 4 * random_.few(), low, high);
    set_priority(op, to);
  }

  void reorder_few(int block) {
    if (plan_.priority.empty() || b_.first[block + 1] - b_.first[block] > 4) return;
    for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
      for (int j = b_.first_op[b_.units[i]]; j < b_.first_op[b_.units[i] + 1]; ++j) {
        if (a_.turn[b_.ops[j]]) reorder(b_.ops[j]);
      }
    }
  }

  // Two blocks change places; of one shape they do so unit by unit, and one may just take after the other.
  void swap(int one, int two) {
    const int size = b_.first[one + 1] - b_.first[one];
    if (size != b_.first[two + 1] - b_.first[two]) {
      const int here = block_device(one), there = block_device(two);
      set_block(one, there, true, true);
      set_block(two, here, true, true);
      return;
    }
    const bool both = random_.below(4) != 0;
    for (int i = 0; i < size; ++i) {
      const int x = b_.units[b_.first[one] + i], y = b_.units[b_.first[two] + i];
      const int here = unit_device(x), there = unit_device(y);
      set_unit(x, there);
      if (both) set_unit(y, here);
    }
  }

  // Units that would move to one device, and their ops.
  struct Candidate {
    int block = 0, to = 0;
    bool few = false;  // whether it is one block
    std::vector<int32_t> units, ops;
  };

  void add(Candidate& one, int block, bool stores) const {
    for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
      const int unit = b_.units[i];
      if ((b_.stores[unit] && !stores) || unit_device(unit) == one.to) continue;
      if (!b_.allowed[size_t(unit) * a_.devices + one.to]) continue;
      one.units.push_back(unit);
      for (int j = b_.first_op[unit]; j < b_.first_op[unit + 1]; ++j) one.ops.push_back(b_.ops[j]);
    }
  }

  // A move as it is drawn without a scout.
  void candidate(Candidate& one, int change, int level) {
    one.few = false, one.units.clear(), one.ops.clear();
    const int first = b_.level[level], count = b_.level[level + 1] - first;
    one.block = first + random_.below(count);
    if (change == kStretch) {
      const int length = random_.few() + random_.few(), up = random_.below(2);
      const int edge = up ? one.block - 1 : one.block + 1;
      if (edge < first || edge >= first + count) return;
      one.to = block_device(edge);
      for (int i = 0, at = one.block; i < length && at >= first && at < first + count; ++i, at += up ? 1 : -1) {
        add(one, at, true);
      }
      return;
    }
    one.few = true;
    one.to = device_for(one.block);
    add(one, one.block, change == kMove);
  }

  // What no plan can cost less than once this move is made.
  double floor_after(const Candidate& one) {
    for (const int32_t unit : one.units) shift(unit, unit_device(unit), one.to);
    const double least = floor();
    for (const int32_t unit : one.units) shift(unit, one.to, unit_device(unit));
    return least;
  }

  void shift(int unit, int from, int to) {
    busy_[from] -= b_.seconds[size_t(unit) * a_.devices + from];
    busy_[to] += b_.seconds[size_t(unit) * a_.devices + to];
    resident_[from] -= b_.resident[unit];
    resident_[to] += b_.resident[unit];
  }

  void look(const Candidate& one, float* features) {
    if (record_.start.empty() || changed_ >= kStale) {
      const PlanView view{plan_.device.data(), plan_.priority.empty() ? nullptr : plan_.priority.data(),
                          effective_.empty() ? nullptr : effective_.data()};
      const double step = event_.run(view, s_.in_order, &record_);
      scout_.see(plan_.device.data(), record_, step);
      changed_ = 0, ++looked_;
    }
    scout_.features(plan_.device.data(), one.ops, block_device(one.block), one.to, busy_, peak_, features);
  }

  void take(const Candidate& one) {
    for (const int32_t unit : one.units) set_unit(unit, one.to);
  }

  // Of several moves, one that the scout likes.
  void propose_liked(int change) {
    float features[Scout::kFeatures];
    Candidate one, liked;
    double total = 0.0;
    for (int i = 0; i < s_.scout.candidates; ++i) {
      candidate(one, change, drawn(s_.level_share));
      if (one.ops.empty() || floor_after(one) > limit_) continue;
      look(one, features);
      const double chance = scout_.chance(s_.scout, features);
      const double weight = s_.scout.blind ? 1.0 : std::pow(chance, s_.scout.sharpness);
      total += weight;
      if (random_.unit() * total < weight) std::swap(liked, one);
    }
    take(liked);
    if (liked.few && random_.below(2)) reorder_few(liked.block);
  }

  void propose() {
    const int level = drawn(s_.level_share), first = b_.level[level], count = b_.level[level + 1] - first;
    const int block = first + random_.below(count);
    const int change = drawn(s_.change_share);
    if (!s_.scout.weights.empty() && !s_.period && (change == kMove || change == kMoveWork || change == kStretch)) {
      propose_liked(change);
      return;
    }
    if ((change == kMove || change == kMoveWork) && !likely_.empty() && random_.unit() < s_.guided &&
        move_as_likely(level, change == kMove)) {
      return;
    }
    switch (change) {
      case kMove:
        set_block(block, device_for(block), true, true);
        if (random_.below(2)) reorder_few(block);  // its old place in the order may not suit there
        break;
      case kMoveWork: set_block(block, device_for(block), true, false); break;
      case kMoveStores:
        set_block(block, random_.below(2) ? block_device(block) : random_.below(a_.devices), false, true);
        break;
      case kSwap: swap(block, first + random_.below(count)); break;
      case kStretch: {  // as far as the device goes, or a few blocks: a shifted boundary
        const int length = random_.few() + random_.few(), up = random_.below(2);
        const int edge = up ? block - 1 : block + 1;
        if (edge < first || edge >= first + count) break;
        const int device = block_device(edge);
        for (int i = 0, at = block; i < length && at >= first && at < first + count; ++i, at += up ? 1 : -1) {
          set_block(at, device, true, true);
        }
        break;
      }
      case kReorder:
        if (plan_.priority.empty() || a_.runnable.empty()) break;
        reorder(a_.runnable[random_.below(static_cast<int>(a_.runnable.size()))]);
        break;
      case kReorderBlock: {
        if (plan_.priority.empty()) break;
        // As far up or down as its slack lets each op go: the block as a whole goes early or late.
        const double share = random_.unit();
        const bool up = random_.below(2);
        const int begin = b_.first[block], end = b_.first[block + 1];
        for (int i = up ? end - 1 : begin; up ? i >= begin : i < end; i += up ? -1 : 1) {
          const int unit = b_.units[i], first_op = b_.first_op[unit], last_op = b_.first_op[unit + 1] - 1;
          for (int j = up ? last_op : first_op; up ? j >= first_op : j <= last_op; j += up ? -1 : 1) {
            const int op = b_.ops[j];
            if (!a_.turn[op]) continue;
            const auto [low, high] = slack(op);
            const double at = plan_.priority[op];
            set_priority(op, up ? at + share * (high - at) : at - share * (at - low));
          }
        }
        break;
      }
      case kStage: {
        if (plan_.room.empty()) break;
        const int place = random_.below(a_.devices);
        old_rooms_.push_back({place, plan_.room[place]});
        if (plan_.room[place] < 0) {
          plan_.room[place] = 0;
        } else if (random_.below(8) == 0) {
          plan_.room[place] = -1;
        } else if (random_.below(2)) {  // so many times what the largest op needs
          plan_.room[place] = need_[place] * random_.few();
        } else {
          const double base = double(std::max(plan_.room[place], need_[place]));
          plan_.room[place] = std::min(int64_t(base * std::exp2(2.0 * random_.unit() - 1.0)), 8 * need_[place]);
        }
        break;
      }
      default: break;
    }
  }

  const Layout& a_;
  const Blocks& b_;
  EventKernel& event_;
  const WalkSettings& s_;
  const Likely& likely_;
  std::vector<double> rows_, doubts_;  // blocks × devices; blocks
  WalkPlan plan_;
  Loads loads_;
  static constexpr int kStale = 12;  // changes after which the scout looks at the plan anew
  Scout scout_;
  Record record_;
  std::vector<int64_t> peak_;
  int changed_ = 0, looked_ = 0;
  double limit_ = 0.0;  // about what a plan may cost to be kept
  Random random_;
  double smallest_ = 1.0;
  std::vector<double> busy_;
  std::vector<int64_t> resident_, effective_, need_;
  std::vector<std::pair<int32_t, int32_t>> old_units_;
  std::vector<std::pair<int32_t, double>> old_priorities_;
  std::vector<std::pair<int32_t, int64_t>> old_rooms_;
};

}  // namespace

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
