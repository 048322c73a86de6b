// One plan a thread: what each thread of the GPU's lane kernel does. The host runs the same as a serial loop.
//
// So that threads seldom wait: all that does not depend on the plan comes from one stream of records; arrivals and
// devices of ops bypass the first cache, so that records stay there; an op's record and device are loaded an op ahead;
// the state of a plan is in shared memory, where the columns of a warp's threads lie side by side.
//
// Times are only added up and compared, so a float32 time differs from the exact one by at most the number of additions
// on the longest path times 2^-24, as a share. Bytes are integers, and the bounds of the peaks do not depend on times.
#pragma once

#include "simulator/lane_records.hpp"

#if !defined(PLACEWRIGHT_MOST_READERS)
#define PLACEWRIGHT_MOST_READERS 4
#endif
#if !defined(PLACEWRIGHT_READS)
#define PLACEWRIGHT_READS 2
#endif

namespace placewright {

// What a kernel is given besides the table: addresses and counts that every op needs.
struct LaneBatch {
  const char* records;   // `ResidentRecord`s, then the records of ops without a turn, then of the others
  const uint8_t* place;  // rows × plans: devices
  uint32_t* arrival;     // slots × threads: `kTimeBits` and the flags of a read
  uint32_t plans, threads;
};

// The table of 64-bit numbers with everything else. Python fills it by these names.
#define PLACEWRIGHT_LANE_COUNTS(F) \
  F(devices) F(channels) F(classes) F(scheduled) F(fixed) F(residents) F(is_graph_order) F(unit) F(time_exponent)
#define PLACEWRIGHT_LANE_ARRAYS(F) \
  F(int32_t, channel_of) F(int32_t, class_of) F(float, step_time) F(uint8_t, is_tied) F(int64_t, low) F(int64_t, high)
#define PLACEWRIGHT_COUNT_FIELD(name) k_##name,
#define PLACEWRIGHT_ARRAY_FIELD(type, name) k_##name,
enum LaneField {
  PLACEWRIGHT_LANE_COUNTS(PLACEWRIGHT_COUNT_FIELD) PLACEWRIGHT_LANE_ARRAYS(PLACEWRIGHT_ARRAY_FIELD) k_lane_fields
};

PLACEWRIGHT_DEVICE uint32_t in_quads(uint32_t count, uint32_t bytes) { return (count * bytes + 15) / 16; }

// The state of a plan in shared memory: pairs of counts per device, and times.
template <typename Count>
struct alignas(2 * sizeof(Count)) CountPair {
  Count low, high;
};
struct alignas(8) Clock {
  float device, channel;  // when each is free
};

PLACEWRIGHT_DEVICE int64_t state_bytes(bool peaks, bool one_channel, int64_t count_bytes, int64_t devices,
                                       int64_t channels) {
  return (peaks ? devices * 4 * count_bytes : 0) + (one_channel ? devices * 8 : (devices + channels) * 4) + devices * 4;
}

// The sweep of one plan. `kOneChannel`: all links are of one class, and each device sends over one channel of its own.
template <bool kPeaks, bool kOneChannel, typename Count>
struct ThreadSweep {
  using OpRecord = placewright::OpRecord<Count>;
  using TensorRecord = placewright::TensorRecord<Count>;
  using ReadPair = RecordPair<ReadRecord<Count>>;
  using EdgePair = RecordPair<EdgeRecord>;

  const LaneBatch& b;
  const char* place;     // of this plan
  char* arrival;         // of this thread
  uint32_t slot_stride;  // bytes
  uint32_t block, devices;
  CountPair<Count>*live, *peak;  // devices; all of them columns of the block's threads
  Clock* clock;                  // devices, where each has one channel
  float *device_free, *channel_free;
  float* at;  // devices: when each has the tensor at hand
  const int32_t *channel_of, *class_of;
  uint32_t classes;

  // The op at hand.
  uint32_t device;
  float end, free;       // `free`: the device's channel
  bool is_local, is_sent;  // the tensor just made has a reader where it was made, and elsewhere

