// The sweep of the lane kernels: one pass over the ops in their order, for plans side by side.
//
// The CPU's lanes compile it with float64 and 16 plans in SIMD lanes, the GPU's with float32 and one plan a thread; the
// host compiles the second form too, so that tests can run it. Under NVRTC this file needs no standard headers.
//
// Times are only added up and compared, so a float32 time differs from the exact one by at most the number of additions
// on the longest path times 2^-24, as a share. Bytes are integers, and the bounds of the peaks do not depend on times.
#pragma once

#if defined(__CUDACC__)  // nvcc and NVRTC
#define PLACEWRIGHT_DEVICE __host__ __device__
#define PLACEWRIGHT_INLINE __forceinline__
#else
#define PLACEWRIGHT_DEVICE
#define PLACEWRIGHT_INLINE inline __attribute__((always_inline))
#endif
#if !defined(__CUDACC_RTC__)
#include <cstdint>
#include <cstring>
#endif
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define PLACEWRIGHT_INDEPENDENT _Pragma("GCC ivdep")
#else
#define PLACEWRIGHT_INDEPENDENT
#endif

namespace placewright {

#if defined(__CUDACC_RTC__)
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint32_t = unsigned int;
#else
using std::int32_t, std::int64_t, std::uint8_t, std::uint32_t;
#endif

// Of an edge in a lane: it is the first or the last read of the tensor's copy on the reader's device; that is not the
// producer's device; the copy is the producer's own, and sends may outlast this read.
constexpr uint8_t kFirst = 1, kLast = 2, kRemote = 4, kSent = 8;
// Of a tensor: its memory is given back in the step; it is a view of another; another is a view of it; it is an output.
constexpr uint8_t kReleasable = 1, kView = 2, kViewed = 4, kOutput = 8;

// What a sweep reads of a problem: the same for all plans of one order (`LaneLayout` makes the arrays).
template <typename Number>
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
  const Number* compute;        // ops × devices
  const int32_t* first_tensor;  // ops + 1
  const int32_t* first_read;    // ops + 1
  const int32_t* read_slot;     // reads: where its arrival is stored
  const int32_t* read_tensor;   // reads
  const int32_t* first_edge;    // tensors + 1
  const int32_t* edge_row;      // edges: the row of the reading op
  const int32_t* edge_slot;     // edges: where its arrival is stored
  const int64_t* sizes;         // tensors
  const uint8_t* tensor_flags;  // tensors
  const Number* transfer;       // tensors × classes
  const int32_t* channel_of;    // devices × devices
  const int32_t* class_of;      // devices × devices
};

// What a sweep writes, and the plans. An array of n has n × stride numbers; lanes are side by side.
template <typename Number>
struct LaneBuffers {
  const uint8_t* place;            // rows: the device of each
  Number* arrival;                 // slots: when the reader's device has the tensor
  uint8_t* use;                    // slots: first and last read of a copy
  Number *device_free, *at;        // devices
  Number* channel_free;            // channels
  int64_t *live_low, *live_high;   // devices
  int64_t *low, *high;             // devices: the peak is at least and at most this
};

// 16 plans side by side, in vectors.
struct VectorLanes {
  static constexpr int kCount = 16;
  PLACEWRIGHT_DEVICE static constexpr size_t place(size_t row) { return row * kCount; }
  PLACEWRIGHT_DEVICE static constexpr size_t slot(size_t at) { return at * kCount; }
  PLACEWRIGHT_DEVICE static constexpr int32_t state(int32_t at) { return at * kCount; }
};

// One plan in a thread: neighbours in memory are the plans of neighbouring threads.
struct ThreadLane {
  static constexpr int kCount = 1;
  size_t place_stride, slot_stride;
  int32_t state_stride;
  PLACEWRIGHT_DEVICE size_t place(size_t row) const { return row * place_stride; }
  PLACEWRIGHT_DEVICE size_t slot(size_t at) const { return at * slot_stride; }
  PLACEWRIGHT_DEVICE int32_t state(int32_t at) const { return at * state_stride; }
};

template <typename T>
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE T larger(T one, T two) {
  return one < two ? two : one;
}

