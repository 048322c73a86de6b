#include "bounds/path_sweep.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace placewright {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRoundingShare = 1e-9;  // more than what a sum in another order can be off

// Arrivals at one op: of its ancestors `start`, `start` + 1, … up to the op itself; groups × ancestors.
struct ArrivalRow {
  int64_t start = 0;
  int64_t width = 0;
  std::vector<double> arrivals;

  double* group(int32_t index) { return arrivals.data() + index * width; }
  const double* group(int32_t index) const { return arrivals.data() + index * width; }
};

class Sweep {
 public:
  explicit Sweep(const PathSweep& input)
      : in_(input),
        begin_(static_cast<size_t>(input.ops) * input.groups, 0.0),
        end_(begin_.size(), 0.0),
        earliest_(input.ops, 0.0),
        pending_readers_(input.ops, 0),
        rows_(input.ops) {
    for (const int64_t parent : input.parents) ++pending_readers_[parent];
  }

  std::vector<double> run() {
    for (int32_t op = 0; op < in_.ops; ++op) place(op);
    return std::move(begin_);
  }

 private:
  void place(int32_t op) {
    const int64_t first = in_.first_edge[op], last = in_.first_edge[op + 1];
    const int32_t groups = in_.groups;
    base_.assign(groups, 0.0);
    remote_.resize((last - first) * groups);
    for (int64_t edge = first; edge < last; ++edge) {
      const double* end = end_.data() + in_.parents[edge] * groups;
      for (int32_t group = 0; group < groups; ++group) {
        const double remote = remote_arrival(edge, group, end);
        remote_[(edge - first) * groups + group] = remote;
        base_[group] = std::max(base_[group], std::min(remote, end[group]));
      }
    }
    if (in_.window > 0 && last > first) delay_by_ancestors(op, first, last);
    double earliest = kInfinity;
    for (int32_t group = 0; group < groups; ++group) {
      const size_t at = static_cast<size_t>(op) * groups + group;
      if (in_.seconds[at] >= in_.forbidden_seconds) base_[group] = kInfinity;
      begin_[at] = base_[group];
      end_[at] = base_[group] + in_.seconds[at];
      earliest = std::min(earliest, base_[group]);
    }
    earliest_[op] = earliest;
  }

  double remote_arrival(int64_t edge, int32_t group, const double* end) const {
    double arrival = kInfinity;
    for (int32_t source = 0; source < in_.groups; ++source) {
      const int64_t row = in_.transfer_row[source * in_.groups + group];
      if (row >= 0) arrival = std::min(arrival, end[source] + in_.transfer[row * in_.tensor_count + in_.tensors[edge]]);
    }
    return arrival;
  }

  // `_arrivals` of the reference: raises `base_` to what the op's ancestors allow.
  void delay_by_ancestors(int32_t op, int64_t first, int64_t last) {
    ArrivalRow row;
    row.start = op;
    for (int64_t edge = first; edge < last; ++edge) {
      const int64_t parent = in_.parents[edge];
      row.start = std::min(row.start, rows_[parent].arrivals.empty() ? parent : rows_[parent].start);
    }
    row.start = std::max(row.start, std::max<int64_t>(0, op - in_.window));
    row.width = op - row.start;
    row.arrivals.assign(row.width * in_.groups, -kInfinity);
    int64_t scheduled_parents = 0;
    for (int64_t edge = first; edge < last; ++edge) {
      const int64_t parent = in_.parents[edge];
      if (in_.scheduled[parent]) {
        ++scheduled_parents;
        add_parent(row, parent, remote_.data() + (edge - first) * in_.groups);
      }
      if (--pending_readers_[parent] == 0) rows_[parent] = ArrivalRow();
    }
    if (scheduled_parents > 1) delay_by_work(row);
    for (int32_t group = 0; group < in_.groups; ++group) delay_by_arrivals(row, group);
    if (pending_readers_[op] > 0) rows_[op] = std::move(row);
  }