  PLACEWRIGHT_DEVICE ThreadSweep(const LaneBatch& batch, const int64_t* table, uint32_t thread, char* state,
                                 uint32_t block_threads, uint32_t lane)
      : b(batch),
        arrival(reinterpret_cast<char*>(opaque(batch.arrival + thread))),
        slot_stride(4 * batch.threads),
        block(block_threads) {
    devices = static_cast<uint32_t>(table[k_devices]), classes = static_cast<uint32_t>(table[k_classes]);
    const uint32_t size = devices * block;
    if constexpr (kPeaks) {
      live = reinterpret_cast<CountPair<Count>*>(state) + lane, peak = live + size;
      state += 2 * size * sizeof(CountPair<Count>);
    }
    float* floats = reinterpret_cast<float*>(state) + lane;
    if constexpr (kOneChannel) {
      clock = reinterpret_cast<Clock*>(state) + lane;
      at = floats + 2 * size;
    } else {
      channel_of = array_at<const int32_t>(table[k_channel_of]), class_of = array_at<const int32_t>(table[k_class_of]);
      at = floats, device_free = at + size, channel_free = device_free + size;
    }
  }

  PLACEWRIGHT_DEVICE uint32_t device_of(uint32_t row) const {
    return load_device(reinterpret_cast<const uint8_t*>(place + static_cast<uint64_t>(row) * b.plans));
  }
  PLACEWRIGHT_DEVICE uint32_t* slot(uint32_t number) const {
    return reinterpret_cast<uint32_t*>(arrival + static_cast<uint64_t>(number) * slot_stride);
  }

  // A tensor with one reader: at most one send.
  PLACEWRIGHT_DEVICE void make_for_one_reader(const TensorRecord& tensor, const char* edges) {
    const EdgeRecord edge = load_edge(edges, 0);
    const bool remote = device_of(edge.row) != device;
    const float sent = later(free, end) + tensor.transfer;
    uint32_t word = as_word(remote ? sent : end);
    free = remote ? sent : free;
    if constexpr (kPeaks) {
      word |= remote ? kReceived | (tensor.edges << kRemoteShift & kReleasedBits) : tensor.edges & kReleasedBits;
    }
    is_local = !remote, is_sent = remote;
    store_arrival(slot(edge.slot), word);
  }

  // A tensor with a few readers: the times of all sends that there may be, then each reader's own.
  template <uint32_t kReaders>
  PLACEWRIGHT_DEVICE void make_for_few_readers(const TensorRecord& tensor, const char* edges) {
    uint32_t slots[kReaders + 1], bits[kReaders + 1];
    float sent[kReaders];
    uint32_t receivers = 0;
    PLACEWRIGHT_UNROLL
    for (uint32_t k = 0; k < kReaders; k += 2) {
      const EdgePair pair = load_record<EdgePair>(edges + 8 * k);
      slots[k] = pair.first.slot, slots[k + 1] = pair.second.slot;
      bits[k] = 1u << device_of(pair.first.row);
      bits[k + 1] = k + 1 < kReaders ? 1u << device_of(pair.second.row) : 0;
    }
    const uint32_t own = 1u << device;
    PLACEWRIGHT_UNROLL
    for (uint32_t k = 0; k < kReaders; ++k) receivers |= bits[k];
    is_local = receivers & own;
    receivers &= ~own;
    is_sent = receivers != 0;
    sent[0] = later(free, end) + tensor.transfer;
    PLACEWRIGHT_UNROLL
    for (uint32_t k = 1; k < kReaders; ++k) sent[k] = sent[k - 1] + tensor.transfer;
    const uint32_t sends = count_bits(receivers);
    PLACEWRIGHT_UNROLL
    for (uint32_t k = 0; k < kReaders; ++k) free = sends > k ? sent[k] : free;
    uint32_t local_bits = 0, remote_bits = 0;
    if constexpr (kPeaks) {
      local_bits = tensor.edges & (is_sent ? kReleasedLow : kReleasedBits);
      remote_bits = tensor.edges << kRemoteShift & kReleasedBits;
    }
    uint32_t seen = 0;
    PLACEWRIGHT_UNROLL
    for (uint32_t k = 0; k < kReaders; ++k) {
      const uint32_t before = count_bits(receivers & (bits[k] - 1));  // sends before the reader's
      float time = sent[0];
      PLACEWRIGHT_UNROLL
      for (uint32_t other = 1; other < kReaders; ++other) time = before >= other ? sent[other] : time;
      const bool remote = bits[k] != own;
      uint32_t word = as_word(remote ? time : end);
      if constexpr (kPeaks) {
        uint32_t rest = 0;
        PLACEWRIGHT_UNROLL
        for (uint32_t other = k + 1; other < kReaders; ++other) rest |= bits[other];
        if (!(bits[k] & rest)) word |= remote ? remote_bits : local_bits;
        if (remote && !(bits[k] & seen)) word |= kReceived;
        seen |= bits[k];
      }
      store_arrival(slot(slots[k]), word);
    }
  }

