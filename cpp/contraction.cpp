#include "contraction.hpp"

#include <algorithm>
#include <functional>

namespace placewright {

namespace {
constexpr int8_t kNever = 0, kHeavy = 3;
}

Contraction::Contraction(const Layout& layout, const FusedParts& parts)
    : a_(layout), parts_(parts),
      leader_(layout.ops), next_(layout.ops), last_(layout.ops), size_(layout.ops), place_(layout.ops),
      small_tensor_(layout.tensors), waiting_(layout.ops),
      seen_(std::max(layout.ops, layout.tensors), 0), made_(layout.ops), open_(layout.ops) {
  small_.devices = a_.devices, small_.channels = a_.channels, small_.classes = a_.classes, small_.issuers = a_.issuers;
  small_.link_class = a_.link_class, small_.channel = a_.channel, small_.host = a_.host;
  small_.issuer = a_.issuer, small_.launch = a_.launch;
}

void Contraction::contract(const PlanView& plan, const int32_t* fusion) {
  group(plan.device, fusion);
  order();
  tensors();
  reads();
  costs(plan);
  small_.derive();
  staging_ = plan.staging;
}

// Chains of members, each called after its first one, and what makes a group malformed.
void Contraction::group(const int32_t* device, const int32_t* fusion) {
  int32_t most = -1;
  for (int op = 0; op < a_.ops; ++op) most = std::max(most, fusion[op]);
  // Group numbers are the plan's own: those beyond the number of ops go through a sorted list.
  std::vector<int32_t> numbers;
  const bool sparse = most >= 2 * a_.ops + 64;
  if (sparse) {
    for (int op = 0; op < a_.ops; ++op) {
      if (fusion[op] >= 0) numbers.push_back(fusion[op]);
    }
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  }
  const auto number = [&](int32_t given) {
    return sparse ? std::lower_bound(numbers.begin(), numbers.end(), given) - numbers.begin() : given;
  };
  first_of_.assign(sparse ? numbers.size() : size_t(most + 1), -1);
  for (int op = 0; op < a_.ops; ++op) {
    leader_[op] = last_[op] = op;
    next_[op] = -1;
    size_[op] = 1;
    if (fusion[op] < 0) continue;
    int32_t& first = first_of_[number(fusion[op])];
    if (first < 0) {
      first = op;
      continue;
    }
    leader_[op] = first;
    next_[last_[first]] = op;
    last_[first] = op;
    ++size_[first];
  }
  for (int op = 0; op < a_.ops; ++op) {
    if (leader_[op] != op || size_[op] < 2) continue;
    int heavy = 0;
    for (int member = op; member >= 0; member = next_[member]) {
      heavy += parts_.role[member] == kHeavy;
      if (parts_.role[member] == kNever || !a_.turn[member] || device[member] != device[op] || heavy > 1) {
        throw Malformed{Malformed::kFusion, member};
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
      for (int member = op; member >= 0; member = next_[member]) {
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
      throw Malformed{Malformed::kFusion, stuck};
    }
  }
  small_.ops = static_cast<int>(member_.size());
  for (int at = 0; at < small_.ops; ++at) place_[member_[at]] = at;
}

bool Contraction::leaves(int tensor, int leader) const {
  if (a_.kept[tensor]) return true;
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
  small_.first_tensor.assign(1, 0);
  small_.producer.clear();
  big_tensor_.clear();
  std::fill(small_tensor_.begin(), small_tensor_.end(), -1);
  for (int at = 0; at < small_.ops; ++at) {
    const int leader = member_[at];
    for (int member = leader; member >= 0; member = next_[member]) {
      for (int t = a_.outputs_begin(member); t < a_.outputs_end(member); ++t) {
        if (size_[leader] > 1 && !leaves(t, leader)) continue;
        small_tensor_[t] = static_cast<int32_t>(big_tensor_.size());
        big_tensor_.push_back(t);
        small_.producer.push_back(at);
      }
    }
    small_.first_tensor.push_back(static_cast<int32_t>(big_tensor_.size()));
  }
  const int count = small_.tensors = static_cast<int>(big_tensor_.size());
  small_.sizes.resize(count);
  small_.kept.resize(count);
  small_.alias.resize(count);
  small_.transfer.resize(size_t(small_.classes) * count);
  for (int t = 0; t < count; ++t) {
    const int big = big_tensor_[t];
    small_.sizes[t] = a_.sizes[big];
    small_.kept[t] = a_.kept[big];
    const int outside = alias_outside(big, leader_[a_.producer[big]]);
    small_.alias[t] = outside < 0 ? -1 : small_tensor_[outside];
  }
  for (int link = 0; link < small_.classes; ++link) {
    const double* from = a_.transfer.data() + size_t(link) * a_.tensors;
    double* to = small_.transfer.data() + size_t(link) * count;
    for (int t = 0; t < count; ++t) to[t] = from[big_tensor_[t]];
  }
}

void Contraction::reads() {
  small_.first_input.assign(1, 0);
  small_.inputs.clear();
  small_.first_reader.assign(small_.tensors + 1, 0);
  for (int at = 0; at < small_.ops; ++at) {
    const int leader = member_[at];
    if (++stamp_ == INT32_MAX) {  // begin anew
      std::fill(seen_.begin(), seen_.end(), 0);
      stamp_ = 1;
    }
    for (int member = leader; member >= 0; member = next_[member]) {
      for (int i = a_.first_input[member]; i < a_.first_input[member + 1]; ++i) {
        const int big = a_.inputs[i];
        if (leader_[a_.producer[big]] == leader || seen_[big] == stamp_) continue;
        seen_[big] = stamp_;
        small_.inputs.push_back(small_tensor_[big]);
        ++small_.first_reader[small_tensor_[big] + 1];
      }
    }
    small_.first_input.push_back(static_cast<int32_t>(small_.inputs.size()));
  }
  for (int t = 0; t < small_.tensors; ++t) small_.first_reader[t + 1] += small_.first_reader[t];
  small_.readers.resize(small_.inputs.size());
  waiting_.assign(small_.first_reader.begin(), small_.first_reader.end());  // where the next one goes
  for (int at = 0; at < small_.ops; ++at) {
    for (int i = small_.first_input[at]; i < small_.first_input[at + 1]; ++i) {
      small_.readers[waiting_[small_.inputs[i]]++] = at;
    }
  }
  waiting_.resize(a_.ops);
}

void Contraction::costs(const PlanView& plan) {
  const size_t devices = a_.devices;
  small_.compute.resize(small_.ops * devices);
  small_.turn.resize(small_.ops), small_.weight.resize(small_.ops), small_.stored.resize(small_.ops);
  small_.resident.resize(small_.ops), small_.workspace.resize(small_.ops);
  device_.resize(small_.ops);
  priority_.resize(plan.priority ? small_.ops : 0);
  for (int at = 0; at < small_.ops; ++at) {
    const int op = member_[at], place = plan.device[op];
    device_[at] = place;
    small_.turn[at] = a_.turn[op], small_.weight[at] = a_.weight[op], small_.stored[at] = a_.stored[op];
    small_.resident[at] = a_.resident[op], small_.workspace[at] = a_.workspace[op];
    for (int member = next_[op]; member >= 0; member = next_[member]) {
      small_.resident[at] += a_.resident[member];
      small_.workspace[at] = std::max(small_.workspace[at], a_.workspace[member]);
    }
    // Only the device that the plan names is ever looked at.
    small_.compute[at * devices + place] =
        size_[op] > 1 ? fused_seconds(op, place) : a_.compute[op * devices + place];
    if (!plan.priority) continue;
    priority_[at] = plan.priority[op];
    for (int member = next_[op]; member >= 0; member = next_[member]) {
      priority_[at] = std::min(priority_[at], plan.priority[member]);
    }
  }
}

double Contraction::fused_seconds(int leader, int place) {
  double alone = 0.0, work = 0.0, longest = 0.0;
  for (int member = leader; member >= 0; member = next_[member]) {
    const double seconds = parts_.alone[size_t(member) * a_.devices + place];
    alone += seconds;
    longest = std::max(longest, seconds);
    work += parts_.work[size_t(member) * a_.devices + place];
  }
  const double memory = static_cast<double>(traffic(leader)) / parts_.rate[place];
  return std::min(std::min(longest, parts_.launch[place]) + std::max(work, memory), alone);
}

// Bytes that a group still moves: `_traffic` in src/placewright/costs.py says why.
int64_t Contraction::traffic(int leader) {
  members_.clear();
  for (int member = leader; member >= 0; member = next_[member]) {
    members_.push_back(member);
    bool made = true;
    if (parts_.free[member]) {
      made = a_.first_input[member] < a_.first_input[member + 1];
      for (int i = a_.first_input[member]; i < a_.first_input[member + 1]; ++i) {
        const int source = a_.producer[a_.inputs[i]];
        made &= leader_[source] == leader && made_[source];
      }
    }
    made_[member] = made;
  }
  const auto written = [&](int t) {
    if (leaves(t, leader)) return true;
    for (int r = a_.first_reader[t]; r < a_.first_reader[t + 1]; ++r) {
      if (open_[a_.readers[r]]) return true;  // all its readers are in the group
    }
    return false;
  };
  int64_t total = 0;
  for (auto at = members_.rbegin(); at != members_.rend(); ++at) {
    const int op = *at;
    open_[op] = 0;
    if (parts_.free[op]) {
      for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) open_[op] |= written(t);
      continue;
    }
    int64_t moved = parts_.moved[op];
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
      const int source = a_.producer[a_.inputs[i]];
      if (leader_[source] == leader && made_[source]) moved -= parts_.reads[i];
    }
    for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) {
      const bool read = a_.first_reader[t] < a_.first_reader[t + 1];
      if (read && !written(t) && alias_outside(t, leader) < 0) moved -= a_.sizes[t];
    }
    total += std::max<int64_t>(moved, 0);
  }
  return total;
}

}  // namespace placewright
