// One plan a thread: what each thread of the GPU's lane kernel does. The host runs the same as a serial loop.
//
// All arguments are one table of 64-bit numbers: counts, and the addresses of arrays. Python fills it by the names below,
// for tensors on a GPU or on the host alike.
#pragma once

#include "simulator/lane_sweep.hpp"

namespace placewright {

// Counts of `LaneProblem`, and of a batch: plans, and threads that share them.
#define PLACEWRIGHT_LANE_COUNTS(F) \
  F(devices) F(channels) F(classes) F(scheduled) F(fixed) F(resident_ops) F(is_graph_order)
#define PLACEWRIGHT_BATCH_COUNTS(F) F(plans) F(threads)
// Arrays of `LaneProblem`.
#define PLACEWRIGHT_LANE_ARRAYS(F)                                                                       \
  F(int32_t, order) F(int32_t, fixed_op) F(int32_t, resident_op) F(int32_t, op_row) F(uint8_t, is_resident) \
  F(int64_t, resident) F(int64_t, workspace) F(int64_t, start_bytes) F(int64_t, all_bytes) F(float, compute) \
  F(int32_t, first_tensor) F(int32_t, first_read) F(int32_t, read_slot) F(int32_t, read_tensor)          \
  F(int32_t, first_edge) F(int32_t, edge_row) F(int32_t, edge_slot) F(int64_t, sizes)                    \
  F(uint8_t, tensor_flags) F(float, transfer) F(int32_t, channel_of) F(int32_t, class_of)
// Arrays of a batch: rows × plans; slots × threads, twice; plans, twice; devices × plans, twice.
#define PLACEWRIGHT_BATCH_ARRAYS(F) \
  F(uint8_t, place) F(float, arrival) F(uint8_t, use) F(float, step_time) F(uint8_t, is_tied) F(int64_t, low) F(int64_t, high)

#define PLACEWRIGHT_COUNT_FIELD(name) k_##name,
#define PLACEWRIGHT_ARRAY_FIELD(type, name) k_##name,
enum LaneField {
  PLACEWRIGHT_LANE_COUNTS(PLACEWRIGHT_COUNT_FIELD) PLACEWRIGHT_BATCH_COUNTS(PLACEWRIGHT_COUNT_FIELD)
      PLACEWRIGHT_LANE_ARRAYS(PLACEWRIGHT_ARRAY_FIELD) PLACEWRIGHT_BATCH_ARRAYS(PLACEWRIGHT_ARRAY_FIELD) k_lane_fields
};

template <typename T>
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE T* array_at(int64_t address) {
  return reinterpret_cast<T*>(static_cast<size_t>(address));
}

// The state of a plan that a block of threads has in its shared memory: int64 per device, float per device and channel.
constexpr int32_t kStateInt64s = 4, kStateFloats = 2;

PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE int64_t state_bytes(int64_t devices, int64_t channels) {
  return devices * kStateInt64s * 8 + (devices * kStateFloats + channels) * 4;
}

// The plans of one thread: every `threads`-th. `state` is its block's; the thread is `lane` of `block` there.
template <bool kPeaks>
PLACEWRIGHT_DEVICE PLACEWRIGHT_INLINE void run_thread(const int64_t* table, int64_t thread, char* state, int32_t block,
                                                      int32_t lane) {
  LaneProblem<float> p;
#define PLACEWRIGHT_READ_COUNT(name) p.name = static_cast<int32_t>(table[k_##name]);
#define PLACEWRIGHT_READ_ARRAY(type, name) p.name = array_at<const type>(table[k_##name]);
  PLACEWRIGHT_LANE_COUNTS(PLACEWRIGHT_READ_COUNT)
  PLACEWRIGHT_LANE_ARRAYS(PLACEWRIGHT_READ_ARRAY)
  const int64_t plans = table[k_plans], threads = table[k_threads];
  const int32_t devices = p.devices;
  LaneBuffers<float> b;
  int64_t* bytes = reinterpret_cast<int64_t*>(state) + lane;
  const int64_t size = static_cast<int64_t>(devices) * block;
  b.live_low = bytes, b.live_high = bytes + size, b.low = bytes + 2 * size, b.high = bytes + 3 * size;
  float* seconds = reinterpret_cast<float*>(state + kStateInt64s * size * 8) + lane;
  b.device_free = seconds, b.at = seconds + size, b.channel_free = seconds + 2 * size;
  b.arrival = array_at<float>(table[k_arrival]) + thread;
  b.use = array_at<uint8_t>(table[k_use]) + thread;
  const ThreadLane lanes{static_cast<size_t>(plans), static_cast<size_t>(threads), block};
  for (int64_t plan = thread; plan < plans; plan += threads) {
    b.place = array_at<const uint8_t>(table[k_place]) + plan;
    float step_time;
    int32_t inexact;
    sweep_lanes<kPeaks>(p, b, lanes, &step_time, &inexact);
    array_at<float>(table[k_step_time])[plan] = step_time;
    array_at<uint8_t>(table[k_is_tied])[plan] = static_cast<uint8_t>(inexact);
    if constexpr (kPeaks) {
      int64_t *low = array_at<int64_t>(table[k_low]) + plan, *high = array_at<int64_t>(table[k_high]) + plan;
      for (int32_t device = 0; device < devices; ++device) {
        low[device * plans] = b.low[device * block];
        high[device * plans] = b.high[device * block];
      }
    }
  }
}

}  // namespace placewright
