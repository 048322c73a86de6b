// The moves that annealing samples: at random, by a proposer's probabilities, or by a scout.
#include <algorithm>
#include <cmath>
#include <utility>

#include "annealing/state.hpp"

namespace placewright {

int AnnealingState::sample_index(const std::vector<double>& shares) {
  double total = 0.0;
  for (const double share : shares) total += share;
  double at = random_.uniform() * total;
  for (size_t i = 0; i < shares.size(); ++i) {
    if ((at -= shares[i]) < 0) return static_cast<int>(i);
  }
  return static_cast<int>(shares.size()) - 1;
}

// A device worth trying for a block: often that of an op it reads from or that reads it.
int AnnealingState::sample_device(int block) {
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
void AnnealingState::down_weight() {
  const size_t blocks = b_.first.size() - 1, devices = a_.devices;
  block_probs_.assign(blocks * devices, 0.0);
  move_weight_sums_.assign(blocks, 0.0);
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
          if (b_.allowed[at]) block_probs_[block * devices + d] += device_probs_[at];
        }
      }
      const int here = block_device(block);
      for (size_t d = 0; d < devices; ++d) {
        double& row = block_probs_[block * devices + d];
        if (count) row /= double(count);
        if (int(d) != here) sum += row;
      }
      move_weight_sums_[block] = sum;
    }
  }
}

// Moves a block by the proposer's probabilities; false if they move none.
bool AnnealingState::move_by_probs(int level, bool stores) {
  const auto begin = move_weight_sums_.begin() + b_.level[level], end = move_weight_sums_.begin() + b_.level[level + 1];
  if (begin == end || !(*(end - 1) > 0.0)) return false;
  const auto position = std::upper_bound(begin, end, random_.uniform() * *(end - 1));
  const int block = static_cast<int>(std::min(position, end - 1) - move_weight_sums_.begin()),
            from = block_device(block);
  const double* row = block_probs_.data() + size_t(block) * a_.devices;
  double total = 0.0;
  for (int d = 0; d < a_.devices; ++d) total += d == from ? 0.0 : row[d];
  double at = random_.uniform() * total;
  int to = from;
  for (int d = 0; d < a_.devices; ++d) {
    if (d == from || !(row[d] > 0.0)) continue;
    to = d;
    if ((at -= row[d]) < 0.0) break;
  }
  set_block(block, to, true, stores);
  if (random_.below(2)) reorder_block_ops(block);
  return true;
}

void AnnealingState::set_block(int block, int device, bool work, bool stores) {
  for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
    const int unit = b_.units[i];
    if (b_.stores[unit] ? stores : work) set_unit(unit, device);
  }
}

// Between the last op it reads from and the first that reads it: where this op's priority may be
// without the plan's order having to put it right.
std::pair<double, double> AnnealingState::slack(int op) const {
  double low = -1.0, high = static_cast<double>(a_.ops);
  for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
    const int source = a_.producer[a_.inputs[i]];
    if (a_.scheduled[source]) low = std::max(low, plan_.priority[source]);
  }
  const int begin = a_.first_reader[a_.first_tensor[op]], end = a_.first_reader[a_.first_tensor[op + 1]];
  for (int r = begin; r < end; ++r) high = std::min(high, plan_.priority[a_.readers[r]]);
  return {low, std::max(low, high)};
}

// Moves an op in the order: anywhere between its producers and its readers, or a little earlier or later.
void AnnealingState::reorder(int op) {
  const auto [low, high] = slack(op);
  if (!(low < high)) return;
  double to = low + (high - low) * random_.uniform();
  if (random_.below(2))
    to = std::clamp(plan_.priority[op] + (random_.uniform() - 0.5) * 4 * random_.geometric(), low, high);
  set_priority(op, to);
}