  // The edge of a number; the records are in pairs of 16 bytes.
  static PLACEWRIGHT_DEVICE EdgeRecord load_edge(const char* edges, uint32_t number) {
    EdgeRecord edge;
#if defined(__CUDA_ARCH__)
    const uint2 words = __ldg(reinterpret_cast<const uint2*>(edges) + number);
    edge.row = words.x, edge.slot = words.y;
#else
    memcpy(&edge, edges + number * sizeof edge, sizeof edge);
#endif
    return edge;
  }

  // Any number of readers, over any links: sends in the order of the receiving devices, each device once.
  PLACEWRIGHT_DEVICE void make_for_readers(const TensorRecord& tensor, const char* transfer, const char* edges) {
    const uint32_t count = tensor.edges & kEdgeCount, own = 1u << device;
    uint32_t receivers = 0;
    PLACEWRIGHT_NO_UNROLL
    for (uint32_t k = count; k-- > 0;) {
      const EdgeRecord edge = load_edge(edges, k);
      const uint32_t bit = 1u << device_of(edge.row);
      if constexpr (kPeaks) store_arrival(slot(edge.slot), receivers & bit ? 0 : kReleasedBits);
      receivers |= bit;
    }
    is_local = receivers & own;
    receivers &= ~own;
    is_sent = receivers != 0;
    PLACEWRIGHT_NO_UNROLL
    for (uint32_t sends = receivers; sends; sends &= sends - 1) {
      const uint32_t target = lowest_bit(sends);
      if constexpr (kOneChannel) {
        free = later(free, end) + tensor.transfer;
        at[target * block] = free;
      } else {
        const uint32_t pair = device * devices + target;
        float& channel = channel_free[channel_of[pair] * block];
        channel = later(channel, end) + load_seconds(transfer, class_of[pair]);
        at[target * block] = channel;
      }
    }
    uint32_t local_bits = 0, remote_bits = 0, seen = 0;
    if constexpr (kPeaks) {
      local_bits = tensor.edges & (is_sent ? kReleasedLow : kReleasedBits);
      remote_bits = tensor.edges << kRemoteShift & kReleasedBits;
    }
    at[device * block] = end;
    PLACEWRIGHT_NO_UNROLL
    for (uint32_t k = 0; k < count; ++k) {
      const EdgeRecord edge = load_edge(edges, k);
      const uint32_t target = device_of(edge.row);
      uint32_t* stored = slot(edge.slot);
      uint32_t word = as_word(at[target * block]);
      if constexpr (kPeaks) {
        const uint32_t bit = 1u << target;
        const bool remote = target != device;
        word |= load_arrival(stored) & (remote ? remote_bits : local_bits);
        if (remote && !(seen & bit)) word |= kReceived;
        seen |= bit;
      }
      store_arrival(stored, word);
    }
  }

  // Hands over a tensor; returns where the next one's record begins.
  template <uint32_t kMostReaders>
  PLACEWRIGHT_DEVICE const char* make(const TensorRecord& tensor, const char* next) {
    const uint32_t count = tensor.edges & kEdgeCount;
    const char* transfer = next;
    if constexpr (!kOneChannel) next += 16 * in_quads(classes, 4);
    is_local = is_sent = false;
    if (count > kMostReaders) {
      make_for_readers(tensor, transfer, next);
    } else if constexpr (kMostReaders > 0) {
      if (count == 1) make_for_one_reader(tensor, next);
      if constexpr (kMostReaders >= 2) if (count == 2) make_for_few_readers<2>(tensor, next);
      if constexpr (kMostReaders >= 3) if (count == 3) make_for_few_readers<3>(tensor, next);
      if constexpr (kMostReaders >= 4) if (count == 4) make_for_few_readers<4>(tensor, next);
    }
    return next + 16 * in_quads(count, sizeof(EdgeRecord));
  }

