#include "transforms/fuser.hpp"

#include <algorithm>

namespace placewright {
namespace {

constexpr int kMaxSpan = 4096;               // ops searched between two ends; ops further apart are never fused
constexpr int64_t kGap = int64_t(1) << 32;  // between the labels of neighbours

}  // namespace

// An edge is dead if an end cannot fuse, if its reader is heavy (a heavy op only feeds its group), or
// if another path between its ends leads through an op that cannot be inside a group with both: one
// that never fuses, or a heavy one, which would be fed by the group.
void FuseGraph::derive() {
  dead.assign(readers.size(), 0);
  dead_producer.assign(producers.size(), 0);
  std::vector<int32_t> seen(2 * ops, -1);
  int stamp = 0;
  for (int op = 0; op < ops; ++op) {
    for (int i = first_reader[op]; i < first_reader[op + 1]; ++i) {
      const int reader = readers[i];
      dead[i] = role[op] == kNever || role[reader] == kNever || role[reader] == kHeavy ||
                has_blocked_path(op, reader, seen, stamp++);
      if (!dead[i]) continue;
      const auto begin = producers.begin() + first_producer[reader];
      const auto end = producers.begin() + first_producer[reader + 1];
      dead_producer[std::find(begin, end, op) - producers.begin()] = 1;
    }
  }
}

bool FuseGraph::has_blocked_path(int from, int to, std::vector<int32_t>& seen, int stamp) const {
  // States are ops, and again the same ops reached through one that blocks.
  std::vector<int32_t> stack{from};
  int visited = 0;
  while (!stack.empty()) {
    const int state = stack.back();
    stack.pop_back();
    const int op = state % ops;
    if (++visited > kMaxSpan) return true;
    for (int i = first_reader[op]; i < first_reader[op + 1]; ++i) {
      const int reader = readers[i];
      if (reader > to) continue;
      if (reader == to) {
        if (state >= ops) return true;
        continue;
      }
      const bool blocked = state >= ops || role[reader] == kNever || role[reader] == kHeavy;
      const int next = reader + (blocked ? ops : 0);
      if (seen[next] == stamp) continue;
      seen[next] = stamp;
      stack.push_back(next);
    }
  }
  return false;
}

Fuser::Fuser(const FuseGraph& graph)
    : graph_(graph),
      parent_(graph.ops), next_member_(graph.ops), last_member_(graph.ops), size_(graph.ops), anchor_(graph.ops),
      sources_(graph.ops),
      label_(graph.ops + 2), before_(graph.ops + 2), after_(graph.ops + 2),
      seen_forward_(graph.ops, 0), seen_backward_(graph.ops, 0), order_(graph.ops) {}

void Fuser::begin(const int32_t* device) {
  device_ = device;
  if (stamp_ > INT32_MAX / 2) {  // start again
    std::fill(seen_forward_.begin(), seen_forward_.end(), 0);
    std::fill(seen_backward_.begin(), seen_backward_.end(), 0);
    stamp_ = 0;
  }
  const int ends = graph_.ops;  // `ends` and `ends + 1` are the ends of the list
  for (int op = 0; op < graph_.ops; ++op) {
    parent_[op] = last_member_[op] = op;
    next_member_[op] = -1;
    size_[op] = 1;
    sources_[op] = graph_.first_producer[op + 1] - graph_.first_producer[op];
    anchor_[op] = graph_.role[op] >= kReduction ? op : -1;
    before_[op] = op ? op - 1 : ends;
    after_[op] = op + 1 < graph_.ops ? op + 1 : ends + 1;
  }
  after_[ends] = graph_.ops ? 0 : ends + 1;
  before_[ends + 1] = graph_.ops ? graph_.ops - 1 : ends;
  relabel();
}

void Fuser::relabel() {
  int64_t label = 0;
  for (int at = graph_.ops;; at = after_[at]) {
    label_[at] = label;
    label += kGap;
    if (at == graph_.ops + 1) break;
  }
}

// A group's number is its first op; single ops are in no group.
void Fuser::write_groups(int32_t* group) {
  std::fill(group, group + graph_.ops, -1);
  for (int op = 0; op < graph_.ops; ++op) {
    const int root = find(op);
    if (size_[root] < 2 || group[op] >= 0) continue;
    for (int member = root; member >= 0; member = next_member_[member]) group[member] = op;
  }
}

int Fuser::find(int op) {
  while (parent_[op] != op) op = parent_[op] = parent_[parent_[op]];
  return op;
}

// Whether two groups may be one, cycles aside: at most one op that is not element-wise.
bool Fuser::can_merge(int producer_group, int reader_group) const {
  return size_[producer_group] + size_[reader_group] <= kMaxMembers &&
         (anchor_[producer_group] < 0 || anchor_[reader_group] < 0);
}

// Whether the heavy op of the reading group would read what the other one makes.
bool Fuser::feeds_heavy(int producer_group, int reader_group) {
  const int heavy = anchor_[reader_group];
  if (heavy < 0 || graph_.role[heavy] != kHeavy) return false;
  for (int i = graph_.first_producer[heavy]; i < graph_.first_producer[heavy + 1]; ++i) {
    if (find(graph_.producers[i]) == producer_group) return true;
  }
  return false;
}

// How many ops outside two groups they read from.
int Fuser::joint_sources(int one, int other) {
  ++stamp_;
  int count = 0;
  for (const int group : {one, other}) {
    for (int member = group; member >= 0; member = next_member_[member]) {
      for (int i = graph_.first_producer[member]; i < graph_.first_producer[member + 1]; ++i) {
        const int source = graph_.producers[i], other_group = find(source);
        if (other_group == one || other_group == other || seen_forward_[source] == stamp_) continue;
        seen_forward_[source] = stamp_;
        ++count;
      }
    }
  }
  return count;
}

void Fuser::merge(int producer, int reader) {
  const int from = find(producer), to = find(reader);
  if (from == to || device_[producer] != device_[reader]) return;
  if (!can_merge(from, to) || feeds_heavy(from, to)) return;
  const int sources = joint_sources(from, to);
  if (sources > std::max({kMaxSources, sources_[from], sources_[to]}) || !is_cycle_free(from, to)) return;
  // `is_cycle_free` has put them next to each other in the order; the union keeps the place of `to`.
  unlink(from);
  parent_[from] = to;
  next_member_[last_member_[to]] = from;
  last_member_[to] = last_member_[from];
  size_[to] += size_[from];
  sources_[to] = sources;
  if (anchor_[to] < 0) anchor_[to] = anchor_[from];
}

// Whether no path leads from one group to the other but the direct edge, so that they may be one. If so, what
// the search found between them is moved out of the way: what follows `from` goes behind `to`, or what
// comes before `to` goes ahead of `from`; then the two may stand anywhere between (Pearce and Kelly
// 2006, with labels in place of numbers).
bool Fuser::is_cycle_free(int from, int to) {
  ++stamp_;
  steps_ = 0;
  reached_forward_.clear();
  reached_backward_.clear();
  if (!expand(from, true, from, to)) return false;
  if (!expand(to, false, from, to)) return false;
  size_t forward = 0, backward = 0;
  while (forward < reached_forward_.size() && backward < reached_backward_.size()) {
    if (!expand(reached_forward_[forward++], true, from, to)) return false;
    if (forward == reached_forward_.size()) break;
    if (!expand(reached_backward_[backward++], false, from, to)) return false;
  }
  const auto earlier = [this](int32_t x, int32_t y) { return label_[x] < label_[y]; };
  if (forward == reached_forward_.size()) {  // all that follows `from` before `to` is known
    std::sort(reached_forward_.begin(), reached_forward_.end(), earlier);
    move_after(to, reached_forward_);
  } else {
    std::sort(reached_backward_.begin(), reached_backward_.end(), earlier);
    move_before(from, reached_backward_);
    unlink(to);  // the union stands where `from` stood
    link(from, {to});
  }
  return true;
}

// Searches a group's readers (or producers) between the two ends. False if there is a path around, or
// if the search takes too long.
bool Fuser::expand(int group, bool forward, int from, int to) {
  const std::vector<int32_t>& first = forward ? graph_.first_reader : graph_.first_producer;
  const std::vector<int32_t>& others = forward ? graph_.readers : graph_.producers;
  std::vector<int32_t>& seen = forward ? seen_forward_ : seen_backward_;
  const std::vector<int32_t>& seen_there = forward ? seen_backward_ : seen_forward_;
  std::vector<int32_t>& reached = forward ? reached_forward_ : reached_backward_;
  const int start = forward ? from : to, goal = forward ? to : from;
  const int64_t low = label_[from], high = label_[to];
  for (int member = group; member >= 0; member = next_member_[member]) {
    for (int i = first[member]; i < first[member + 1]; ++i) {
      if (++steps_ > kMaxSteps) return false;
      const int other = find(others[i]);
      if (other == goal) {
        if (group != start) return false;
        continue;
      }
      if (other == group || label_[other] <= low || label_[other] >= high) continue;
      if (seen_there[other] == stamp_) return false;
      if (seen[other] == stamp_) continue;
      seen[other] = stamp_;
      reached.push_back(other);
    }
  }
  return true;
}

void Fuser::move_after(int group, std::vector<int32_t>& moved) {
  for (const int32_t each : moved) unlink(each);
  link(group, moved);
}

void Fuser::move_before(int group, std::vector<int32_t>& moved) {
  for (const int32_t each : moved) unlink(each);
  link(before_[group], moved);
}

void Fuser::unlink(int group) {
  after_[before_[group]] = after_[group];
  before_[after_[group]] = before_[group];
}

void Fuser::link(int left, const std::vector<int32_t>& moved) {
  if (moved.empty()) return;
  const int right = after_[left];
  int at = left;
  for (const int32_t each : moved) {
    after_[at] = each;
    before_[each] = at;
    at = each;
  }
  after_[at] = right;
  before_[right] = at;
  const int64_t step = (label_[right] - label_[left]) / int64_t(moved.size() + 1);
  if (step < 1) return relabel();
  int64_t label = label_[left];
  for (const int32_t each : moved) label_[each] = label += step;
}

void Fuser::by_urgency(const int32_t* device, const double* urgency, int32_t* group) {
  begin(device);
  order_.clear();
  for (int op = 0; op < graph_.ops; ++op) {
    if (urgency[op] > 0 && graph_.role[op] != kNever) order_.push_back(op);
  }
  std::stable_sort(order_.begin(), order_.end(), [urgency](int32_t x, int32_t y) { return urgency[x] > urgency[y]; });
  for (const int32_t op : order_) {
    for (int i = graph_.first_producer[op]; i < graph_.first_producer[op + 1]; ++i) {
      if (!graph_.dead_producer[i] && urgency[graph_.producers[i]] > 0) merge(graph_.producers[i], op);
    }
    for (int i = graph_.first_reader[op]; i < graph_.first_reader[op + 1]; ++i) {
      if (!graph_.dead[i] && urgency[graph_.readers[i]] > 0) merge(op, graph_.readers[i]);
    }
  }
  write_groups(group);
}

void Fuser::into_readers(const int32_t* device, int32_t* group) {
  begin(device);
  for (int op = graph_.ops - 1; op >= 0; --op) {
    const int first = graph_.first_reader[op], last = graph_.first_reader[op + 1];
    bool each = first < last;
    int members = size_[find(op)], anchors = anchor_[find(op)] >= 0;
    ++stamp_;  // marks the groups that are counted
    for (int i = first; i < last && each; ++i) {
      const int other_group = find(graph_.readers[i]);
      each = !graph_.dead[i] && device[op] == device[graph_.readers[i]] && !feeds_heavy(find(op), other_group);
      if (seen_forward_[other_group] == stamp_) continue;
      seen_forward_[other_group] = stamp_;
      members += size_[other_group];
      anchors += anchor_[other_group] >= 0;
    }
    if (!each || members > kMaxMembers || anchors > 1) continue;
    for (int i = first; i < last; ++i) merge(op, graph_.readers[i]);
  }
  write_groups(group);
}

}  // namespace placewright
