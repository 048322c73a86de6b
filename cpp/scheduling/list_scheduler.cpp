#include "scheduling/list_scheduler.hpp"

#include <algorithm>

namespace placewright {

namespace {
constexpr double kNever = std::numeric_limits<double>::infinity();
}

ListSchedule::ListSchedule(ProblemLayout layout, std::vector<int64_t> capacity, bool contended)
    : a(std::move(layout)),
      device(a.ops, -1),
      start(a.ops, 0.0),
      end(a.ops, 0.0),
      free(a.devices, 0.0),
      used(a.devices, 0),
      capacity_(std::move(capacity)),
      contended_(contended),
      next_member_(a.ops, -1),
      storage_root_(a.tensors),
      unit_bytes_(a.ops, 0),
      held_bytes_(static_cast<size_t>(a.tensors) * a.devices, 0),
      readers_left_(a.tensors, 0),
      channel_free_(a.channels, 0.0),
      arrival_(static_cast<size_t>(a.tensors) * a.devices, kNever),
      gaps_(a.devices, {{0.0, kNever}}) {
  std::vector<int32_t> last(a.ops, -1);
  for (int op = 0; op < a.ops; ++op) {
    const int unit_head = a.unit_head[op];
    if (op != unit_head) next_member_[last[unit_head]] = op;
    last[unit_head] = op;
    unit_bytes_[unit_head] += a.resident[op];
  }
  for (int tensor = 0; tensor < a.tensors; ++tensor) {
    int root = tensor;
    while (a.alias[root] >= 0) root = a.alias[root];
    storage_root_[tensor] = root;
    // Graph outputs have one reader more, which never runs: they live to the end of the step.
    readers_left_[root] += a.first_reader[tensor + 1] - a.first_reader[tensor] + a.is_output[tensor];
  }
  for (int unit_head = 0; unit_head < a.ops; ++unit_head) {
    const uint8_t* legal = &a.allowed[static_cast<size_t>(unit_head) * a.devices];
    // For example graph inputs, which are on the host.
    if (a.unit_head[unit_head] == unit_head && std::count(legal, legal + a.devices, 1) == 1) {
      place_unit(unit_head, static_cast<int>(std::find(legal, legal + a.devices, 1) - legal));
    }
  }
}

bool ListSchedule::allowed(int op, int place) const {
  return device[op] < 0 ? a.allowed[static_cast<size_t>(op) * a.devices + place] : device[op] == place;
}

std::vector<double> ListSchedule::ready(int op) const {
  std::vector<double> result(a.devices, 0.0);
  for (int at = a.first_input[op]; at < a.first_input[op + 1]; ++at) {
    const int tensor = a.inputs[at], source = a.producer[tensor], from = device[source];
    if (from < 0) continue;
    for (int to = 0; to < a.devices; ++to) {
      double begin = end[source];
      if (contended_ && from != to) begin = std::max(begin, channel_free_[a.channel[from * a.devices + to]]);
      const double there = std::min(arrival_[static_cast<size_t>(tensor) * a.devices + to],
                                    begin + transfer_seconds(tensor, from, to));
      result[to] = std::max(result[to], there);
    }
  }
  return result;
}

std::vector<uint8_t> ListSchedule::choices(int op) const {
  int64_t need = a.start_bytes[op];
  for (const int unit_head : unplaced(op)) need += unit_bytes_[unit_head];
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  std::vector<int64_t> spare(a.devices, kLeast);
  for (int place = 0; place < a.devices; ++place) {
    if (!allowed(op, place)) continue;
    spare[place] = capacity_[place] - used[place] - need;
    for (int at = a.first_input[op]; at < a.first_input[op + 1]; ++at) {
      const int tensor = a.inputs[at], from = device[a.producer[tensor]];
      const bool there =
          from < 0 || from == place || arrival_[static_cast<size_t>(tensor) * a.devices + place] < kNever;
      if (!there) spare[place] -= a.sizes[tensor];
    }
  }
  const int64_t enough = std::min<int64_t>(0, *std::max_element(spare.begin(), spare.end()));
  std::vector<uint8_t> result(a.devices);
  for (int place = 0; place < a.devices; ++place) result[place] = spare[place] >= enough;
  return result;
}

int ListSchedule::first_to_finish(int op, const std::vector<uint8_t>& choices) const {
  const std::vector<double> when = ready(op);
  int best = -1;
  double finish = kNever;
  for (int place = 0; place < a.devices; ++place) {
    if (!choices[place]) continue;
    const double seconds = a.compute[static_cast<size_t>(op) * a.devices + place];
    const double ends = earliest_start(place, when[place], seconds) + seconds;
    if (ends < finish) best = place, finish = ends;
  }
  return best;
}

void ListSchedule::add(int op, int place, bool insert) {
  for (const int unit_head : unplaced(op)) {
    const uint8_t* legal = &a.allowed[static_cast<size_t>(unit_head) * a.devices];
    place_unit(unit_head, legal[place] ? place : static_cast<int>(std::max_element(legal, legal + a.devices) - legal));
  }
  const double seconds = a.compute[static_cast<size_t>(op) * a.devices + place], inputs_ready = send_inputs(op, place);
  const double begin = insert ? earliest_start(place, inputs_ready, seconds) : std::max(inputs_ready, free[place]);
  start[op] = begin;
  end[op] = begin + seconds;
  free[place] = std::max(free[place], begin + seconds);
  if (insert && seconds > 0) occupy_gap(place, begin, begin + seconds);
  finish_op(op, place);
}

// The heads of the units that get a device with an op: its own, and those of weights it reads.
std::vector<int> ListSchedule::unplaced(int op) const {
  std::vector<int> result;
  const auto add_head = [&](int other) {
    if (device[other] < 0 && std::find(result.begin(), result.end(), a.unit_head[other]) == result.end()) {
      result.push_back(a.unit_head[other]);
    }
  };
  add_head(op);
  for (int at = a.first_input[op]; at < a.first_input[op + 1]; ++at) add_head(a.producer[a.inputs[at]]);
  return result;
}

// A unit has its device: its resident bytes are there, and graph inputs.
void ListSchedule::place_unit(int unit_head, int place) {
  for (int op = unit_head; op >= 0; op = next_member_[op]) {
    device[op] = place;
    used[place] += a.resident[op];
    if (a.scheduled[op] || a.is_resident[op]) continue;
    for (int tensor = a.first_tensor[op]; tensor < a.first_tensor[op + 1]; ++tensor) allocate(tensor, place);
  }
}

// Sends an op its inputs from other devices; returns when the last one arrives.
double ListSchedule::send_inputs(int op, int place) {
  double last = 0.0;
  for (int at = a.first_input[op]; at < a.first_input[op + 1]; ++at) {
    const int tensor = a.inputs[at], source = a.producer[tensor], from = device[source];
    double& arrival = arrival_[static_cast<size_t>(tensor) * a.devices + place];
    if (arrival == kNever) {
      double begin = end[source];
      if (from == place) {
        arrival = begin;
      } else {
        double& busy = channel_free_[a.channel[from * a.devices + place]];
        if (contended_) begin = std::max(begin, busy);
        arrival = busy = begin + transfer_seconds(tensor, from, place);
        allocate(tensor, place);
      }
    }
    last = std::max(last, arrival);
  }
  return last;
}

double ListSchedule::transfer_seconds(int tensor, int from, int to) const {
  const int link = a.link_class[from * a.devices + to];
  return link < 0 ? 0.0 : a.transfer[static_cast<size_t>(link) * a.tensors + tensor];
}

// The last gap that begins no later.
int ListSchedule::last_gap(int place, double ready) const {
  const auto& gaps = gaps_[place];
  const auto after = std::upper_bound(gaps.begin(), gaps.end(), ready,
                                      [](double when, const Gap& gap) { return when < gap.first; });
  return static_cast<int>(after - gaps.begin()) - 1;
}

// The earliest start on a device for an op of this length: in a gap, or last.
double ListSchedule::earliest_start(int place, double ready, double seconds) const {
  const auto& gaps = gaps_[place];
  int at = std::max(0, last_gap(place, ready));
  while (std::max(ready, gaps[at].first) + seconds > gaps[at].second) ++at;
  return std::max(ready, gaps[at].first);
}

void ListSchedule::occupy_gap(int place, double begin, double finish) {
  auto& gaps = gaps_[place];
  const int at = last_gap(place, begin);
  const Gap gap = gaps[at];
  gaps.erase(gaps.begin() + at);
  if (finish < gap.second) gaps.insert(gaps.begin() + at, {finish, gap.second});
  if (gap.first < begin) gaps.insert(gaps.begin() + at, {gap.first, begin});
}

void ListSchedule::allocate(int tensor, int place) {
  held_bytes_[static_cast<size_t>(storage_root_[tensor]) * a.devices + place] += a.sizes[tensor];
  used[place] += a.sizes[tensor];
}

// An op has been added: its outputs are allocated, and what it was the last to read is freed. Outputs and copies
// live until every reader has been added: a little longer than rule 8 says, since a copy could be freed once its last
// reader on that device has ended.
void ListSchedule::finish_op(int op, int place) {
  for (int tensor = a.first_tensor[op]; tensor < a.first_tensor[op + 1]; ++tensor) {
    if (a.alias[tensor] < 0) allocate(tensor, place);
    release(storage_root_[tensor], 0);
  }
  for (int at = a.first_input[op]; at < a.first_input[op + 1]; ++at) release(storage_root_[a.inputs[at]], 1);
}

void ListSchedule::release(int storage, int readers) {
  readers_left_[storage] -= readers;
  if (readers_left_[storage]) return;
  for (int place = 0; place < a.devices; ++place) {
    int64_t& bytes = held_bytes_[static_cast<size_t>(storage) * a.devices + place];
    used[place] -= bytes;
    bytes = 0;
  }
}

namespace {

// The ready ops, in rows that are kept gapless, with when each could start where.
class ReadyOps {
 public:
  ReadyOps(ListSchedule& schedule, const std::vector<double>& slowdown, const std::vector<int64_t>& rank)
      : schedule_(schedule), slowdown_(slowdown), rank_(rank), devices_(schedule.a.devices), row_(schedule.a.ops, -1) {}

