// The sweep of the longest-path bound: when each op can begin at the earliest, by group of equal devices.
#pragma once

#include <cstdint>
#include <vector>

namespace placewright {

// Ops are numbered in the order of the sweep, so every parent has a smaller number than its op.
struct PathSweep {
  int32_t ops = 0;
  int32_t groups = 0;
  int64_t window = 0;                 // ancestors of an op that are looked at; 0: none
  std::vector<int64_t> first_edge;    // ops + 1
  std::vector<int64_t> parents;       // edges
  std::vector<int64_t> tensors;       // edges: what the op reads of the parent
  std::vector<double> seconds;        // ops × groups; at least `forbidden_seconds` where an op may not be
  std::vector<double> min_cost;       // ops: the cheapest cost at the prices of the work bound
  std::vector<uint8_t> scheduled;     // ops
  std::vector<int64_t> transfer_row;  // groups × groups, source first: row of `transfer`, or -1
  std::vector<double> transfer;       // rows × tensors
  int64_t tensor_count = 0;
  double forbidden_seconds = 0.0;
};

// Ops × groups: no plan begins an op earlier there (`solvers/bounds/longest_path.py` has the proof).
std::vector<double> earliest_begins(const PathSweep& sweep);

}  // namespace placewright
