// Rule 9: contracts the fused groups of a plan into a smaller problem and plan.
// It follows src/placewright/transforms/contraction.py and agrees with it bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "problem_layout.hpp"

namespace placewright {

// Mirrors `FusedParts` in src/placewright/costs.py, where every field is explained.
struct FusedParts {
  std::vector<double> unfused, work;    // ops × devices
  std::vector<int64_t> bytes_moved;         // ops
  std::vector<uint8_t> free;          // ops
  std::vector<double> memory_bandwidth, launch_overhead;   // devices
  std::vector<int64_t> reads;         // inputs: bytes of each that its reader's `bytes_moved` counts
  std::vector<int8_t> role;           // ops: 0 cannot be in a group, 3 heavy: at most one of these
  bool is_set = false;
};

class Contraction {
 public:
  Contraction(const ProblemLayout& layout, const FusedParts& parts);

  // Throws Malformed if the groups cannot be fused.
  void contract(const PlanView& plan, const int32_t* fusion);

  const ProblemLayout& layout() const { return contracted_; }
  PlanView plan() const {
    return {device_.data(), priority_.empty() ? nullptr : priority_.data(), staging_};
  }
  // The first member of an op of the contracted problem.
  int member(int op) const { return member_[op]; }

 private:
  void group(const int32_t* device, const int32_t* fusion);
  void order();
  void tensors();
  void reads();
  void costs(const PlanView& plan);
  bool is_used_outside(int tensor, int leader) const;
  int alias_outside(int tensor, int leader) const;
  double fused_seconds(int leader, int place);
  int64_t traffic(int leader);

  const ProblemLayout& a_;
  const FusedParts& parts_;
  ProblemLayout contracted_;
  std::vector<int32_t> device_;
  std::vector<double> priority_;
  const int64_t* staging_ = nullptr;

  std::vector<int32_t> leader_, next_member_, last_member_, size_;  // ops: groups as chains in graph order
  std::vector<int32_t> first_member_;                               // by the plan's own group numbers
  std::vector<int32_t> member_, contracted_op_;                     // contracted ops → leaders, and back
  std::vector<int32_t> contracted_tensor_, original_tensor_;        // tensors → contracted ones or -1, and back
  std::vector<int32_t> waiting_, visited_;
  int stamp_ = 0;
  std::vector<int32_t> heap_;
  // Of the group whose traffic is counted: ops in graph order, and by op or tensor
  std::vector<int32_t> members_;
  std::vector<uint8_t> is_made_inside_, is_written_;  // ops
};

}  // namespace placewright
