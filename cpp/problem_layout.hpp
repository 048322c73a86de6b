// A problem's arrays as the kernels read them, with arrays that are derived once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace placewright {

// Mirrors `Arrays` in src/placewright/arrays.py, where every field is explained.
struct ProblemLayout {
  int ops = 0, devices = 0, tensors = 0, channels = 0, classes = 0, issuers = 0;
  std::vector<double> compute;                // ops × devices
  std::vector<uint8_t> allowed;               // ops × devices
  std::vector<int32_t> unit_head;             // ops
  std::vector<uint8_t> scheduled, is_weight;  // ops
  std::vector<uint8_t> is_resident;           // ops
  std::vector<int64_t> resident, workspace;
  std::vector<int32_t> first_tensor, first_input, inputs;
  std::vector<int64_t> sizes;
  std::vector<int32_t> producer, alias;
  std::vector<uint8_t> is_output;
  std::vector<int32_t> first_reader, readers;
  std::vector<double> transfer;              // classes × tensors
  std::vector<int32_t> link_class, channel;  // devices × devices
  std::vector<uint8_t> is_host;
  std::vector<int32_t> issuer;
  std::vector<double> launch_overhead;

  // Derived by derive().
  std::vector<int32_t> reader_slot;       // inputs: where this read stands in `readers`
  std::vector<int32_t> scheduled_inputs;  // ops: inputs made by scheduled ops
  std::vector<int64_t> start_bytes;       // ops: workspace and outputs that alias nothing
  std::vector<int32_t> scheduled_ops;     // the scheduled ops, in graph order
  bool any_alias = false;

  void derive();

  int outputs_begin(int op) const { return first_tensor[op]; }
  int outputs_end(int op) const { return first_tensor[op + 1]; }
};

// One plan of a problem; null means none.
struct PlanView {
  const int32_t* device;
  const double* priority;
  const int64_t* staging;
  int64_t staging_bytes(int place) const { return staging ? staging[place] : -1; }
};

// Why a plan is malformed; the Python side makes an error message of it.
struct MalformedPlan {
  enum Reason { kPlacement, kStaging, kFusion } reason;
  int op;
};

// Rule 2: the scheduled ops, in the plan's order.
class PlanOrder {
 public:
  void compute(const ProblemLayout& a, const double* priority, std::vector<int32_t>& order);
  // Each op's rank by (priority, position); valid after compute() with priorities.
  const std::vector<int32_t>& rank() const { return rank_; }
  // To be called before the first plan of another layout.
  void reset() { sorted_.clear(); }

 private:
  std::vector<int32_t> rank_, waiting_;
  std::vector<int32_t> sorted_;  // kept from plan to plan: the next one's is often much the same
};

void check_placement(const ProblemLayout& a, const int32_t* device);

// Seconds between pipelined steps.
class Period {
 public:
  double evaluate(const ProblemLayout& a, const PlanView& plan, bool overlap);

 private:
  std::vector<double> device_load_, channel_load_;
  std::vector<int32_t> last_sent_;
};

}  // namespace placewright