void AnnealingState::reorder_block_ops(int block) {
  if (plan_.priority.empty() || b_.first[block + 1] - b_.first[block] > 4) return;
  for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
    for (int j = b_.first_op[b_.units[i]]; j < b_.first_op[b_.units[i] + 1]; ++j) {
      if (a_.scheduled[b_.ops[j]]) reorder(b_.ops[j]);
    }
  }
}

// Two blocks exchange devices, unit by unit if they are of one shape; or one block copies the other's devices.
void AnnealingState::swap(int one, int two) {
  const int size = b_.first[one + 1] - b_.first[one];
  if (size != b_.first[two + 1] - b_.first[two]) {
    const int here = block_device(one), there = block_device(two);
    set_block(one, there, true, true);
    set_block(two, here, true, true);
    return;
  }
  const bool exchange = random_.below(4) != 0;
  for (int i = 0; i < size; ++i) {
    const int x = b_.units[b_.first[one] + i], y = b_.units[b_.first[two] + i];
    const int here = unit_device(x), there = unit_device(y);
    set_unit(x, there);
    if (exchange) set_unit(y, here);
  }
}

void AnnealingState::add_block(Candidate& move, int block, bool stores) const {
  for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
    const int unit = b_.units[i];
    if ((b_.stores[unit] && !stores) || unit_device(unit) == move.to) continue;
    if (!b_.allowed[size_t(unit) * a_.devices + move.to]) continue;
    move.units.push_back(unit);
    for (int j = b_.first_op[unit]; j < b_.first_op[unit + 1]; ++j) move.ops.push_back(b_.ops[j]);
  }
}

// Samples a move without a scout.
void AnnealingState::sample_candidate(Candidate& move, int change, int level) {
  move.single_block = false, move.units.clear(), move.ops.clear();
  const int first = b_.level[level], count = b_.level[level + 1] - first;
  move.block = first + random_.below(count);
  if (change == kMoveRun) {
    const int length = random_.geometric() + random_.geometric(), up = random_.below(2);
    const int boundary = up ? move.block - 1 : move.block + 1;
    if (boundary < first || boundary >= first + count) return;
    move.to = block_device(boundary);
    for (int i = 0, at = move.block; i < length && at >= first && at < first + count; ++i, at += up ? 1 : -1) {
      add_block(move, at, true);
    }
    return;
  }
  move.single_block = true;
  move.to = sample_device(move.block);
  add_block(move, move.block, change == kMove);
}

// A lower bound on the cost of the plan after this move.
double AnnealingState::lower_bound_after(const Candidate& move) {
  for (const int32_t unit : move.units) shift_loads(unit, unit_device(unit), move.to);
  const double bound = cost_lower_bound();
  for (const int32_t unit : move.units) shift_loads(unit, move.to, unit_device(unit));
  return bound;
}

void AnnealingState::extract_features(const Candidate& move, float* features) {
  if (record_.start.empty() || moves_since_record_ >= kStale) {
    const PlanView view{plan_.device.data(), plan_.priority.empty() ? nullptr : plan_.priority.data(),
                        judged_staging_.empty() ? nullptr : judged_staging_.data()};
    const double step = event_.run(view, s_.in_order, &record_);
    scout_.set_timeline(plan_.device.data(), record_, step);
    moves_since_record_ = 0, ++extra_evaluations_;
  }
  scout_.features(plan_.device.data(), move.ops, block_device(move.block), move.to, busy_, peak_, features);
}

void AnnealingState::apply_move(const Candidate& move) {
  for (const int32_t unit : move.units) set_unit(unit, move.to);
}

