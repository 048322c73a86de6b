// A walk as it goes: the plan it is at, and the moves that it draws.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "event_kernel.hpp"
#include "loads.hpp"
#include "random.hpp"
#include "scout.hpp"
#include "walk.hpp"

namespace placewright {

struct Score {
  double cost = 0.0;  // what the walk goes by
  int64_t overflow = 0;
  double value = 0.0;
};

class Walk {
 public:
  Walk(const Layout& a, const Blocks& blocks, EventKernel& event, const WalkPlan& start,
       const WalkSettings& settings, const Likely& likely, uint64_t seed);

  Samples samples(int count);
  Walked run();

 private:
  void number();
  void reset();
  double floor() const;
  Score score();
  void make_room();
  WalkPlan judged() const;

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

  void take_back();
  int drawn(const std::vector<double>& shares);
  int device_for(int block);
  void doubt();
  bool move_as_likely(int level, bool stores);
  void set_block(int block, int device, bool work, bool stores);

  int block_device(int block) const {
    for (int i = b_.first[block]; i < b_.first[block + 1]; ++i) {
      if (!b_.stores[b_.units[i]]) return unit_device(b_.units[i]);
    }
    return unit_device(b_.units[b_.first[block]]);
  }

  std::pair<double, double> slack(int op) const;
  void reorder(int op);
  void reorder_few(int block);
  void swap(int one, int two);

  // Units that would move to one device, and their ops.
  struct Candidate {
    int block = 0, to = 0;
    bool few = false;  // whether it is one block
    std::vector<int32_t> units, ops;
  };

  void add(Candidate& one, int block, bool stores) const;
  void candidate(Candidate& one, int change, int level);
  double floor_after(const Candidate& one);

  void shift(int unit, int from, int to) {
    busy_[from] -= b_.seconds[size_t(unit) * a_.devices + from];
    busy_[to] += b_.seconds[size_t(unit) * a_.devices + to];
    resident_[from] -= b_.resident[unit];
    resident_[to] += b_.resident[unit];
  }

  void look(const Candidate& one, float* features);
  void take(const Candidate& one);
  void propose_liked(int change);
  void propose();

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

}  // namespace placewright
