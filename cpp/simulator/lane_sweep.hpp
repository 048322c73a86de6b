// The sweep of the CPU's lanes: one pass over the ops in their order, for 16 plans side by side, in vectors.
//
// Times and bytes are exact. Each loop over lanes is to become vector instructions.
#pragma once

#include <cstdint>
#include <cstring>

#include "simulator/lane_kernel.hpp"

#define PLACEWRIGHT_INLINE inline __attribute__((always_inline))
#if defined(__GNUC__) && !defined(__clang__)
#define PLACEWRIGHT_INDEPENDENT _Pragma("GCC ivdep")
#else
#define PLACEWRIGHT_INDEPENDENT
#endif

namespace placewright {

constexpr int L = LaneKernel::kLanes;

// Of an edge in a lane: it is the first or the last read of the tensor's copy on the reader's device; that is not the
// producer's device; the copy is the producer's own, and sends may outlast this read.
constexpr uint8_t kFirst = 1, kLast = 2, kRemote = 4, kSent = 8;

// What a sweep reads of a problem: the same for all plans of one order (`LaneLayout` makes the arrays).
struct LaneProblem {
  int32_t devices, channels, classes;  // channels and classes with the spare one from a device to itself
  int32_t scheduled, fixed, resident_ops;
  int32_t is_graph_order;
  const int32_t* order;         // scheduled ops, in the plan's order
  const int32_t* fixed_op;      // ops that take no turn, in the graph's order
  const int32_t* resident_op;   // ops with resident bytes
  const int32_t* op_row;        // ops: the row of `place` with its device
  const uint8_t* is_resident;   // ops
  const int64_t* resident;      // ops
  const int64_t* workspace;     // ops
  const int64_t* start_bytes;   // ops: workspace and outputs that alias nothing
  const int64_t* all_bytes;     // ops: workspace and all outputs
  const double* compute;        // ops × devices
  const int32_t* first_tensor;  // ops + 1
  const int32_t* first_read;    // ops + 1
  const int32_t* read_slot;     // reads: where its arrival is stored
  const int32_t* read_tensor;   // reads
  const int32_t* first_edge;    // tensors + 1
  const int32_t* edge_row;      // edges: the row of the reading op
  const int32_t* edge_slot;     // edges: where its arrival is stored
  const int64_t* sizes;         // tensors
  const uint8_t* tensor_flags;  // tensors
  const double* transfer;       // tensors × classes
  const int32_t* channel_of;    // devices × devices
  const int32_t* class_of;      // devices × devices
};

inline LaneProblem view(const LaneLayout& layout) {
  const ProblemLayout& a = layout.a;
  LaneProblem p;
  p.devices = a.devices, p.channels = a.channels + 1, p.classes = a.classes + 1;
  p.scheduled = static_cast<int32_t>(layout.order.size()), p.fixed = static_cast<int32_t>(layout.fixed_op.size());
  p.resident_ops = static_cast<int32_t>(layout.resident_op.size());
  p.is_graph_order = layout.is_graph_order;
  p.order = layout.order.data(), p.fixed_op = layout.fixed_op.data(), p.resident_op = layout.resident_op.data();
  p.op_row = layout.op_row.data();
  p.is_resident = a.is_resident.data(), p.resident = a.resident.data(), p.workspace = a.workspace.data();
  p.start_bytes = a.start_bytes.data(), p.all_bytes = layout.all_bytes.data(), p.compute = a.compute.data();
  p.first_tensor = a.first_tensor.data(), p.first_read = layout.first_read.data();
  p.read_slot = layout.read_slot.data(), p.read_tensor = layout.read_tensor.data();
  p.first_edge = layout.first_edge.data(), p.edge_row = layout.edge_row.data(), p.edge_slot = layout.edge_slot.data();
  p.sizes = a.sizes.data(), p.tensor_flags = layout.tensor_flags.data(), p.transfer = layout.transfer.data();
  p.channel_of = layout.channel_of.data(), p.class_of = layout.class_of.data();
  return p;
}

// What a sweep writes, and the plans. An array of n has n × 16 numbers; lanes are side by side.
struct LaneBuffers {
  const uint8_t* place;            // rows: the device of each
  double* arrival;                 // slots: when the reader's device has the tensor
  uint8_t* use;                    // slots: first and last read of a copy
  double *device_free, *at;        // devices
  double* channel_free;            // channels
  int64_t *live_low, *live_high;   // devices
  int64_t *low, *high;             // devices: the peak is at least and at most this
};

// By value: this vectorises better than `std::max`.
template <typename T>
PLACEWRIGHT_INLINE T larger(T one, T two) {
  return one < two ? two : one;
}

// The number of the lowest bit, from the exponent of a float: this vectorises, a count of zeros does not.
PLACEWRIGHT_INLINE int32_t lowest_bit(uint32_t bits) {
  const float value = static_cast<float>(static_cast<int32_t>(bits & (0u - bits)));
  int32_t pattern;
  std::memcpy(&pattern, &value, sizeof pattern);
  return (pattern >> 23) - 127;
}

// The lanes of the op at hand.
struct LaneState {
  alignas(64) int32_t device[L];
  alignas(64) double end[L];
  alignas(64) int32_t local_readers[L];  // of the tensor just made: whether it has any
  alignas(64) int32_t is_sent[L];
};

// A tensor with one reader: at most one send per lane.
template <bool kPeaks>
PLACEWRIGHT_INLINE void make_for_one_reader(const LaneProblem& p, const LaneBuffers& b, LaneState& s, int edge,
                                            const double* transfer) {
  const uint8_t* reader = b.place + static_cast<size_t>(p.edge_row[edge]) * L;
  double* arrival = b.arrival + static_cast<size_t>(p.edge_slot[edge]) * L;
  uint8_t* use = b.use + static_cast<size_t>(p.edge_slot[edge]) * L;
  PLACEWRIGHT_INDEPENDENT
  for (int l = 0; l < L; ++l) {
    const int32_t target = reader[l];
    const int32_t pair = s.device[l] * p.devices + target;
    const int32_t channel = p.channel_of[pair] * L + l;
    const bool remote = target != s.device[l];
    const double sent = larger(b.channel_free[channel], s.end[l]) + transfer[p.class_of[pair]];
    b.channel_free[channel] = sent;
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
PLACEWRIGHT_INLINE void make_for_readers(const LaneProblem& p, const LaneBuffers& b, LaneState& s, int first, int last,
                                         const double* transfer) {
  alignas(64) int32_t receivers[L];
  for (int l = 0; l < L; ++l) receivers[l] = 0;
  for (int edge = first; edge < last; ++edge) {
    const uint8_t* reader = b.place + static_cast<size_t>(p.edge_row[edge]) * L;
    if constexpr (kPeaks) {
      uint8_t* use = b.use + static_cast<size_t>(p.edge_slot[edge]) * L;
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
  PLACEWRIGHT_INDEPENDENT
  for (int l = 0; l < L; ++l) {
    const int32_t own = 1 << s.device[l];
    if constexpr (kPeaks) s.local_readers[l] = (receivers[l] & own) != 0;
    receivers[l] &= ~own;
    if constexpr (kPeaks) s.is_sent[l] = receivers[l] != 0;
    any |= receivers[l];
    b.at[s.device[l] * L + l] = s.end[l];
  }
  while (any) {
    any = 0;
  PLACEWRIGHT_INDEPENDENT
    for (int l = 0; l < L; ++l) {
      const bool sends = receivers[l] != 0;
      const int32_t target = sends ? lowest_bit(static_cast<uint32_t>(receivers[l])) : s.device[l];
      const int32_t pair = s.device[l] * p.devices + target;
      const int32_t channel = p.channel_of[pair] * L + l;
      const double sent = larger(b.channel_free[channel], s.end[l]) + transfer[p.class_of[pair]];
      b.channel_free[channel] = sent;
      b.at[target * L + l] = sends ? sent : s.end[l];
      receivers[l] &= receivers[l] - 1;
      any |= receivers[l];
    }
  }
  alignas(64) int32_t later[L];
  if constexpr (kPeaks) {
    for (int l = 0; l < L; ++l) later[l] = 0;
  }
  for (int edge = last - 1; edge >= first; --edge) {
    const uint8_t* reader = b.place + static_cast<size_t>(p.edge_row[edge]) * L;
    double* arrival = b.arrival + static_cast<size_t>(p.edge_slot[edge]) * L;
  PLACEWRIGHT_INDEPENDENT
    for (int l = 0; l < L; ++l) arrival[l] = b.at[reader[l] * L + l];
    if constexpr (kPeaks) {
      uint8_t* use = b.use + static_cast<size_t>(p.edge_slot[edge]) * L;
      for (int l = 0; l < L; ++l) {
        const int32_t bit = 1 << reader[l];
        use[l] = static_cast<uint8_t>(use[l] | (later[l] & bit ? 0 : kLast) | (s.is_sent[l] ? kSent : 0));
        later[l] |= bit;
      }
    }
  }
}

// Time 0: resident bytes, and what takes no turn is handed over in the order of tensors.
template <bool kPeaks>
PLACEWRIGHT_INLINE void begin_sweep(const LaneProblem& p, const LaneBuffers& b, LaneState& s,
                                    int32_t* sent_at_zero) {
  for (int32_t device = 0; device < p.devices; ++device) {
    for (int l = 0; l < L; ++l) {
      b.device_free[device * L + l] = 0;
      if constexpr (kPeaks) b.live_low[device * L + l] = 0;
    }
  }
  for (int32_t channel = 0; channel < p.channels; ++channel) {
    for (int l = 0; l < L; ++l) b.channel_free[channel * L + l] = 0;
  }
  if constexpr (kPeaks) {
    for (int32_t at = 0; at < p.resident_ops; ++at) {
      const int32_t op = p.resident_op[at];
      const uint8_t* place = b.place + static_cast<size_t>(p.op_row[op]) * L;
      for (int l = 0; l < L; ++l) b.live_low[place[l] * L + l] += p.resident[op];
    }
    for (int32_t device = 0; device < p.devices; ++device) {
      for (int l = 0; l < L; ++l) {
        const int32_t q = device * L + l;
        b.live_high[q] = b.low[q] = b.live_low[q];
      }
    }
  }
  for (int l = 0; l < L; ++l) s.end[l] = 0, sent_at_zero[l] = 0;
  for (int32_t at = 0; at < p.fixed; ++at) {
    const int32_t op = p.fixed_op[at];
    const uint8_t* place = b.place + static_cast<size_t>(p.op_row[op]) * L;
    for (int l = 0; l < L; ++l) s.device[l] = place[l];
    for (int32_t tensor = p.first_tensor[op]; tensor < p.first_tensor[op + 1]; ++tensor) {
      for (int l = 0; l < L; ++l) s.local_readers[l] = 0, s.is_sent[l] = 0;
      if (p.first_edge[tensor] < p.first_edge[tensor + 1]) {
        make_for_readers<true>(p, b, s, p.first_edge[tensor], p.first_edge[tensor + 1],
                               p.transfer + static_cast<size_t>(tensor) * p.classes);
        for (int l = 0; l < L; ++l) sent_at_zero[l] |= s.is_sent[l];
      }
      if constexpr (kPeaks) {
        if (p.is_resident[op]) continue;
        const int64_t bytes = p.sizes[tensor];
        const bool is_output = p.tensor_flags[tensor] & kOutput;
        for (int l = 0; l < L; ++l) {
          const int32_t q = s.device[l] * L + l;
          const bool is_used = s.local_readers[l] || s.is_sent[l] || is_output;
          const bool stays = s.local_readers[l] || is_output;
          b.low[q] += is_used ? bytes : 0;
          b.live_low[q] += stays ? bytes : 0;
          b.live_high[q] += is_used ? bytes : 0;
        }
      }
    }
  }
  if constexpr (kPeaks) {
    for (int32_t device = 0; device < p.devices; ++device) {
      for (int l = 0; l < L; ++l) b.high[device * L + l] = b.live_high[device * L + l];
    }
  }
}

// Memory of an op that runs: bounds of what is in use meanwhile, and of what is left (`kept`) once its inputs are gone.
// In the upper bounds copies count from when they were received to the end of the step, on top of everything else.
PLACEWRIGHT_INLINE void count_memory(const LaneProblem& p, const LaneBuffers& b, const LaneState& s, int32_t op,
                                     int64_t* kept_low, int64_t* kept_high) {
  alignas(64) int64_t came[L], gone_low[L], gone_high[L];
  const int64_t workspace = p.workspace[op];
  for (int l = 0; l < L; ++l) came[l] = 0, gone_low[l] = workspace, gone_high[l] = workspace;
  for (int32_t read = p.first_read[op]; read < p.first_read[op + 1]; ++read) {
    const int32_t tensor = p.read_tensor[read];
    const uint8_t flags = p.tensor_flags[tensor];
    const uint8_t* use = b.use + static_cast<size_t>(p.read_slot[read]) * L;
    const int64_t bytes = p.sizes[tensor];
    // A view has no bytes of its own in the lower bound; what it is a view of is not given back in the upper one.
    const bool releasable = flags & kReleasable, high_copy = !(flags & kViewed);
    const bool low = releasable && !(flags & kView), high = releasable && high_copy;
    for (int l = 0; l < L; ++l) {
      const bool remote = use[l] & kRemote, last = use[l] & kLast;
      came[l] += (use[l] & kFirst) && remote ? bytes : 0;
      gone_low[l] += last && (remote || low) ? bytes : 0;
      gone_high[l] += last && (remote ? high_copy : high && !(use[l] & kSent)) ? bytes : 0;
    }
  }
  const int64_t start_low = p.start_bytes[op], start_high = p.all_bytes[op];
  PLACEWRIGHT_INDEPENDENT
  for (int l = 0; l < L; ++l) {
    const int32_t q = s.device[l] * L + l;
    const int64_t now_low = b.live_low[q] + start_low + came[l], now_high = b.live_high[q] + start_high + came[l];
    b.low[q] = larger(b.low[q], now_low);
    b.high[q] = larger(b.high[q] + came[l], now_high);
    kept_low[l] = now_low - gone_low[l];
    kept_high[l] = now_high - gone_high[l];
  }
}

// The sweep. `step_times`, `is_inexact`: per lane; inexact: hand-overs of one instant may be served in another order.
template <bool kPeaks>
PLACEWRIGHT_INLINE void sweep_lanes(const LaneProblem p, const LaneBuffers b, double* step_times, int32_t* is_inexact) {
  LaneState s;
  alignas(64) double step_time[L];
  alignas(64) int32_t inexact[L];
  alignas(64) int32_t sent_at_zero[L];
  begin_sweep<kPeaks>(p, b, s, sent_at_zero);
  for (int l = 0; l < L; ++l) step_time[l] = 0, inexact[l] = 0;
  for (int32_t turn = 0; turn < p.scheduled; ++turn) {
    const int32_t op = p.order[turn];
    const uint8_t* place = b.place + static_cast<size_t>(p.op_row[op]) * L;
    const double* compute = p.compute + static_cast<size_t>(op) * p.devices;
    alignas(64) double ready[L];
    for (int l = 0; l < L; ++l) s.device[l] = place[l], ready[l] = 0;
    for (int32_t read = p.first_read[op]; read < p.first_read[op + 1]; ++read) {
      const double* arrival = b.arrival + static_cast<size_t>(p.read_slot[read]) * L;
      for (int l = 0; l < L; ++l) ready[l] = larger(ready[l], arrival[l]);
    }
    alignas(64) int32_t is_tied[L];  // it ends when the device's op before it ended, or at time 0
  PLACEWRIGHT_INDEPENDENT
    for (int l = 0; l < L; ++l) {
      const int32_t q = s.device[l] * L + l;
      const double before = b.device_free[q];
      const double end = larger(ready[l], before) + compute[s.device[l]];
      is_tied[l] = end == before;
      b.device_free[q] = end;
      s.end[l] = end;
      step_time[l] = larger(step_time[l], end);
    }
    alignas(64) int64_t kept_low[L], kept_high[L];
    if constexpr (kPeaks) count_memory(p, b, s, op, kept_low, kept_high);
    for (int32_t tensor = p.first_tensor[op]; tensor < p.first_tensor[op + 1]; ++tensor) {
      const int first = p.first_edge[tensor], last = p.first_edge[tensor + 1];
      const double* transfer = p.transfer + static_cast<size_t>(tensor) * p.classes;
      if constexpr (kPeaks) {
        for (int l = 0; l < L; ++l) s.local_readers[l] = 0, s.is_sent[l] = 0;
      }
      if (last - first == 1) {
        make_for_one_reader<kPeaks>(p, b, s, first, transfer);
      } else if (last > first) {
        make_for_readers<kPeaks>(p, b, s, first, last, transfer);
      }
      for (int l = 0; l < L; ++l) {
        inexact[l] |= is_tied[l] & (p.is_graph_order ? sent_at_zero[l] & (s.end[l] == 0) : 1);
      }
      if constexpr (kPeaks) {
        const uint8_t flags = p.tensor_flags[tensor];
        const int64_t bytes = flags & kReleasable ? p.sizes[tensor] : 0;
        const int64_t low = flags & kView ? 0 : bytes, high = flags & kViewed ? 0 : bytes;
        for (int l = 0; l < L; ++l) {
          kept_low[l] -= s.local_readers[l] ? 0 : low;
          kept_high[l] -= s.local_readers[l] || s.is_sent[l] ? 0 : high;
        }
      }
    }
    if constexpr (kPeaks) {
  PLACEWRIGHT_INDEPENDENT
      for (int l = 0; l < L; ++l) {
        const int32_t q = s.device[l] * L + l;
        b.live_low[q] = kept_low[l];
        b.live_high[q] = kept_high[l];
      }
    }
  }
  for (int l = 0; l < L; ++l) step_times[l] = step_time[l], is_inexact[l] = inexact[l];
}

}  // namespace placewright