  // Time 0: resident bytes, and what takes no turn is handed over in the order of tensors. Returns the next record, and
  // whether anything was sent.
  PLACEWRIGHT_DEVICE const char* begin(const int64_t* table, bool& is_any_sent) {
    const char* next = b.records;
    PLACEWRIGHT_NO_UNROLL
    for (uint32_t q = 0; q < devices * block; q += block) {
      if constexpr (kPeaks) live[q] = peak[q] = CountPair<Count>{0, 0};
      if constexpr (kOneChannel) {
        clock[q] = Clock{0, 0};
      } else {
        device_free[q] = 0;
      }
    }
    if constexpr (!kOneChannel) {
      const uint32_t channels = static_cast<uint32_t>(table[k_channels]);
      PLACEWRIGHT_NO_UNROLL
      for (uint32_t q = 0; q < channels * block; q += block) channel_free[q] = 0;
    }
    const uint32_t residents = static_cast<uint32_t>(table[k_residents]), fixed = static_cast<uint32_t>(table[k_fixed]);
    PLACEWRIGHT_NO_UNROLL
    for (uint32_t k = 0; k < residents; ++k, next += sizeof(ResidentRecord<Count>)) {
      if constexpr (kPeaks) {
        const ResidentRecord<Count> resident = load_record<ResidentRecord<Count>>(next);
        live[device_of(resident.row) * block].low += resident.bytes;
      }
    }
    if constexpr (kPeaks) {
      PLACEWRIGHT_NO_UNROLL
      for (uint32_t q = 0; q < devices * block; q += block) live[q].high = peak[q].low = live[q].low;
    }
    is_any_sent = false, end = 0;
    PLACEWRIGHT_NO_UNROLL
    for (uint32_t k = 0; k < fixed; ++k) {
      const OpRecord op = load_record<OpRecord>(next);
      next += sizeof op;
      device = device_of(op.row);
      if constexpr (kOneChannel) free = clock[device * block].channel;
      PLACEWRIGHT_NO_UNROLL
      for (uint32_t number = 0; number < op.tensors; ++number) {
        const TensorRecord tensor = load_record<TensorRecord>(next);
        next = make<0>(tensor, next + sizeof tensor);
        is_any_sent |= is_sent;
        if constexpr (kPeaks) {
          const bool is_output = tensor.edges & kIsOutput;
          CountPair<Count> bytes = live[device * block];
          if (is_local || is_output) bytes.low += tensor.low;
          if (is_local || is_sent || is_output) bytes.high += tensor.low, peak[device * block].low += tensor.low;
          live[device * block] = bytes;
        }
      }
      if constexpr (kOneChannel) clock[device * block].channel = free;
    }
    if constexpr (kPeaks) {
      PLACEWRIGHT_NO_UNROLL
      for (uint32_t q = 0; q < devices * block; q += block) peak[q].high = live[q].high;
    }
    return next;
  }

  // Returns the step time; `is_inexact`: hand-overs of one instant may be served in another order.
  PLACEWRIGHT_DEVICE float run(const int64_t* table, bool& is_inexact) {
    bool is_any_sent;
    const char* next = begin(table, is_any_sent);
    const bool is_graph_order = table[k_is_graph_order];
    float step_time = 0;
    is_inexact = false;
    OpRecord ahead = load_record<OpRecord>(next);
    uint32_t device_ahead = device_of(ahead.row);
    PLACEWRIGHT_NO_UNROLL
    for (uint32_t turn = static_cast<uint32_t>(table[k_scheduled]); turn > 0; --turn) {
      const OpRecord op = ahead;
      const char* here = next + sizeof op;
      device = device_ahead;
      next += 16 * op.quads;
      ahead = load_record<OpRecord>(next);  // after the last record there is an empty one
      device_ahead = device_of(ahead.row);
      const float seconds = load_seconds(here, device);
      here += 16 * in_quads(devices, 4);
      float ready = 0;
      Count received = 0, gone_low = 0, gone_high = 0;
      PLACEWRIGHT_NO_UNROLL
      for (int32_t rest = static_cast<int32_t>(op.reads); rest > 0; rest -= PLACEWRIGHT_READS) {
        read_arrivals(here, rest, ready, received, gone_low, gone_high);
      }
      const uint32_t q = device * block;
      float before;
      if constexpr (kOneChannel) {
        before = clock[q].device, free = clock[q].channel;
      } else {
        before = device_free[q];
      }
      end = later(ready, before) + seconds;
      step_time = later(step_time, end);
      // It ends when the device's op before it ended, or at time 0. Rounded times cannot tell: this says yes too often.
      const bool is_tied = seconds <= before * (1.0f / (1 << 23));
      if (is_graph_order ? is_any_sent && end == 0 : is_tied && op.tensors > 0) is_inexact = true;
      CountPair<Count> kept{0, 0};
      if constexpr (kPeaks) {
        const CountPair<Count> bytes = live[q], most = peak[q];
        const Count low = bytes.low + op.start_low + received, high = bytes.high + op.start_high + received;
        peak[q] = CountPair<Count>{larger(most.low, low), larger(static_cast<Count>(most.high + received), high)};
        kept.low = low - op.workspace - gone_low, kept.high = high - op.workspace - gone_high;
      }
      PLACEWRIGHT_NO_UNROLL
      for (uint32_t number = 0; number < op.tensors; ++number) {
        const TensorRecord tensor = load_record<TensorRecord>(here);
        here = make<kOneChannel ? PLACEWRIGHT_MOST_READERS : 0>(tensor, here + sizeof tensor);
        if constexpr (kPeaks) {
          if (!is_local) kept.low -= tensor.low;
          if (!(is_local || is_sent)) kept.high -= tensor.high;
        }
      }
      if constexpr (kPeaks) live[q] = kept;
      if constexpr (kOneChannel) {
        clock[q] = Clock{end, free};
      } else {
        device_free[q] = end;
      }
    }
    return step_time;
  }