// Samples one of several moves by the scout's gain probabilities.
void AnnealingState::propose_scouted(int change) {
  float features[Scout::kFeatures];
  Candidate move, chosen;
  double total = 0.0;
  for (int i = 0; i < s_.scout.candidates; ++i) {
    sample_candidate(move, change, sample_index(s_.level_share));
    if (move.ops.empty() || lower_bound_after(move) > limit_) continue;
    extract_features(move, features);
    const double chance = scout_.gain_probability(s_.scout, features);
    const double weight = s_.scout.blind ? 1.0 : std::pow(chance, s_.scout.sharpness);
    total += weight;
    if (random_.uniform() * total < weight) std::swap(chosen, move);
  }
  apply_move(chosen);
  if (chosen.single_block && random_.below(2)) reorder_block_ops(chosen.block);
}

void AnnealingState::propose() {
  const int level = sample_index(s_.level_share), first = b_.level[level], count = b_.level[level + 1] - first;
  const int block = first + random_.below(count);
  const int change = sample_index(s_.move_share);
  if (!s_.scout.weights.empty() && !s_.period && (change == kMove || change == kMoveWork || change == kMoveRun)) {
    propose_scouted(change);
    return;
  }
  if ((change == kMove || change == kMoveWork) && !device_probs_.empty() && random_.uniform() < s_.guided_share &&
      move_by_probs(level, change == kMove)) {
    return;
  }
  switch (change) {
    case kMove:
      set_block(block, sample_device(block), true, true);
      if (random_.below(2)) reorder_block_ops(block);  // its old position in the order may not suit that device
      break;
    case kMoveWork: set_block(block, sample_device(block), true, false); break;
    case kMoveWeights:
      set_block(block, random_.below(2) ? block_device(block) : random_.below(a_.devices), false, true);
      break;
    case kSwap: swap(block, first + random_.below(count)); break;
    case kMoveRun: {  // to the end of the run on that device, or a few blocks: a shifted boundary
      const int length = random_.geometric() + random_.geometric(), up = random_.below(2);
      const int edge = up ? block - 1 : block + 1;
      if (edge < first || edge >= first + count) break;
      const int device = block_device(edge);
      for (int i = 0, at = block; i < length && at >= first && at < first + count; ++i, at += up ? 1 : -1) {
        set_block(at, device, true, true);
      }
      break;
    }
    case kReorder:
      if (plan_.priority.empty() || a_.scheduled_ops.empty()) break;
      reorder(a_.scheduled_ops[random_.below(static_cast<int>(a_.scheduled_ops.size()))]);
      break;
    case kReorderBlock: {
      if (plan_.priority.empty()) break;
      // Each op as early or as late as its slack allows: the whole block moves.
      const double share = random_.uniform();
      const bool up = random_.below(2);
      const int begin = b_.first[block], end = b_.first[block + 1];
      for (int i = up ? end - 1 : begin; up ? i >= begin : i < end; i += up ? -1 : 1) {
        const int unit = b_.units[i], first_op = b_.first_op[unit], last_op = b_.first_op[unit + 1] - 1;
        for (int j = up ? last_op : first_op; up ? j >= first_op : j <= last_op; j += up ? -1 : 1) {
          const int op = b_.ops[j];
          if (!a_.scheduled[op]) continue;
          const auto [low, high] = slack(op);
          const double at = plan_.priority[op];
          set_priority(op, up ? at + share * (high - at) : at - share * (at - low));
        }
      }
      break;
    }
    case kStage: {
      if (plan_.staging.empty()) break;
      const int place = random_.below(a_.devices);
      old_staging_.push_back({place, plan_.staging[place]});
      if (plan_.staging[place] < 0) {
        plan_.staging[place] = 0;
      } else if (random_.below(8) == 0) {
        plan_.staging[place] = -1;
      } else if (random_.below(2)) {  // a multiple of what the largest op needs
        plan_.staging[place] = min_staging_[place] * random_.geometric();
      } else {
        const double base = double(std::max(plan_.staging[place], min_staging_[place]));
        plan_.staging[place] =
            std::min(int64_t(base * std::exp2(2.0 * random_.uniform() - 1.0)), 8 * min_staging_[place]);
      }
      break;
    }
    default: break;
  }
}

}  // namespace placewright