  bool empty() const { return ops_.empty(); }

  void push(int op) {
    row_[op] = static_cast<int>(ops_.size());
    ops_.push_back(op);
    start_.resize(ops_.size() * devices_);
    latest_start_.push_back(0.0);
    update_starts(op);
  }

  void remove(int op) {
    const int gap = row_[op], last = static_cast<int>(ops_.size()) - 1;
    ops_[gap] = ops_[last];
    latest_start_[gap] = latest_start_[last];
    std::copy_n(&start_[static_cast<size_t>(last) * devices_], devices_, &start_[static_cast<size_t>(gap) * devices_]);
    row_[ops_[gap]] = gap;
    row_[op] = -1;
    ops_.pop_back();
    latest_start_.pop_back();
    start_.resize(ops_.size() * devices_);
  }

  // The pair that starts first. What a row says can only be too early, since channels and memory fill up; so the row of
  // the best pair is evaluated again until it holds.
  std::pair<int, int> pick(const std::vector<int64_t>& reserved_for) {
    while (true) {
      const auto [op, place] = best(reserved_for);
      const size_t at = static_cast<size_t>(row_[op]) * devices_ + place;
      const double expected = start_[at];
      update_starts(op);
      if (start_[at] <= expected) return {op, place};
    }
  }

 private:
  void update_starts(int op) {
    const std::vector<uint8_t> choices = schedule_.choices(op);
    const std::vector<double> ready = schedule_.ready(op);
    double* start = &start_[static_cast<size_t>(row_[op]) * devices_];
    double latest = -kNever;
    for (int place = 0; place < devices_; ++place) {
      start[place] = choices[place] ? ready[place] : kNever;
      if (start[place] < kNever) latest = std::max(latest, start[place]);
    }
    latest_start_[row_[op]] = latest;
  }

