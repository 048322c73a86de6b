#include "simulator/contraction.hpp"

#include <algorithm>
#include <functional>

namespace placewright {

namespace {
constexpr int8_t kNever = 0, kHeavy = 3;
}

Contraction::Contraction(const ProblemLayout& layout, const FusedParts& parts)
    : a_(layout), parts_(parts),
      leader_(layout.ops), next_member_(layout.ops), last_member_(layout.ops), size_(layout.ops),
      contracted_op_(layout.ops),
      contracted_tensor_(layout.tensors), waiting_(layout.ops),
      visited_(std::max(layout.ops, layout.tensors), 0), is_made_inside_(layout.ops), is_written_(layout.ops) {
  contracted_.devices = a_.devices, contracted_.channels = a_.channels,
  contracted_.classes = a_.classes, contracted_.issuers = a_.issuers;
  contracted_.link_class = a_.link_class, contracted_.channel = a_.channel, contracted_.is_host = a_.is_host;
  contracted_.issuer = a_.issuer, contracted_.launch_overhead = a_.launch_overhead;
}

void Contraction::contract(const PlanView& plan, const int32_t* fusion) {
  group(plan.device, fusion);
  order();
  tensors();
  reads();
  costs(plan);
  contracted_.derive();
  staging_ = plan.staging;
}

// Chains of members, each numbered by its first one; throws if a group is malformed.
void Contraction::group(const int32_t* device, const int32_t* fusion) {
  int32_t max_id = -1;
  for (int op = 0; op < a_.ops; ++op) max_id = std::max(max_id, fusion[op]);
  // Group numbers are the plan's own: those beyond the number of ops go through a sorted list.
  std::vector<int32_t> numbers;
  const bool sparse = max_id >= 2 * a_.ops + 64;
  if (sparse) {
    for (int op = 0; op < a_.ops; ++op) {
      if (fusion[op] >= 0) numbers.push_back(fusion[op]);
    }
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  }
  const auto number = [&](int32_t id) {
    return sparse ? std::lower_bound(numbers.begin(), numbers.end(), id) - numbers.begin() : id;
  };
  first_member_.assign(sparse ? numbers.size() : size_t(max_id + 1), -1);
  for (int op = 0; op < a_.ops; ++op) {
    leader_[op] = last_member_[op] = op;
    next_member_[op] = -1;
    size_[op] = 1;
    if (fusion[op] < 0) continue;
    int32_t& first = first_member_[number(fusion[op])];
    if (first < 0) {
      first = op;
      continue;
    }
    leader_[op] = first;
    next_member_[last_member_[first]] = op;
    last_member_[first] = op;
    ++size_[first];
  }
  for (int op = 0; op < a_.ops; ++op) {
    if (leader_[op] != op || size_[op] < 2) continue;
    int heavy = 0;
    for (int member = op; member >= 0; member = next_member_[member]) {
      heavy += parts_.role[member] == kHeavy;
      if (parts_.role[member] == kNever || !a_.scheduled[member] || device[member] != device[op] || heavy > 1) {
        throw MalformedPlan{MalformedPlan::kFusion, member};
      }
    }
  }
}

// The contracted ops: always the one with the earliest first member of those that may come next.
void Contraction::order() {
  bool topological = true;
  for (int op = 0; op < a_.ops && topological; ++op) {
    if (leader_[op] == op) continue;
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1] && topological; ++i) {
      const int source = leader_[a_.producer[a_.inputs[i]]];
      topological = source <= leader_[op];
    }
  }
  member_.clear();
  if (topological) {  // of other ops the producers are earlier anyway, and so are their leaders
    for (int op = 0; op < a_.ops; ++op) {
      if (leader_[op] == op) member_.push_back(op);
    }
  } else {
    std::fill(waiting_.begin(), waiting_.end(), 0);
    int groups = 0;
    for (int op = 0; op < a_.ops; ++op) {
      groups += leader_[op] == op;
      for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
        waiting_[leader_[op]] += leader_[a_.producer[a_.inputs[i]]] != leader_[op];
      }
    }
    heap_.clear();
    const auto push = [this](int op) {
      heap_.push_back(op);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    };
    for (int op = 0; op < a_.ops; ++op) {
      if (leader_[op] == op && waiting_[op] == 0) push(op);
    }
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const int op = heap_.back();
      heap_.pop_back();
      member_.push_back(op);
      for (int member = op; member >= 0; member = next_member_[member]) {
        for (int t = a_.outputs_begin(member); t < a_.outputs_end(member); ++t) {
          for (int r = a_.first_reader[t]; r < a_.first_reader[t + 1]; ++r) {
            const int reader = leader_[a_.readers[r]];
            if (reader != op && --waiting_[reader] == 0) push(reader);
          }
        }
      }
    }
    if (static_cast<int>(member_.size()) < groups) {
      int stuck = 0;
      while (leader_[stuck] != stuck || waiting_[stuck] == 0) ++stuck;
      throw MalformedPlan{MalformedPlan::kFusion, stuck};
    }
  }
  contracted_.ops = static_cast<int>(member_.size());
  for (int at = 0; at < contracted_.ops; ++at) contracted_op_[member_[at]] = at;
}

