// Rule 9: a plan with fused groups in, the arrays and the plan of the contracted problem out.
// It follows src/placewright/transforms/contract.py and agrees with it bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "layout.hpp"

namespace placewright {

// Mirrors `FusedParts` in src/placewright/costs.py, where every field is explained.
struct FusedParts {
  std::vector<double> alone, work;    // ops × devices
  std::vector<int64_t> moved;         // ops
  std::vector<uint8_t> free;          // ops
  std::vector<double> rate, launch;   // devices
  std::vector<int64_t> reads;         // inputs: bytes of each that its reader's `moved` counts
  std::vector<int8_t> role;           // ops: 0 cannot be in a group, 3 heavy: at most one of these
  bool known = false;
};

class Contraction {
 public:
  Contraction(const Layout& layout, const FusedParts& parts);

  // Throws Malformed if the groups cannot be fused.
  void contract(const PlanView& plan, const int32_t* fusion);

  const Layout& layout() const { return small_; }
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
  bool leaves(int tensor, int leader) const;
  int alias_outside(int tensor, int leader) const;
  double fused_seconds(int leader, int place);
  int64_t traffic(int leader);

  const Layout& a_;
  const FusedParts& parts_;
  Layout small_;
  std::vector<int32_t> device_;
  std::vector<double> priority_;
  const int64_t* staging_ = nullptr;

  std::vector<int32_t> leader_, next_, last_, size_;   // ops: groups as chains in graph order
  std::vector<int32_t> first_of_;                      // by the plan's own group numbers
  std::vector<int32_t> member_, place_;                // contracted ops → leaders, and back
  std::vector<int32_t> small_tensor_, big_tensor_;     // tensors → contracted ones or -1, and back
  std::vector<int32_t> waiting_, seen_;
  int stamp_ = 0;
  std::vector<int32_t> heap_;
  // Of the group whose traffic is counted: ops in graph order, and by op or tensor
  std::vector<int32_t> members_;
  std::vector<uint8_t> made_, open_;                   // ops
};

}  // namespace placewright