  std::pair<int, int> best(const std::vector<int64_t>& reserved_for) const {
    int result = -1, where = -1;
    double least = kNever;
    for (size_t row = 0; row < ops_.size(); ++row) {
      const int op = ops_[row];
      for (int place = 0; place < devices_; ++place) {
        double when = std::max(start_[row * devices_ + place], schedule_.free[place]);
        if (reserved_for[place] >= 0 && reserved_for[place] != op) when = std::max(when, latest_start_[row]);
        const double key = when + slowdown_[static_cast<size_t>(op) * devices_ + place];
        if (result < 0 || key < least || (key == least && rank_[op] < rank_[result])) {
          result = op, where = place, least = key;
        }
      }
    }
    return {result, where};
  }

  ListSchedule& schedule_;
  const std::vector<double>& slowdown_;   // ops × devices: seconds lost there against its fastest device
  const std::vector<int64_t>& rank_;  // ops by falling upward rank
  const int devices_;
  std::vector<int> row_, ops_;
  std::vector<double> start_;     // when its inputs can be there; infinity: never
  std::vector<double> latest_start_;  // when they can be on any of its devices
};

}  // namespace

void earliest_first(ListSchedule& schedule, const std::vector<double>& slowdown, const std::vector<int64_t>& rank,
                    const std::vector<int64_t>& favourite) {
  const ProblemLayout& a = schedule.a;
  ReadyOps ready(schedule, slowdown, rank);
  std::vector<int32_t> waiting = a.scheduled_inputs;
  for (const int op : a.scheduled_ops) {
    if (!waiting[op]) ready.push(op);
  }
  std::vector<int64_t> reserved_for(a.devices, -1);  // the favourite child that each device waits for
  while (!ready.empty()) {
    const auto [op, place] = ready.pick(reserved_for);
    schedule.add(op, place, false);
    ready.remove(op);
    std::replace(reserved_for.begin(), reserved_for.end(), static_cast<int64_t>(op), int64_t{-1});
    if (!favourite.empty()) {
      const int64_t child = favourite[op];
      reserved_for[place] = child >= 0 && schedule.allowed(static_cast<int>(child), place) ? child : -1;
    }
    for (int tensor = a.first_tensor[op]; tensor < a.first_tensor[op + 1]; ++tensor) {
      for (int at = a.first_reader[tensor]; at < a.first_reader[tensor + 1]; ++at) {
        if (!--waiting[a.readers[at]]) ready.push(a.readers[at]);
      }
    }
  }
}

}  // namespace placewright
