// The state of an annealing chain: its current plan, and the moves that it samples.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "simulator/event_kernel.hpp"
#include "simulator/loads.hpp"
#include "random.hpp"
#include "annealing/scout.hpp"
#include "annealing/annealing.hpp"

namespace placewright {

struct Score {
  double cost = 0.0;  // what annealing minimises
  int64_t overflow = 0;
  double value = 0.0;
};

class AnnealingState {
 public:
  AnnealingState(const ProblemLayout& a, const MoveBlocks& blocks, EventKernel& event, const OwnedPlan& start,
       const AnnealingSettings& settings, const DeviceProbs& device_probs, uint64_t seed);

  MoveSamples samples(int count);
  AnnealingResult run();

 private:
  void number_priorities();
  void reset();
  double cost_lower_bound() const;
  double cost(double value, int64_t overflow) const;
  // Whether a plan is scored by its loads and resident bytes, which are kept up to date move by move.
  // They know no staging buffers.
  bool uses_loads() const { return s_.period && !s_.simulate_memory && plan_.staging.empty(); }
  Score score();
  void raise_staging();
  OwnedPlan judged_plan() const;

  int unit_device(int unit) const { return plan_.device[b_.ops[b_.first_op[unit]]]; }

  void set_unit(int unit, int device) {
    const int from = unit_device(unit);
    if (from == device || !b_.allowed[size_t(unit) * a_.devices + device]) return;
    old_units_.push_back({unit, from});
    place_unit(unit, from, device);
  }

  void place_unit(int unit, int from, int to) {
    shift_loads(unit, from, to);
    for (int i = b_.first_op[unit]; i < b_.first_op[unit + 1]; ++i) {
      plan_.device[b_.ops[i]] = to;
      if (uses_loads()) loads_.move(b_.ops[i], to);
    }
  }

  void set_priority(int op, double priority) {
    old_priorities_.push_back({op, plan_.priority[op]});
    plan_.priority[op] = priority;
  }

  void undo();
  int sample_index(const std::vector<double>& shares);
  int sample_device(int block);
  void down_weight();
  bool move_by_probs(int level, bool stores);
  void set_block(int block, int device, bool work, bool stores);

  int block_device(int block) const {
    for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
      if (!b_.stores[b_.units[i]]) return unit_device(b_.units[i]);
    }
    return unit_device(b_.units[b_.first[block]]);
  }

  std::pair<double, double> slack(int op) const;
  void reorder(int op);
  void reorder_block_ops(int block);
  void swap(int one, int two);

  // Units that would move to one device, and their ops.
  struct Candidate {
    int block = 0, to = 0;
    bool single_block = false;  // whether it is one block
    std::vector<int32_t> units, ops;
  };

  void add_block(Candidate& move, int block, bool stores) const;
  void sample_candidate(Candidate& move, int change, int level);
  double lower_bound_after(const Candidate& move);

  void shift_loads(int unit, int from, int to) {
    busy_[from] -= b_.seconds[size_t(unit) * a_.devices + from];
    busy_[to] += b_.seconds[size_t(unit) * a_.devices + to];
    resident_[from] -= b_.resident[unit];
    resident_[to] += b_.resident[unit];
  }

  void extract_features(const Candidate& move, float* features);
  void apply_move(const Candidate& move);
  void propose_scouted(int change);
  void propose();

  const ProblemLayout& a_;
  const MoveBlocks& b_;
  EventKernel& event_;
  const AnnealingSettings& s_;
  const DeviceProbs& device_probs_;
  std::vector<double> block_probs_, move_weight_sums_;  // blocks × devices; blocks
  OwnedPlan plan_;
  Loads loads_;
  Period period_;
  static constexpr int kStale = 12;  // accepted moves after which the scout's timeline is refreshed
  Scout scout_;
  Record record_;
  std::vector<int64_t> peak_;
  int moves_since_record_ = 0, extra_evaluations_ = 0;
  double limit_ = 0.0;  // about what a plan may cost to be accepted
  Random random_;
  double smallest_capacity_ = 1.0, start_value_ = 0.0;
  std::vector<double> busy_;
  std::vector<int64_t> resident_, judged_staging_, min_staging_;
  std::vector<std::pair<int32_t, int32_t>> old_units_;
  std::vector<std::pair<int32_t, double>> old_priorities_;
  std::vector<std::pair<int32_t, int64_t>> old_staging_;
};

}  // namespace placewright