bool Contraction::is_used_outside(int tensor, int leader) const {
  if (a_.is_output[tensor]) return true;
  for (int r = a_.first_reader[tensor]; r < a_.first_reader[tensor + 1]; ++r) {
    if (leader_[a_.readers[r]] != leader) return true;
  }
  return false;
}

// The tensor from outside the group whose memory this one is, or -1.
int Contraction::alias_outside(int tensor, int leader) const {
  while (tensor >= 0 && leader_[a_.producer[tensor]] == leader) tensor = a_.alias[tensor];
  return tensor;
}

void Contraction::tensors() {
  contracted_.first_tensor.assign(1, 0);
  contracted_.producer.clear();
  original_tensor_.clear();
  std::fill(contracted_tensor_.begin(), contracted_tensor_.end(), -1);
  for (int at = 0; at < contracted_.ops; ++at) {
    const int leader = member_[at];
    for (int member = leader; member >= 0; member = next_member_[member]) {
      for (int t = a_.outputs_begin(member); t < a_.outputs_end(member); ++t) {
        if (size_[leader] > 1 && !is_used_outside(t, leader)) continue;
        contracted_tensor_[t] = static_cast<int32_t>(original_tensor_.size());
        original_tensor_.push_back(t);
        contracted_.producer.push_back(at);
      }
    }
    contracted_.first_tensor.push_back(static_cast<int32_t>(original_tensor_.size()));
  }
  const int count = contracted_.tensors = static_cast<int>(original_tensor_.size());
  contracted_.sizes.resize(count);
  contracted_.is_output.resize(count);
  contracted_.alias.resize(count);
  contracted_.transfer.resize(size_t(contracted_.classes) * count);
  for (int t = 0; t < count; ++t) {
    const int original = original_tensor_[t];
    contracted_.sizes[t] = a_.sizes[original];
    contracted_.is_output[t] = a_.is_output[original];
    const int outside = alias_outside(original, leader_[a_.producer[original]]);
    contracted_.alias[t] = outside < 0 ? -1 : contracted_tensor_[outside];
  }
  for (int link = 0; link < contracted_.classes; ++link) {
    const double* from = a_.transfer.data() + size_t(link) * a_.tensors;
    double* to = contracted_.transfer.data() + size_t(link) * count;
    for (int t = 0; t < count; ++t) to[t] = from[original_tensor_[t]];
  }
}

void Contraction::reads() {
  contracted_.first_input.assign(1, 0);
  contracted_.inputs.clear();
  contracted_.first_reader.assign(contracted_.tensors + 1, 0);
  for (int at = 0; at < contracted_.ops; ++at) {
    const int leader = member_[at];
    if (++stamp_ == INT32_MAX) {  // start again
      std::fill(visited_.begin(), visited_.end(), 0);
      stamp_ = 1;
    }
    for (int member = leader; member >= 0; member = next_member_[member]) {
      for (int i = a_.first_input[member]; i < a_.first_input[member + 1]; ++i) {
        const int original = a_.inputs[i];
        if (leader_[a_.producer[original]] == leader || visited_[original] == stamp_) continue;
        visited_[original] = stamp_;
        contracted_.inputs.push_back(contracted_tensor_[original]);
        ++contracted_.first_reader[contracted_tensor_[original] + 1];
      }
    }
    contracted_.first_input.push_back(static_cast<int32_t>(contracted_.inputs.size()));
  }
  for (int t = 0; t < contracted_.tensors; ++t) contracted_.first_reader[t + 1] += contracted_.first_reader[t];
  contracted_.readers.resize(contracted_.inputs.size());
  waiting_.assign(contracted_.first_reader.begin(), contracted_.first_reader.end());  // where the next one goes
  for (int at = 0; at < contracted_.ops; ++at) {
    for (int i = contracted_.first_input[at]; i < contracted_.first_input[at + 1]; ++i) {
      contracted_.readers[waiting_[contracted_.inputs[i]]++] = at;
    }
  }
  waiting_.resize(a_.ops);
}

