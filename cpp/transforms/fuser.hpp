// Greedy fusion: grows fused groups from a placement and the ops' urgencies.
#pragma once

#include <cstdint>
#include <vector>

namespace placewright {

// What an op may be in a fused group; mirrors src/placewright/transforms/fusible.py.
enum Role : int8_t { kNever = 0, kLight = 1, kReduction = 2, kHeavy = 3 };

// The ops and their readers, which no plan changes; ops are in topological order.
struct FuseGraph {
  int ops = 0;
  std::vector<int8_t> role;                        // ops
  std::vector<int32_t> first_producer, producers;  // scheduled ops, each once
  std::vector<int32_t> first_reader, readers;      // scheduled ops, each once
  std::vector<uint8_t> dead;                       // readers: this edge can never be inside a group
  std::vector<uint8_t> dead_producer;              // producers: the same, seen from the reader

  void derive();

 private:
  bool has_blocked_path(int from, int to, std::vector<int32_t>& seen, int stamp) const;
};

// Fuses one plan at a time and reuses its buffers for the next.
class Fuser {
 public:
  explicit Fuser(const FuseGraph& graph);

  // Ops from the most urgent to the least, each with its producers and then its readers; 0: never.
  void by_urgency(const int32_t* device, const double* urgency, int32_t* group);
  // Like a compiler: from the last op to the first, each into all of its readers if each may.
  void into_readers(const int32_t* device, int32_t* group);

 private:
  static constexpr int kMaxMembers = 64;  // of one group: kernels have few registers
  // Ops that a group reads from: all their tensors are alive at once. An op with more may still join.
  static constexpr int kMaxSources = 8;
  static constexpr int kMaxSteps = 512;  // edges searched for a cycle; if it takes more, the groups are not merged

  void begin(const int32_t* device);
  void write_groups(int32_t* group);
  int find(int op);
  bool can_merge(int producer_group, int reader_group) const;
  int joint_sources(int one, int other);
  bool feeds_heavy(int producer_group, int reader_group);
  void merge(int producer, int reader);
  bool is_cycle_free(int from, int to);
  bool expand(int group, bool forward, int from, int to);
  void move_after(int group, std::vector<int32_t>& moved);
  void move_before(int group, std::vector<int32_t>& moved);
  void unlink(int group);
  void link(int left, const std::vector<int32_t>& moved);
  void relabel();

  const FuseGraph& graph_;
  const int32_t* device_ = nullptr;
  std::vector<int32_t> parent_, next_member_, last_member_, size_, anchor_;  // by op or group's root
  std::vector<int32_t> sources_;                                             // groups: ops outside that it reads from
  // The groups in a topological order: a list with labels that grow along it.
  std::vector<int64_t> label_;
  std::vector<int32_t> before_, after_;
  // The search for a path around an edge, from both ends.
  std::vector<int32_t> seen_forward_, seen_backward_;
  std::vector<int32_t> reached_forward_, reached_backward_;
  int stamp_ = 0, steps_ = 0;
  std::vector<int32_t> order_;
};

}  // namespace placewright
