// The moves that a walk draws: as they come, as a proposer likes them, or as a scout does.
#include <algorithm>
#include <cmath>
#include <utility>

#include "walking.hpp"

namespace placewright {

int Walk::drawn(const std::vector<double>& shares) {
  double total = 0.0;
  for (const double share : shares) total += share;
  double at = random_.unit() * total;
  for (size_t i = 0; i < shares.size(); ++i) {
    if ((at -= shares[i]) < 0) return static_cast<int>(i);
  }
  return static_cast<int>(shares.size()) - 1;
}

// A device worth trying for a block: often that of an op it reads from or that reads it.
int Walk::device_for(int block) {
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
void Walk::doubt() {
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
bool Walk::move_as_likely(int level, bool stores) {
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

void Walk::set_block(int block, int device, bool work, bool stores) {
  for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
    const int unit = b_.units[i];
    if (b_.stores[unit] ? stores : work) set_unit(unit, device);
  }
}

// Between the last op it reads from and the first that reads it: where this op's priority may be
// without the plan's order having to put it right.
std::pair<double, double> Walk::slack(int op) const {
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
void Walk::reorder(int op) {
  const auto [low, high] = slack(op);
  if (!(low < high)) return;
  double to = low + (high - low) * random_.unit();
  if (random_.below(2)) to = std::clamp(plan_.priority[op] + (random_.unit() - 0.5) * 4 * random_.few(), low, high);
  set_priority(op, to);
}

void Walk::reorder_few(int block) {
  if (plan_.priority.empty() || b_.first[block + 1] - b_.first[block] > 4) return;
  for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
    for (int j = b_.first_op[b_.units[i]]; j < b_.first_op[b_.units[i] + 1]; ++j) {
      if (a_.turn[b_.ops[j]]) reorder(b_.ops[j]);
    }
  }
}

// Two blocks change places; of one shape they do so unit by unit, and one may just take after the other.
void Walk::swap(int one, int two) {
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

void Walk::add(Candidate& one, int block, bool stores) const {
  for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
    const int unit = b_.units[i];
    if ((b_.stores[unit] && !stores) || unit_device(unit) == one.to) continue;
    if (!b_.allowed[size_t(unit) * a_.devices + one.to]) continue;
    one.units.push_back(unit);
    for (int j = b_.first_op[unit]; j < b_.first_op[unit + 1]; ++j) one.ops.push_back(b_.ops[j]);
  }
}

// A move as it is drawn without a scout.
void Walk::candidate(Candidate& one, int change, int level) {
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
double Walk::floor_after(const Candidate& one) {
  for (const int32_t unit : one.units) shift(unit, unit_device(unit), one.to);
  const double least = floor();
  for (const int32_t unit : one.units) shift(unit, one.to, unit_device(unit));
  return least;
}

void Walk::look(const Candidate& one, float* features) {
  if (record_.start.empty() || changed_ >= kStale) {
    const PlanView view{plan_.device.data(), plan_.priority.empty() ? nullptr : plan_.priority.data(),
                        effective_.empty() ? nullptr : effective_.data()};
    const double step = event_.run(view, s_.in_order, &record_);
    scout_.see(plan_.device.data(), record_, step);
    changed_ = 0, ++looked_;
  }
  scout_.features(plan_.device.data(), one.ops, block_device(one.block), one.to, busy_, peak_, features);
}

void Walk::take(const Candidate& one) {
  for (const int32_t unit : one.units) set_unit(unit, one.to);
}

// Of several moves, one that the scout likes.
void Walk::propose_liked(int change) {
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

void Walk::propose() {
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

}  // namespace placewright