void Contraction::costs(const PlanView& plan) {
  const size_t devices = a_.devices;
  contracted_.compute.resize(contracted_.ops * devices);
  contracted_.scheduled.resize(contracted_.ops), contracted_.is_weight.resize(contracted_.ops),
      contracted_.is_resident.resize(contracted_.ops);
  contracted_.resident.resize(contracted_.ops), contracted_.workspace.resize(contracted_.ops);
  device_.resize(contracted_.ops);
  priority_.resize(plan.priority ? contracted_.ops : 0);
  for (int at = 0; at < contracted_.ops; ++at) {
    const int op = member_[at], place = plan.device[op];
    device_[at] = place;
    contracted_.scheduled[at] = a_.scheduled[op], contracted_.is_weight[at] = a_.is_weight[op],
    contracted_.is_resident[at] = a_.is_resident[op];
    contracted_.resident[at] = a_.resident[op], contracted_.workspace[at] = a_.workspace[op];
    for (int member = next_member_[op]; member >= 0; member = next_member_[member]) {
      contracted_.resident[at] += a_.resident[member];
      contracted_.workspace[at] = std::max(contracted_.workspace[at], a_.workspace[member]);
    }
    // Only the device that the plan names is ever read.
    contracted_.compute[at * devices + place] =
        size_[op] > 1 ? fused_seconds(op, place) : a_.compute[op * devices + place];
    if (!plan.priority) continue;
    priority_[at] = plan.priority[op];
    for (int member = next_member_[op]; member >= 0; member = next_member_[member]) {
      priority_[at] = std::min(priority_[at], plan.priority[member]);
    }
  }
}

double Contraction::fused_seconds(int leader, int place) {
  double unfused = 0.0, work = 0.0, longest = 0.0;
  for (int member = leader; member >= 0; member = next_member_[member]) {
    const double seconds = parts_.unfused[size_t(member) * a_.devices + place];
    unfused += seconds;
    longest = std::max(longest, seconds);
    work += parts_.work[size_t(member) * a_.devices + place];
  }
  const double memory = static_cast<double>(traffic(leader)) / parts_.memory_bandwidth[place];
  return std::min(std::min(longest, parts_.launch_overhead[place]) + std::max(work, memory), unfused);
}

// Bytes that a group still moves: see `_bytes_left` in src/placewright/costs.py.
int64_t Contraction::traffic(int leader) {
  members_.clear();
  for (int member = leader; member >= 0; member = next_member_[member]) {
    members_.push_back(member);
    bool made_inside = true;
    if (parts_.free[member]) {
      made_inside = a_.first_input[member] < a_.first_input[member + 1];
      for (int i = a_.first_input[member]; i < a_.first_input[member + 1]; ++i) {
        const int source = a_.producer[a_.inputs[i]];
        made_inside &= leader_[source] == leader && is_made_inside_[source];
      }
    }
    is_made_inside_[member] = made_inside;
  }
  const auto written = [&](int t) {
    if (is_used_outside(t, leader)) return true;
    for (int r = a_.first_reader[t]; r < a_.first_reader[t + 1]; ++r) {
      if (is_written_[a_.readers[r]]) return true;  // all its readers are in the group
    }
    return false;
  };
  int64_t total = 0;
  for (auto at = members_.rbegin(); at != members_.rend(); ++at) {
    const int op = *at;
    is_written_[op] = 0;
    if (parts_.free[op]) {
      for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) is_written_[op] |= written(t);
      continue;
    }
    int64_t bytes_moved = parts_.bytes_moved[op];
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
      const int source = a_.producer[a_.inputs[i]];
      if (leader_[source] == leader && is_made_inside_[source]) bytes_moved -= parts_.reads[i];
    }
    for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) {
      const bool read = a_.first_reader[t] < a_.first_reader[t + 1];
      if (read && !written(t) && alias_outside(t, leader) < 0) bytes_moved -= a_.sizes[t];
    }
    total += std::max<int64_t>(bytes_moved, 0);
  }
  return total;
}

}  // namespace placewright