  void add_parent(ArrivalRow& row, int64_t parent, const double* remote) {
    const ArrivalRow& before = rows_[parent];
    const int64_t skipped = std::max<int64_t>(0, row.start - before.start);
    for (int32_t group = 0; group < in_.groups; ++group) {
      double* into = row.group(group);
      if (!before.arrivals.empty() && skipped < before.width) {
        const double seconds = in_.seconds[parent * in_.groups + group];
        const double* from = before.group(group);
        double* shifted = into + (before.start - row.start);
        for (int64_t at = skipped; at < before.width; ++at) {
          shifted[at] = std::max(shifted[at], std::min(from[at] + seconds, remote[group]));
        }
      }
      if (parent >= row.start) into[parent - row.start] = std::max(into[parent - row.start], remote[group]);
    }
  }

  // `_work`: those that begin at some time or later do all their work from then on.
  void delay_by_work(const ArrivalRow& row) {
    by_key_.clear();
    const double* reached = row.group(0);
    double latest = 0.0, work = 0.0;
    for (int64_t at = 0; at < row.width; ++at) {
      if (reached[at] == -kInfinity) continue;
      const int64_t ancestor = row.start + at;
      by_key_.emplace_back(earliest_[ancestor], ancestor);
      latest = std::max(latest, earliest_[ancestor]);
      work += in_.min_cost[ancestor];
    }
    const double lowest = *std::min_element(base_.begin(), base_.end());
    if ((latest + work) * (1.0 + kRoundingShare) <= lowest) return;  // it cannot raise any
    std::sort(by_key_.begin(), by_key_.end(), later_first);
    double end = 0.0, sum = 0.0;
    for (const auto& [begin, ancestor] : by_key_) {
      sum += in_.min_cost[ancestor];
      end = std::max(end, begin + sum);
    }
    for (double& base : base_) base = std::max(base, end);
  }

  // The latest arrivals come first; the first that the op's own device cannot beat decides. More of them on the
  // device only end later, so the search stops there.
  void delay_by_arrivals(const ArrivalRow& row, int32_t group) {
    by_key_.clear();
    const double* arrivals = row.group(group);
    const double base = base_[group];
    for (int64_t at = 0; at < row.width; ++at) {
      if (arrivals[at] > base) by_key_.emplace_back(arrivals[at], row.start + at);
    }
    if (by_key_.empty()) return;
    const auto earlier_last = [](const auto& one, const auto& two) { return later_first(two, one); };
    std::make_heap(by_key_.begin(), by_key_.end(), earlier_last);
    double least = kInfinity, local_end = base, first_begin = kInfinity, sum = 0.0;
    for (auto heap_end = by_key_.end();; --heap_end) {
      const bool is_last = heap_end == by_key_.begin();
      const double arrival = is_last ? base : by_key_.front().first;
      least = std::min(least, std::max(local_end, arrival));
      if (is_last || local_end >= arrival) break;
      const int64_t ancestor = by_key_.front().second;
      std::pop_heap(by_key_.begin(), heap_end, earlier_last);
      first_begin = std::min(first_begin, begin_[ancestor * in_.groups + group]);
      sum += in_.seconds[ancestor * in_.groups + group];
      local_end = std::max(local_end, sum + first_begin);
    }
    base_[group] = least;
  }

  // Descending keys, and ancestors in order where keys are equal.
  static bool later_first(const std::pair<double, int64_t>& one, const std::pair<double, int64_t>& two) {
    return one.first != two.first ? one.first > two.first : one.second < two.second;
  }

  const PathSweep& in_;
  std::vector<double> begin_, end_;  // ops × groups
  std::vector<double> earliest_;     // ops: in any group
  std::vector<int64_t> pending_readers_;
  std::vector<ArrivalRow> rows_;  // ops; empty where no reader is left
  std::vector<double> base_, remote_;
  std::vector<std::pair<double, int64_t>> by_key_;
};

}  // namespace

std::vector<double> earliest_begins(const PathSweep& sweep) { return Sweep(sweep).run(); }

}  // namespace placewright