  // Up to `PLACEWRIGHT_READS` of an op's `rest` reads; all loads come first.
  PLACEWRIGHT_DEVICE void read_arrivals(const char*& here, int32_t rest, float& ready, Count& received, Count& gone_low,
                                        Count& gone_high) const {
    uint32_t word[PLACEWRIGHT_READS];
    Count bytes[PLACEWRIGHT_READS];
    PLACEWRIGHT_UNROLL
    for (int32_t k = 0; k < PLACEWRIGHT_READS; k += 2) {
      word[k] = word[k + 1] = 0, bytes[k] = bytes[k + 1] = 0;
      if (k == 0 || k < rest) {
        const ReadPair pair = load_record<ReadPair>(here);
        here += sizeof pair;
        bytes[k] = pair.first.bytes, bytes[k + 1] = pair.second.bytes;
        word[k] = load_arrival(slot(pair.first.slot));
        if (k + 1 < rest) word[k + 1] = load_arrival(slot(pair.second.slot));
      }
    }
    PLACEWRIGHT_UNROLL
    for (uint32_t k = 0; k < PLACEWRIGHT_READS; ++k) {
      ready = later(ready, as_time(word[k] & kTimeBits));
      if constexpr (kPeaks) {
        if (word[k] & kReceived) received += bytes[k];
        if (word[k] & kReleasedLow) gone_low += bytes[k];
        if (word[k] & kReleasedHigh) gone_high += bytes[k];
      }
    }
  }
};

// The plans of one thread: every `threads`-th. `state` is its block's; the thread is `lane` of `block` there.
template <bool kPeaks, bool kOneChannel, typename Count>
PLACEWRIGHT_DEVICE void run_thread(const int64_t* table, const LaneBatch& batch, uint32_t thread, char* state,
                                   uint32_t block, uint32_t lane) {
  ThreadSweep<kPeaks, kOneChannel, Count> sweep(batch, table, thread, state, block, lane);
  // In two steps: the exponent may exceed 127.
  const int exponent = static_cast<int>(table[k_time_exponent]);
  const float scale = power_of_two(exponent / 2), rest = power_of_two(exponent - exponent / 2);
  for (uint32_t plan = thread; plan < batch.plans; plan += batch.threads) {
    sweep.place = reinterpret_cast<const char*>(opaque(batch.place + plan));
    bool is_inexact;
    const float step_time = sweep.run(table, is_inexact);
    array_at<float>(table[k_step_time])[plan] = step_time * scale * rest;
    array_at<uint8_t>(table[k_is_tied])[plan] = is_inexact;
    if constexpr (kPeaks) {
      int64_t *low = array_at<int64_t>(table[k_low]) + plan, *high = array_at<int64_t>(table[k_high]) + plan;
      for (uint32_t device = 0; device < sweep.devices; ++device, low += batch.plans, high += batch.plans) {
        *low = static_cast<int64_t>(sweep.peak[device * block].low) * table[k_unit];
        *high = static_cast<int64_t>(sweep.peak[device * block].high) * table[k_unit];
      }
    }
  }
}

}  // namespace placewright
