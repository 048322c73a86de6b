// A walk through plans: small changes one after the other, kept or taken back as in annealing.
// The rules by which a plan is judged are those of the kernels; this only decides what to judge.
#pragma once

#include <cstdint>
#include <vector>

#include "event_kernel.hpp"
#include "layout.hpp"
#include "scout.hpp"

namespace placewright {

// Ops that move as one: blocks of whole units, level by level, in graph order within a level.
struct Blocks {
  std::vector<int32_t> first, units;  // blocks + 1; the units of each block
  std::vector<int32_t> level;         // levels + 1: the first block of each level
  std::vector<int32_t> first_op, ops;  // units + 1; the ops of each unit
  std::vector<uint8_t> stores;        // units: nothing but weights
  std::vector<double> seconds;        // units × devices
  std::vector<int64_t> resident;      // units
  std::vector<uint8_t> allowed;       // units × devices

  void derive(const Layout& a);  // all but first, units and level
};

enum Change { kMove, kMoveWork, kMoveStores, kSwap, kStretch, kReorder, kReorderBlock, kStage, kChanges };

struct WalkSettings {
  int64_t evaluations = 0;
  double hot = 0.0, cold = 0.0;      // temperature at the first and last change, as a share of the cost
  double penalty = 0.0;              // cost of bytes over, per share of the smallest capacity
  int doublings = 4;                 // of the power mean that stands for the period
  bool in_order = true, period = false, overlap = true;
  double guided = 0.0;               // share of moves that are drawn by what a proposer thinks of them
  std::vector<double> change_share;  // kChanges
  std::vector<double> level_share;   // levels
  std::vector<int64_t> capacity;     // devices
  std::vector<int64_t> kept_back;    // devices: bytes that resident bytes must leave, for the period
  ScoutNet scout;                    // looks at several moves for one that is judged; for step times
};

// A plan that a walk owns. Without priorities or rooms these are empty.
struct WalkPlan {
  std::vector<int32_t> device;
  std::vector<double> priority;
  std::vector<int64_t> room;  // devices: bytes of staging, -1 for none; raised to what is needed
};

struct Walked {
  WalkPlan best, last;
  int64_t overflow = 0;
  double value = 0.0;
};

// What a proposer thinks of each move: of each unit, how likely each device is to be the right one,
// units × devices, rows of zeros for units it says nothing about. Empty: every move is as good.
using Likely = std::vector<double>;

Walked walk(const Layout& a, const Blocks& blocks, EventKernel& event, const WalkPlan& start,
            const WalkSettings& settings, const Likely& likely, uint64_t seed);

// Moves as a walk draws them and what they bring, to train a scout's network on.
struct Samples {
  std::vector<float> features;  // moves × Scout::kFeatures
  std::vector<double> change;   // moves: of the cost, as a share of it
};

Samples sample_moves(const Layout& a, const Blocks& blocks, EventKernel& event, const WalkPlan& start,
                     const WalkSettings& settings, int count, uint64_t seed);

}  // namespace placewright
