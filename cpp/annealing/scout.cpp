#include "annealing/scout.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace placewright {

namespace {
constexpr int kMaxReaders = 16;    // readers of one tensor that are counted
constexpr size_t kMaxOps = 48;     // ops of a large block that are sampled
constexpr double kWindow = 0.05;  // of the step: the width of the window around a block
constexpr double kClip = 4.0;

float clip(double value, double limit) { return static_cast<float>(std::clamp(value, -limit, limit)); }
}  // namespace

Scout::Scout(const ProblemLayout& a, const std::vector<int64_t>& capacity)
    : a_(a), capacity_(capacity), latest_end_(a.ops), device_free_(a.ops), by_start_(a.scheduled_ops), next_op_(a.ops),
      begins_(a.devices), ends_(a.devices), sums_(a.devices), stamp_(a.ops), tensor_stamp_(a.tensors) {}

void Scout::set_timeline(const int32_t* device, const Record& record, double step) {
  start_ = record.start, end_ = record.end, step_ = std::max(step, 1e-30);
  std::sort(by_start_.begin(), by_start_.end(), [&](int32_t x, int32_t y) {
    return start_[x] < start_[y] || (start_[x] == start_[y] && x < y);
  });
  for (int d = 0; d < a_.devices; ++d) begins_[d].clear(), ends_[d].clear(), sums_[d].assign(1, 0.0);
  std::vector<int32_t> last(a_.devices, -1);
  for (const int32_t op : by_start_) {
    const int d = device[op];
    device_free_[op] = last[d] < 0 ? 0.0 : end_[last[d]];
    if (last[d] >= 0) next_op_[last[d]] = op;
    next_op_[op] = -1, last[d] = op;
    begins_[d].push_back(start_[op]), ends_[d].push_back(end_[op]);
    sums_[d].push_back(sums_[d].back() + end_[op] - start_[op]);
    latest_end_[op] = step_;
  }
  // Backwards in time an op's readers, and what follows it on its device, come before it.
  for (auto it = by_start_.rbegin(); it != by_start_.rend(); ++it) {
    const int op = *it;
    if (next_op_[op] >= 0)
      latest_end_[op] =
          std::min(latest_end_[op], latest_end_[next_op_[op]] - (end_[next_op_[op]] - start_[next_op_[op]]));
    const double begin = latest_end_[op] - (end_[op] - start_[op]);
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
      const int source = a_.producer[a_.inputs[i]];
      if (!a_.scheduled[source]) continue;
      latest_end_[source] =
          std::min(latest_end_[source], begin - transfer_seconds(a_.inputs[i], device[source], device[op]));
    }
  }
}

// Seconds between two points in time during which a device is busy.
double Scout::busy_share(int device, double begin, double end) const {
  const auto until = [&](double time) {
    const size_t at = std::upper_bound(begins_[device].begin(), begins_[device].end(), time) - begins_[device].begin();
    if (at == 0) return 0.0;
    return sums_[device][at - 1] + std::min(time, ends_[device][at - 1]) - begins_[device][at - 1];
  };
  return end > begin ? (until(end) - until(begin)) / (end - begin) : 0.0;
}

