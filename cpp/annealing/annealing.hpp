// Simulated annealing of plans: small moves, one after the other, accepted or undone.
// The kernels evaluate each plan; this only decides which plans are evaluated.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/event_kernel.hpp"
#include "problem_layout.hpp"
#include "annealing/scout.hpp"

namespace placewright {

// Ops that move as one: blocks of whole units, level by level, in graph order within a level.
struct MoveBlocks {
  std::vector<int32_t> first, units;   // blocks + 1; the units of each block
  std::vector<int32_t> level;          // levels + 1: the first block of each level
  std::vector<int32_t> first_op, ops;  // units + 1; the ops of each unit
  std::vector<uint8_t> stores;         // units: nothing but weights
  std::vector<double> seconds;         // units × devices
  std::vector<int64_t> resident;       // units
  std::vector<uint8_t> allowed;        // units × devices

  void derive(const ProblemLayout& a);  // all but first, units and level
};

enum MoveKind { kMove, kMoveWork, kMoveWeights, kSwap, kMoveRun, kReorder, kReorderBlock, kStage, kMoveKinds };

struct AnnealingSettings {
  int64_t evaluations = 0;
  double hot = 0.0, cold = 0.0;  // temperature at the first and last change, as a share of the cost
  double penalty = 0.0;          // cost of bytes over, per share of the smallest capacity
  int doublings = 4;             // of the power mean that stands for the period
  bool in_order = true, period = false, overlap = true;
  bool simulate_memory = false;        // for the period: peaks by the event kernel, not resident bytes alone
  bool overflow_first = false;         // fewer bytes over are better whatever the objective
  double guided_share = 0.0;           // share of moves that are drawn by a proposer's probabilities
  std::vector<double> move_share;      // kChanges
  std::vector<double> level_share;     // levels
  std::vector<int64_t> capacity;       // devices
  std::vector<int64_t> memory_margin;  // devices: bytes that resident bytes must leave, for the period
  ScoutNet scout;                      // scores several moves for each one that is evaluated; for step times
};

// A plan that a chain owns. Without priorities or staging these are empty.
struct OwnedPlan {
  std::vector<int32_t> device;
  std::vector<double> priority;
  std::vector<int64_t> staging;  // devices: bytes of staging, -1 for none; raised to what is needed
};

struct AnnealingResult {
  OwnedPlan best, last;
  int64_t overflow = 0;
  double value = 0.0;
};

// A proposer's probabilities: of each unit, how likely each device is to be the right one,
// units × devices, rows of zeros for units it says nothing about. Empty: every move is as good.
using DeviceProbs = std::vector<double>;

AnnealingResult anneal(const ProblemLayout& a, const MoveBlocks& blocks, EventKernel& event, const OwnedPlan& start,
            const AnnealingSettings& settings, const DeviceProbs& device_probs, uint64_t seed);

// Moves as annealing samples them, and each one's change of the cost, to train a scout's network.
struct MoveSamples {
  std::vector<float> features;  // moves × Scout::kFeatures
  std::vector<double> change;   // moves: of the cost, as a share of it
};

MoveSamples sample_moves(const ProblemLayout& a, const MoveBlocks& blocks, EventKernel& event, const OwnedPlan& start,
                     const AnnealingSettings& settings, int count, uint64_t seed);

}  // namespace placewright
