#include "simulator/lane_kernel.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "clones.hpp"

#define PLACEWRIGHT_INLINE inline __attribute__((always_inline))

namespace placewright {

namespace {

constexpr int L = LaneKernel::kLanes;
// Of an edge in a lane: it is the first or the last read of the tensor's copy on the reader's device; that is not the
// producer's device; the copy is the producer's own, and sends may outlast this read.
constexpr uint8_t kFirst = 1, kLast = 2, kRemote = 4, kSent = 8;

// The number of the lowest bit, from the exponent of a float: this vectorises, a count of zeros does not.
PLACEWRIGHT_INLINE int32_t lowest_bit(uint32_t bits) {
  const float value = static_cast<float>(static_cast<int32_t>(bits & (0u - bits)));
  int32_t pattern;
  std::memcpy(&pattern, &value, sizeof pattern);
  return (pattern >> 23) - 127;
}

// What one sweep reads and writes.
struct SweepState {
  int devices, classes;
  const uint8_t* place;
  const int32_t *first_edge, *edge_reader, *channel_of, *class_of;
  const double* transfer;
  double *arrival, *channel_free;
  uint8_t* use;
  // Lanes
  alignas(64) int32_t device[L];
  alignas(64) double end[L];
  alignas(64) int32_t local_readers[L];  // of the tensor just made: whether it has any
  alignas(64) int32_t is_sent[L];
  alignas(64) double at[LaneKernel::kMaxDevices * L];
};

// A tensor with one reader: at most one send per lane.
template <bool kPeaks>
PLACEWRIGHT_INLINE void make_for_one_reader(SweepState& s, int edge, const double* transfer) {
  const uint8_t* reader = s.place + static_cast<size_t>(s.edge_reader[edge]) * L;
  double* arrival = s.arrival + static_cast<size_t>(edge) * L;
  uint8_t* use = s.use + static_cast<size_t>(edge) * L;
#pragma GCC ivdep
  for (int l = 0; l < L; ++l) {
    const int32_t target = reader[l];
    const int32_t pair = s.device[l] * s.devices + target;
    const int32_t channel = s.channel_of[pair] * L + l;
    const bool remote = target != s.device[l];
    const double sent = std::max(s.channel_free[channel], s.end[l]) + transfer[s.class_of[pair]];
    s.channel_free[channel] = sent;
    arrival[l] = remote ? sent : s.end[l];
    if constexpr (kPeaks) {
      use[l] = static_cast<uint8_t>(kFirst | kLast | (remote ? kRemote : 0));
      s.local_readers[l] = !remote;
      s.is_sent[l] = remote;
    }
  }
}

// A tensor with several readers: sends in the order of the receiving devices, each device once.
template <bool kPeaks>
PLACEWRIGHT_INLINE void make_for_readers(SweepState& s, int first, int last, const double* transfer) {
  alignas(64) int32_t receivers[L];
  for (int l = 0; l < L; ++l) receivers[l] = 0;
  for (int edge = first; edge < last; ++edge) {
    const uint8_t* reader = s.place + static_cast<size_t>(s.edge_reader[edge]) * L;
    if constexpr (kPeaks) {
      uint8_t* use = s.use + static_cast<size_t>(edge) * L;
      for (int l = 0; l < L; ++l) {
        const int32_t bit = 1 << reader[l];
        use[l] = static_cast<uint8_t>((receivers[l] & bit ? 0 : kFirst) | (reader[l] != s.device[l] ? kRemote : 0));
        receivers[l] |= bit;
      }
    } else {
      for (int l = 0; l < L; ++l) receivers[l] |= 1 << reader[l];
    }
  }
  int32_t any = 0;
#pragma GCC ivdep
  for (int l = 0; l < L; ++l) {
    const int32_t own = 1 << s.device[l];
    if constexpr (kPeaks) s.local_readers[l] = (receivers[l] & own) != 0;
    receivers[l] &= ~own;
    if constexpr (kPeaks) s.is_sent[l] = receivers[l] != 0;
    any |= receivers[l];
    s.at[s.device[l] * L + l] = s.end[l];
  }
  while (any) {
    any = 0;
#pragma GCC ivdep
    for (int l = 0; l < L; ++l) {
      const bool sends = receivers[l] != 0;
      const int32_t target = sends ? lowest_bit(static_cast<uint32_t>(receivers[l])) : s.device[l];
      const int32_t pair = s.device[l] * s.devices + target;
      const int32_t channel = s.channel_of[pair] * L + l;
      const double sent = std::max(s.channel_free[channel], s.end[l]) + transfer[s.class_of[pair]];
      s.channel_free[channel] = sent;
      s.at[target * L + l] = sends ? sent : s.end[l];
      receivers[l] &= receivers[l] - 1;
      any |= receivers[l];
    }
  }
  alignas(64) int32_t later[L];
  if constexpr (kPeaks) {
    for (int l = 0; l < L; ++l) later[l] = 0;
  }
  for (int edge = last - 1; edge >= first; --edge) {
    const uint8_t* reader = s.place + static_cast<size_t>(s.edge_reader[edge]) * L;
    double* arrival = s.arrival + static_cast<size_t>(edge) * L;
#pragma GCC ivdep
    for (int l = 0; l < L; ++l) arrival[l] = s.at[reader[l] * L + l];
    if constexpr (kPeaks) {
      uint8_t* use = s.use + static_cast<size_t>(edge) * L;
      for (int l = 0; l < L; ++l) {
        const int32_t bit = 1 << reader[l];
        use[l] = static_cast<uint8_t>(use[l] | (later[l] & bit ? 0 : kLast));
        later[l] |= bit;
      }
    }
  }
  if constexpr (kPeaks) {
    for (int edge = first; edge < last; ++edge) {
      uint8_t* use = s.use + static_cast<size_t>(edge) * L;
      for (int l = 0; l < L; ++l) use[l] = static_cast<uint8_t>(use[l] | (s.is_sent[l] ? kSent : 0));
    }
  }
}

}  // namespace

bool LaneKernel::applies_to(const ProblemLayout& a) {
  if (a.issuers > 0 || a.devices > kMaxDevices) return false;
  std::vector<int32_t> sender(a.channels, -1);
  for (int source = 0; source < a.devices; ++source) {
    for (int target = 0; target < a.devices; ++target) {
      const int32_t channel = source == target ? -1 : a.channel[source * a.devices + target];
      if (channel < 0) continue;
      if (sender[channel] >= 0 && sender[channel] != source) return false;
      sender[channel] = source;
    }
  }
  return true;
}

void LaneKernel::set_order(const double* priority) {
  if (!priority && has_order_ && is_graph_order_) return;
  PlanOrder().compute(a_, priority, order_);
  has_order_ = true, is_graph_order_ = !priority;
  std::vector<int32_t> rank(a_.ops, -1);
  for (size_t at = 0; at < order_.size(); ++at) rank[order_[at]] = static_cast<int32_t>(at);
  first_edge_.assign(1, 0);
  edge_reader_.clear(), edge_tensor_.clear();
  for (int tensor = 0; tensor < a_.tensors; ++tensor) {
    const size_t first = edge_reader_.size();
    for (int at = a_.first_reader[tensor]; at < a_.first_reader[tensor + 1]; ++at) {
      if (rank[a_.readers[at]] >= 0) edge_reader_.push_back(a_.readers[at]), edge_tensor_.push_back(tensor);
    }
    std::sort(edge_reader_.begin() + first, edge_reader_.end(),
              [&rank](int32_t one, int32_t two) { return rank[one] < rank[two]; });
    first_edge_.push_back(static_cast<int32_t>(edge_reader_.size()));
  }
  std::vector<std::vector<int32_t>> reads(a_.ops);
  for (size_t edge = 0; edge < edge_reader_.size(); ++edge) reads[edge_reader_[edge]].push_back(static_cast<int32_t>(edge));
  first_read_.assign(1, 0);
  read_edge_.clear();
  for (const std::vector<int32_t>& edges : reads) {
    read_edge_.insert(read_edge_.end(), edges.begin(), edges.end());
    first_read_.push_back(static_cast<int32_t>(read_edge_.size()));
  }
  const int devices = a_.devices, classes = a_.classes + 1;
  channel_of_ = a_.channel, class_of_ = a_.link_class;
  for (int device = 0; device < devices; ++device) {
    channel_of_[device * devices + device] = a_.channels;
    class_of_[device * devices + device] = a_.classes;
  }
  transfer_.assign(static_cast<size_t>(a_.tensors) * classes, 0.0);
  releasable_.assign(a_.tensors, 0), is_viewed_.assign(a_.tensors, 0);
  all_bytes_ = a_.workspace;
  for (int tensor = 0; tensor < a_.tensors; ++tensor) {
    for (int link = 0; link < a_.classes; ++link) {
      transfer_[static_cast<size_t>(tensor) * classes + link] = a_.transfer[static_cast<size_t>(link) * a_.tensors + tensor];
    }
    const int op = a_.producer[tensor];
    releasable_[tensor] = !a_.is_output[tensor] && !(a_.is_resident[op] && !a_.scheduled[op]);
    if (a_.alias[tensor] >= 0 && a_.scheduled[op]) is_viewed_[a_.alias[tensor]] = 1;
    all_bytes_[op] += a_.sizes[tensor];
  }
  place_.resize(static_cast<size_t>(a_.ops) * L);
  arrival_.resize(edge_reader_.size() * L);
  use_.resize(edge_reader_.size() * L);
  device_free_.resize(static_cast<size_t>(devices) * L);
  channel_free_.resize(static_cast<size_t>(a_.channels + 1) * L);
}

void LaneKernel::run(const int32_t* const* device, bool with_peaks, Verdict& verdict) {
  for (int l = 0; l < L; ++l) {
    for (int op = 0; op < a_.ops; ++op) place_[static_cast<size_t>(op) * L + l] = static_cast<uint8_t>(device[l][op]);
  }
  if (with_peaks) {
    sweep_with_peaks(verdict);
  } else {
    sweep_times(verdict);
  }
}

PLACEWRIGHT_CLONES void LaneKernel::sweep_times(Verdict& verdict) { sweep<false>(verdict); }
PLACEWRIGHT_CLONES void LaneKernel::sweep_with_peaks(Verdict& verdict) { sweep<true>(verdict); }

template <bool kPeaks>
PLACEWRIGHT_INLINE void LaneKernel::sweep(Verdict& verdict) {
  const int devices = a_.devices, classes = a_.classes + 1;
  SweepState s;
  s.devices = devices, s.classes = classes;
  s.place = place_.data();
  s.first_edge = first_edge_.data(), s.edge_reader = edge_reader_.data();
  s.channel_of = channel_of_.data(), s.class_of = class_of_.data();
  s.transfer = transfer_.data();
  s.arrival = arrival_.data(), s.channel_free = channel_free_.data(), s.use = use_.data();
  std::fill(device_free_.begin(), device_free_.end(), 0.0);
  std::fill(channel_free_.begin(), channel_free_.end(), 0.0);
  alignas(64) double step_time[L];
  alignas(64) int32_t inexact[L], sent_at_zero[L];
  for (int l = 0; l < L; ++l) step_time[l] = 0.0, inexact[l] = 0, sent_at_zero[l] = 0;
  std::vector<int64_t> live_low, live_high, received;  // devices × lanes
  if constexpr (kPeaks) {
    const size_t size = static_cast<size_t>(devices) * L;
    live_low.assign(size, 0), received.assign(size, 0);
    for (int op = 0; op < a_.ops; ++op) {
      const uint8_t* place = s.place + static_cast<size_t>(op) * L;
      for (int l = 0; l < L; ++l) live_low[place[l] * L + l] += a_.resident[op];
    }
    live_high = live_low;
    verdict.low = live_low;
  }
  // What takes no turn is handed over at time 0, in the order of tensors.
  for (int l = 0; l < L; ++l) s.end[l] = 0.0;
  for (int op = 0; op < a_.ops; ++op) {
    if (a_.scheduled[op]) continue;
    const uint8_t* place = s.place + static_cast<size_t>(op) * L;
    for (int l = 0; l < L; ++l) s.device[l] = place[l];
    for (int tensor = a_.outputs_begin(op); tensor < a_.outputs_end(op); ++tensor) {
      for (int l = 0; l < L; ++l) s.local_readers[l] = 0, s.is_sent[l] = 0;
      if (first_edge_[tensor] < first_edge_[tensor + 1]) {
        make_for_readers<true>(s, first_edge_[tensor], first_edge_[tensor + 1],
                               s.transfer + static_cast<size_t>(tensor) * classes);
        for (int l = 0; l < L; ++l) sent_at_zero[l] |= s.is_sent[l];
      }
      if constexpr (kPeaks) {
        if (a_.is_resident[op]) continue;
        for (int l = 0; l < L; ++l) {
          const int32_t q = s.device[l] * L + l;
          const bool is_used = s.local_readers[l] || s.is_sent[l] || a_.is_output[tensor];
          const bool stays = s.local_readers[l] || a_.is_output[tensor];
          verdict.low[q] += is_used ? a_.sizes[tensor] : 0;
          live_low[q] += stays ? a_.sizes[tensor] : 0;
          live_high[q] += is_used ? a_.sizes[tensor] : 0;
        }
      }
    }
  }
  if constexpr (kPeaks) verdict.high = live_high;
  for (const int32_t op : order_) {
    const uint8_t* place = s.place + static_cast<size_t>(op) * L;
    const double* compute = a_.compute.data() + static_cast<size_t>(op) * devices;
    alignas(64) double ready[L];
    for (int l = 0; l < L; ++l) s.device[l] = place[l], ready[l] = 0.0;
    const int first_read = first_read_[op], last_read = first_read_[op + 1];
    for (int read = first_read; read < last_read; ++read) {
      const double* arrival = s.arrival + static_cast<size_t>(read_edge_[read]) * L;
      for (int l = 0; l < L; ++l) ready[l] = std::max(ready[l], arrival[l]);
    }
    alignas(64) int32_t is_tied[L];  // it ends when the device's op before it ended, or at time 0
    double* device_free = device_free_.data();
#pragma GCC ivdep
    for (int l = 0; l < L; ++l) {
      const int32_t q = s.device[l] * L + l;
      const double before = device_free[q];
      const double end = std::max(ready[l], before) + compute[s.device[l]];
      is_tied[l] = end == before;
      device_free[q] = end;
      s.end[l] = end;
      step_time[l] = std::max(step_time[l], end);
    }
    alignas(64) int64_t kept_low[L], kept_high[L];
    if constexpr (kPeaks) {
      alignas(64) int64_t came[L], gone_low[L], gone_high[L];
      for (int l = 0; l < L; ++l) came[l] = 0, gone_low[l] = a_.workspace[op], gone_high[l] = a_.workspace[op];
      for (int read = first_read; read < last_read; ++read) {
        const int edge = read_edge_[read], tensor = edge_tensor_[edge];
        const uint8_t* use = s.use + static_cast<size_t>(edge) * L;
        const int64_t bytes = a_.sizes[tensor];
        // A view has no bytes of its own in the lower bound; what it is a view of is not given back in the upper one.
        const bool low = releasable_[tensor] && a_.alias[tensor] < 0, high = releasable_[tensor] && !is_viewed_[tensor];
        const bool high_copy = !is_viewed_[tensor];
        for (int l = 0; l < L; ++l) {
          const bool remote = use[l] & kRemote, last = use[l] & kLast;
          came[l] += (use[l] & kFirst) && remote ? bytes : 0;
          gone_low[l] += last && (remote || low) ? bytes : 0;
          gone_high[l] += last && (remote ? high_copy : high && !(use[l] & kSent)) ? bytes : 0;
        }
      }
      const int64_t start_low = a_.start_bytes[op], start_high = all_bytes_[op];
#pragma GCC ivdep
      for (int l = 0; l < L; ++l) {
        const int32_t q = s.device[l] * L + l;
        const int64_t now_low = live_low[q] + start_low + came[l], now_high = live_high[q] + start_high;
        verdict.low[q] = std::max(verdict.low[q], now_low);
        verdict.high[q] = std::max(verdict.high[q], now_high);
        received[q] += came[l];
        kept_low[l] = now_low - gone_low[l];
        kept_high[l] = now_high - gone_high[l];
      }
    }
    for (int tensor = a_.outputs_begin(op); tensor < a_.outputs_end(op); ++tensor) {
      const int first = first_edge_[tensor], last = first_edge_[tensor + 1];
      const double* transfer = s.transfer + static_cast<size_t>(tensor) * classes;
      if constexpr (kPeaks) {
        for (int l = 0; l < L; ++l) s.local_readers[l] = 0, s.is_sent[l] = 0;
      }
      if (last - first == 1) {
        make_for_one_reader<kPeaks>(s, first, transfer);
      } else if (last > first) {
        make_for_readers<kPeaks>(s, first, last, transfer);
      }
      for (int l = 0; l < L; ++l) {
        inexact[l] |= is_tied[l] & (is_graph_order_ ? sent_at_zero[l] & (s.end[l] == 0.0) : 1);
      }
      if constexpr (kPeaks) {
        const int64_t bytes = releasable_[tensor] ? a_.sizes[tensor] : 0;
        const int64_t low = a_.alias[tensor] < 0 ? bytes : 0, high = is_viewed_[tensor] ? 0 : bytes;
        for (int l = 0; l < L; ++l) {
          kept_low[l] -= s.local_readers[l] ? 0 : low;
          kept_high[l] -= s.local_readers[l] || s.is_sent[l] ? 0 : high;
        }
      }
    }
    if constexpr (kPeaks) {
#pragma GCC ivdep
      for (int l = 0; l < L; ++l) {
        const int32_t q = s.device[l] * L + l;
        live_low[q] = kept_low[l];
        live_high[q] = kept_high[l];
      }
    }
  }
  for (int l = 0; l < L; ++l) verdict.step_time[l] = step_time[l], verdict.exact[l] = !inexact[l];
  if constexpr (kPeaks) {
    for (size_t at = 0; at < received.size(); ++at) verdict.high[at] += received[at];
  }
}

}  // namespace placewright