void Scout::features(const int32_t* device, const std::vector<int32_t>& ops, int from, int to,
                     const std::vector<double>& busy, const std::vector<int64_t>& peak, float* out) {
  ++move_id_;
  for (const int32_t op : ops) stamp_[op] = move_id_;
  double here = 0, there = 0, before = 0, after = 0, bytes = 0;
  double in_to = 0, in_from = 0, in_all = 0, out_to = 0, out_from = 0, out_all = 0;
  double slack = 0, least = step_, critical = 0, waits = 0, brought = 0, start_sum = 0, late = 0;
  double begin = step_, end = 0.0;
  int turns = 0;
  const size_t stride = (ops.size() + kMaxOps - 1) / kMaxOps;
  for (size_t i = 0; i < ops.size(); i += stride) {
    const int32_t op = ops[i];
    bytes += double(a_.resident[op]);
    const int at = device[op];
    if (!a_.scheduled[op]) continue;
    ++turns;
    here += a_.compute[size_t(op) * a_.devices + at];
    there += a_.compute[size_t(op) * a_.devices + to];
    double arrival = 0.0, local = 0.0;
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
      const int tensor = a_.inputs[i], source = a_.producer[tensor];
      if (stamp_[source] == move_id_ || a_.is_resident[source]) continue;
      const int place = device[source];
      arrival = std::max(arrival, end_[source] + transfer_seconds(tensor, place, to));
      if (place == at) local = std::max(local, end_[source]);
      if (tensor_stamp_[tensor] == move_id_) continue;
      tensor_stamp_[tensor] = move_id_;
      const double size = double(a_.sizes[tensor]);
      in_all += size, in_to += place == to ? size : 0.0, in_from += place == at ? size : 0.0;
      bool read_to = false, read_at = false;  // by others, so that it is sent there anyway
      const int first = a_.first_reader[tensor], last = std::min(a_.first_reader[tensor + 1], first + kMaxReaders);
      for (int r = first; r < last; ++r) {
        const int reader = a_.readers[r];
        if (stamp_[reader] == move_id_) continue;
        read_to |= device[reader] == to, read_at |= device[reader] == at;
      }
      if (!read_at) before += transfer_seconds(tensor, place, at);
      if (!read_to) after += transfer_seconds(tensor, place, to);
    }
    for (int tensor = a_.outputs_begin(op); tensor < a_.outputs_end(op); ++tensor) {
      uint64_t seen_devices = 0;
      const double size = double(a_.sizes[tensor]);
      bytes += size;
      const int first = a_.first_reader[tensor], last = std::min(a_.first_reader[tensor + 1], first + kMaxReaders);
      for (int r = first; r < last; ++r) {
        const int reader = a_.readers[r], place = device[reader];
        if (stamp_[reader] == move_id_ || ((seen_devices >> (place & 63)) & 1)) continue;
        seen_devices |= uint64_t(1) << (place & 63);
        out_all += size, out_to += place == to ? size : 0.0, out_from += place == at ? size : 0.0;
        before += transfer_seconds(tensor, at, place), after += transfer_seconds(tensor, to, place);
      }
    }
    const double op_slack = latest_end_[op] - end_[op];
    slack += op_slack, least = std::min(least, op_slack), critical += op_slack < 1e-3 * step_;
    const bool waited_for_device = device_free_[op] > 0 && start_[op] <= device_free_[op];
    waits += waited_for_device, brought += !waited_for_device && start_[op] > local && start_[op] > 0;
    late += std::clamp((arrival - start_[op]) / std::max(end_[op] - start_[op], 1e-3 * step_), -kClip, kClip);
    start_sum += start_[op], begin = std::min(begin, start_[op]), end = std::max(end, end_[op]);
  }
  const double count = std::max(turns, 1), times = double(stride);
  here *= times, there *= times, before *= times, after *= times, bytes *= times;
  const double scale = std::max(here + before, 1e-30);
  const double busiest = std::max(*std::max_element(busy.begin(), busy.end()), 1e-30);
  const auto full = [&](int d, double more) {
    return (double(peak[d]) + more) / double(std::max<int64_t>(capacity_[d], 1));
  };
  const auto share = [](double part, double all) { return all > 0 ? static_cast<float>(part / all) : 0.0f; };
  bool over = false;
  for (int d = 0; d < a_.devices; ++d) over |= peak[d] > capacity_[d];
  const double middle = start_sum / count, wide = kWindow * step_ / 2;
  float* at = out;
  *at++ = std::log(float(ops.size()));
  *at++ = std::log(float(1e-6 + here / step_));
  *at++ = std::log(float(1e-6 + there / step_));
  *at++ = clip(100 * (there - here) / step_, kClip);
  *at++ = clip(std::log((there + 1e-12) / (here + 1e-12)), kClip);
  *at++ = clip(100 * (after - before) / step_, kClip);
  *at++ = clip((after - before) / scale, kClip);
  *at++ = std::log(float(1e-6 + before / step_));
  *at++ = share(in_to, in_all), *at++ = share(in_from, in_all);
  *at++ = share(out_to, out_all), *at++ = share(out_from, out_all);
  *at++ = in_all > 0, *at++ = out_all > 0;
  *at++ = float(busy[to] / step_), *at++ = float(busy[from] / step_);
  *at++ = float((busy[to] + there) / busiest), *at++ = float(busy[from] / busiest);
  *at++ = float(std::min(full(to, bytes), 2.0)), *at++ = full(to, bytes) > 1.0;
  *at++ = float(std::min(full(from, 0.0), 2.0)), *at++ = full(from, 0.0) > 1.0;
  *at++ = over, *at++ = a_.is_host[to], *at++ = a_.is_host[from];
  *at++ = float(slack / count / step_), *at++ = float(least / step_), *at++ = float(critical / count);
  *at++ = float(waits / count), *at++ = float(brought / count), *at++ = float(late / count);
  *at++ = float(busy_share(to, begin, end)), *at++ = float(busy_share(from, begin, end));
  *at++ = float(busy_share(to, middle - wide, middle + wide)),
      *at++ = float(busy_share(from, middle - wide, middle + wide));
  *at++ = float(middle / step_);
}

double Scout::gain_probability(const ScoutNet& net, const float* features) {
  in_.assign(features, features + kFeatures);
  const float* weight = net.weights.data();
  for (const int32_t width : net.widths) {
    out_.assign(weight, weight + width);
    weight += width;
    float* const out = out_.data();
    for (const float value : in_) {
      for (int row = 0; row < width; ++row) out[row] += value * weight[row];
      weight += width;
    }
    for (float& value : out_) value = std::max(value, 0.0f);
    in_.swap(out_);
  }
  double sum = *weight++;
  for (const float value : in_) sum += double(value) * double(*weight++);
  return 1.0 / (1.0 + std::exp(-std::clamp(sum, -30.0, 30.0)));
}

}  // namespace placewright