// The number of the lowest bit. On a CPU from the exponent of a float: this vectorises, a count of zeros does not.
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE int32_t lowest_bit(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __ffs(static_cast<int>(bits)) - 1;
#else
  const float value = static_cast<float>(static_cast<int32_t>(bits & (0u - bits)));
  int32_t pattern;
  memcpy(&pattern, &value, sizeof pattern);
  return (pattern >> 23) - 127;
#endif
}

// Whether an op ends when the device's op before it ended. Rounded times cannot tell, so float32 says yes too often.
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE bool is_tied_end(double before, double end, double) { return end == before; }
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE bool is_tied_end(float before, float, float seconds) {
  return seconds <= before * (1.0f / (1 << 23));
}

// The lanes of the op at hand.
template <typename Number, int L>
struct LaneState {
  alignas(L > 1 ? 64 : alignof(Number)) int32_t device[L];
  alignas(L > 1 ? 64 : alignof(Number)) Number end[L];
  alignas(L > 1 ? 64 : alignof(Number)) int32_t local_readers[L];  // of the tensor just made: whether it has any
  alignas(L > 1 ? 64 : alignof(Number)) int32_t is_sent[L];
};

// A tensor with one reader: at most one send per lane.
template <bool kPeaks, typename Number, typename Lanes>
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE void make_for_one_reader(const LaneProblem<Number>& p,
                                                               const LaneBuffers<Number>& b, const Lanes lanes,
                                                               LaneState<Number, Lanes::kCount>& s, int edge,
                                                               const Number* transfer) {
  constexpr int L = Lanes::kCount;
  const uint8_t* reader = b.place + lanes.place(p.edge_row[edge]);
  Number* arrival = b.arrival + lanes.slot(p.edge_slot[edge]);
  uint8_t* use = b.use + lanes.slot(p.edge_slot[edge]);
  PLACEWRIGHT_INDEPENDENT
  for (int l = 0; l < L; ++l) {
    const int32_t target = reader[l];
    const int32_t pair = s.device[l] * p.devices + target;
    const int32_t channel = lanes.state(p.channel_of[pair]) + l;
    const bool remote = target != s.device[l];
    const Number sent = larger(b.channel_free[channel], s.end[l]) + transfer[p.class_of[pair]];
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
template <bool kPeaks, typename Number, typename Lanes>
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE void make_for_readers(const LaneProblem<Number>& p,
                                                            const LaneBuffers<Number>& b, const Lanes lanes,
                                                            LaneState<Number, Lanes::kCount>& s, int first, int last,
                                                            const Number* transfer) {
  constexpr int L = Lanes::kCount;
  alignas(L > 1 ? 64 : 4) int32_t receivers[L];
  for (int l = 0; l < L; ++l) receivers[l] = 0;
  for (int edge = first; edge < last; ++edge) {
    const uint8_t* reader = b.place + lanes.place(p.edge_row[edge]);
    if constexpr (kPeaks) {
      uint8_t* use = b.use + lanes.slot(p.edge_slot[edge]);
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
    b.at[lanes.state(s.device[l]) + l] = s.end[l];
  }
  while (any) {
    any = 0;
  PLACEWRIGHT_INDEPENDENT
    for (int l = 0; l < L; ++l) {
      const bool sends = receivers[l] != 0;
      const int32_t target = sends ? lowest_bit(static_cast<uint32_t>(receivers[l])) : s.device[l];
      const int32_t pair = s.device[l] * p.devices + target;
      const int32_t channel = lanes.state(p.channel_of[pair]) + l;
      const Number sent = larger(b.channel_free[channel], s.end[l]) + transfer[p.class_of[pair]];
      b.channel_free[channel] = sent;
      b.at[lanes.state(target) + l] = sends ? sent : s.end[l];
      receivers[l] &= receivers[l] - 1;
      any |= receivers[l];
    }
  }
  alignas(L > 1 ? 64 : 4) int32_t later[L];
  if constexpr (kPeaks) {
    for (int l = 0; l < L; ++l) later[l] = 0;
  }
  for (int edge = last - 1; edge >= first; --edge) {
    const uint8_t* reader = b.place + lanes.place(p.edge_row[edge]);
    Number* arrival = b.arrival + lanes.slot(p.edge_slot[edge]);
  PLACEWRIGHT_INDEPENDENT
    for (int l = 0; l < L; ++l) arrival[l] = b.at[lanes.state(reader[l]) + l];
    if constexpr (kPeaks) {
      uint8_t* use = b.use + lanes.slot(p.edge_slot[edge]);
      for (int l = 0; l < L; ++l) {
        const int32_t bit = 1 << reader[l];
        use[l] = static_cast<uint8_t>(use[l] | (later[l] & bit ? 0 : kLast) | (s.is_sent[l] ? kSent : 0));
        later[l] |= bit;
      }
    }
  }
}

// Time 0: resident bytes, and what takes no turn is handed over in the order of tensors.
template <bool kPeaks, typename Number, typename Lanes>
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE void begin_sweep(const LaneProblem<Number>& p, const LaneBuffers<Number>& b,
                                                       const Lanes lanes, LaneState<Number, Lanes::kCount>& s,
                                                       int32_t* sent_at_zero) {
  constexpr int L = Lanes::kCount;
  for (int32_t device = 0; device < p.devices; ++device) {
    for (int l = 0; l < L; ++l) {
      b.device_free[lanes.state(device) + l] = 0;
      if constexpr (kPeaks) b.live_low[lanes.state(device) + l] = 0;
    }
  }
  for (int32_t channel = 0; channel < p.channels; ++channel) {
    for (int l = 0; l < L; ++l) b.channel_free[lanes.state(channel) + l] = 0;
  }
  if constexpr (kPeaks) {
    for (int32_t at = 0; at < p.resident_ops; ++at) {
      const int32_t op = p.resident_op[at];
      const uint8_t* place = b.place + lanes.place(p.op_row[op]);
      for (int l = 0; l < L; ++l) b.live_low[lanes.state(place[l]) + l] += p.resident[op];
    }
    for (int32_t device = 0; device < p.devices; ++device) {
      for (int l = 0; l < L; ++l) {
        const int32_t q = lanes.state(device) + l;
        b.live_high[q] = b.low[q] = b.live_low[q];
      }
    }
  }
  for (int l = 0; l < L; ++l) s.end[l] = 0, sent_at_zero[l] = 0;
  for (int32_t at = 0; at < p.fixed; ++at) {
    const int32_t op = p.fixed_op[at];
    const uint8_t* place = b.place + lanes.place(p.op_row[op]);
    for (int l = 0; l < L; ++l) s.device[l] = place[l];
    for (int32_t tensor = p.first_tensor[op]; tensor < p.first_tensor[op + 1]; ++tensor) {
      for (int l = 0; l < L; ++l) s.local_readers[l] = 0, s.is_sent[l] = 0;
      if (p.first_edge[tensor] < p.first_edge[tensor + 1]) {
        make_for_readers<true>(p, b, lanes, s, p.first_edge[tensor], p.first_edge[tensor + 1],
                               p.transfer + static_cast<size_t>(tensor) * p.classes);
        for (int l = 0; l < L; ++l) sent_at_zero[l] |= s.is_sent[l];
      }
      if constexpr (kPeaks) {
        if (p.is_resident[op]) continue;
        const int64_t bytes = p.sizes[tensor];
        const bool is_output = p.tensor_flags[tensor] & kOutput;
        for (int l = 0; l < L; ++l) {
          const int32_t q = lanes.state(s.device[l]) + l;
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
      for (int l = 0; l < L; ++l) b.high[lanes.state(device) + l] = b.live_high[lanes.state(device) + l];
    }
  }
}

// Memory of an op that runs: bounds of what is in use meanwhile, and of what is left (`kept`) once its inputs are gone.
// In the upper bounds copies count from when they were received to the end of the step, on top of everything else.
template <typename Number, typename Lanes>
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE void count_memory(const LaneProblem<Number>& p, const LaneBuffers<Number>& b,
                                                        const Lanes lanes,
                                                        const LaneState<Number, Lanes::kCount>& s, int32_t op,
                                                        int64_t* kept_low, int64_t* kept_high) {
  constexpr int L = Lanes::kCount;
  alignas(L > 1 ? 64 : 8) int64_t came[L], gone_low[L], gone_high[L];
  const int64_t workspace = p.workspace[op];
  for (int l = 0; l < L; ++l) came[l] = 0, gone_low[l] = workspace, gone_high[l] = workspace;
  for (int32_t read = p.first_read[op]; read < p.first_read[op + 1]; ++read) {
    const int32_t tensor = p.read_tensor[read];
    const uint8_t flags = p.tensor_flags[tensor];
    const uint8_t* use = b.use + lanes.slot(p.read_slot[read]);
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
    const int32_t q = lanes.state(s.device[l]) + l;
    const int64_t now_low = b.live_low[q] + start_low + came[l], now_high = b.live_high[q] + start_high + came[l];
    b.low[q] = larger(b.low[q], now_low);
    b.high[q] = larger(b.high[q] + came[l], now_high);
    kept_low[l] = now_low - gone_low[l];
    kept_high[l] = now_high - gone_high[l];
  }
}

// The sweep. `step_times`, `is_inexact`: per lane; inexact: hand-overs of one instant may be served in another order.
template <bool kPeaks, typename Number, typename Lanes>
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE void sweep_lanes(const LaneProblem<Number> p, const LaneBuffers<Number> b,
                                                       const Lanes lanes, Number* step_times, int32_t* is_inexact) {
  constexpr int L = Lanes::kCount;
  LaneState<Number, L> s;
  alignas(L > 1 ? 64 : alignof(Number)) Number step_time[L];
  alignas(L > 1 ? 64 : 4) int32_t inexact[L];
  alignas(L > 1 ? 64 : 4) int32_t sent_at_zero[L];
  begin_sweep<kPeaks>(p, b, lanes, s, sent_at_zero);
  for (int l = 0; l < L; ++l) step_time[l] = 0, inexact[l] = 0;
  for (int32_t turn = 0; turn < p.scheduled; ++turn) {
    const int32_t op = p.order[turn];
    const uint8_t* place = b.place + lanes.place(p.op_row[op]);
    const Number* compute = p.compute + static_cast<size_t>(op) * p.devices;
    alignas(L > 1 ? 64 : alignof(Number)) Number ready[L];
    for (int l = 0; l < L; ++l) s.device[l] = place[l], ready[l] = 0;
    for (int32_t read = p.first_read[op]; read < p.first_read[op + 1]; ++read) {
      const Number* arrival = b.arrival + lanes.slot(p.read_slot[read]);
      for (int l = 0; l < L; ++l) ready[l] = larger(ready[l], arrival[l]);
    }
    alignas(L > 1 ? 64 : 4) int32_t is_tied[L];  // it ends when the device's op before it ended, or at time 0
  PLACEWRIGHT_INDEPENDENT
    for (int l = 0; l < L; ++l) {
      const int32_t q = lanes.state(s.device[l]) + l;
      const Number before = b.device_free[q], seconds = compute[s.device[l]];
      const Number end = larger(ready[l], before) + seconds;
      is_tied[l] = is_tied_end(before, end, seconds);
      b.device_free[q] = end;
      s.end[l] = end;
      step_time[l] = larger(step_time[l], end);
    }
    alignas(L > 1 ? 64 : 8) int64_t kept_low[L], kept_high[L];
    if constexpr (kPeaks) count_memory(p, b, lanes, s, op, kept_low, kept_high);
    for (int32_t tensor = p.first_tensor[op]; tensor < p.first_tensor[op + 1]; ++tensor) {
      const int first = p.first_edge[tensor], last = p.first_edge[tensor + 1];
      const Number* transfer = p.transfer + static_cast<size_t>(tensor) * p.classes;
      if constexpr (kPeaks) {
        for (int l = 0; l < L; ++l) s.local_readers[l] = 0, s.is_sent[l] = 0;
      }
      if (last - first == 1) {
        make_for_one_reader<kPeaks>(p, b, lanes, s, first, transfer);
      } else if (last > first) {
        make_for_readers<kPeaks>(p, b, lanes, s, first, last, transfer);
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
        const int32_t q = lanes.state(s.device[l]) + l;
        b.live_low[q] = kept_low[l];
        b.live_high[q] = kept_high[l];
      }
    }
  }
  for (int l = 0; l < L; ++l) step_times[l] = step_time[l], is_inexact[l] = inexact[l];
}

}  // namespace placewright
