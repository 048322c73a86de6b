// The records that a thread of the GPU's lanes reads: one per op, one after the other, in the order of the sweep.
//
// All threads of a warp read the same record at the same time, in quads of 16 bytes that follow each other. An op's
// record is an `OpRecord`, its seconds on each device, its reads, and of each tensor a `TensorRecord`, the seconds of a
// transfer over each class of links unless there is one class, and its edges. `lane_stream.cpp` writes them.
#pragma once

#include "simulator/lane_memory.hpp"

namespace placewright {

// A stored arrival is the bits of a float32 below 2^-63, for times are scaled by a power of two: the three highest bits
// are free. They say what the read does to memory: it receives the tensor's copy, and gives back bytes in the lower and
// in the upper bound.
constexpr uint32_t kReceived = 1u << 31, kReleasedLow = 1u << 30, kReleasedHigh = 1u << 29;
constexpr uint32_t kTimeBits = kReleasedHigh - 1;
constexpr int kTimeExponent = -63;

// Of `TensorRecord::edges`: the count; an output; what the last read gives back where the tensor was made, and, two
// bits lower, on other devices.
constexpr uint32_t kEdgeCount = (1u << 24) - 1, kIsOutput = 1u << 24;
constexpr uint32_t kReleasedBits = kReleasedLow | kReleasedHigh;
constexpr int kRemoteShift = 2;

// Bytes are counted in units of their greatest common divisor: uint32 where all of them fit, else uint64.
template <typename Count>
struct alignas(16) OpRecord {
  uint32_t row;      // of `place`: where the op's device stands
  uint32_t quads;    // of the whole record
  uint32_t reads, tensors;
  Count start_low, start_high;  // workspace and outputs that alias nothing; workspace and all outputs
  Count workspace;
};

template <typename Count>
struct ReadRecord {
  uint32_t slot;  // where its arrival is stored
  Count bytes;    // of the tensor
};

template <typename Count>
struct alignas(16) TensorRecord {
  uint32_t edges;
  float transfer;  // seconds, where there is one class of links
  Count low, high;  // bytes that end with the op when nothing reads them; of an op without a turn: all bytes, in both
};

struct EdgeRecord {
  uint32_t row;   // of the reading op
  uint32_t slot;  // where its arrival is stored
};

// Reads and edges come in pairs; the last may be half empty.
template <typename Record>
struct alignas(16) RecordPair {
  Record first, second;
};

template <typename Count>
struct alignas(16) ResidentRecord {
  uint32_t row;
  Count bytes;
};

}  // namespace placewright
