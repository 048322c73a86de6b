// The stream of records that the GPU's lanes read, for one order of a problem's ops.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/lane_layout.hpp"
#include "simulator/lane_records.hpp"

namespace placewright {

struct LaneStream {
  explicit LaneStream(const LaneLayout& layout);

  bool is_one_channel;  // all links are of one class, and each device sends over one channel of its own
  bool is_wide;         // counts of bytes need 64 bits
  int64_t unit;         // bytes: the greatest common divisor of all sizes
  int time_exponent;    // times in records are seconds divided by 2 to this power
  // `ResidentRecord`s, ops without a turn, ops in their order, and an empty record, which is loaded ahead.
  std::vector<uint32_t> words;
};

}  // namespace placewright
