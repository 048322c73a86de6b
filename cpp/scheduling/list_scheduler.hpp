// List scheduling: estimated times and bytes of ops that are added one by one with their devices.
//
// HEFT, CPoP, m-ETF and m-SCT share this arithmetic. It is an estimate; the simulator decides.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "problem_layout.hpp"

namespace placewright {

class ListSchedule {
 public:
  // contended: whether transfers wait for their channel (as in the simulator) or not (as in the papers).
  // capacity: bytes of each device that may be used.
  ListSchedule(ProblemLayout layout, std::vector<int64_t> capacity, bool contended);

  // The devices that an op may still be put on.
  bool allowed(int op, int device) const;
  // When everything this op reads could be on each device.
  std::vector<double> ready(int op) const;
  // The allowed devices with memory for this op; if none has, where least is lacking.
  std::vector<uint8_t> choices(int op) const;
  // Of these devices the one on which this op would end first, in a gap or last.
  int first_to_finish(int op, const std::vector<uint8_t>& choices) const;
  // Put an op on a device: after its other ops, or in the first gap that is long enough.
  void add(int op, int device, bool insert);

  const ProblemLayout a;
  std::vector<int32_t> device;
  std::vector<double> start, end;
  std::vector<double> free;   // when each device has run all its ops
  std::vector<int64_t> used;  // bytes of each device

 private:
  using Gap = std::pair<double, double>;

  std::vector<int> unplaced(int op) const;
  void place_unit(int head, int place);
  double send_inputs(int op, int place);
  double earliest_start(int place, double ready, double seconds) const;
  void occupy_gap(int place, double begin, double finish);
  void allocate(int tensor, int place);
  void finish_op(int op, int place);
  void release(int storage, int readers);
  double transfer_seconds(int tensor, int from, int to) const;
  int last_gap(int place, double ready) const;

  const std::vector<int64_t> capacity_;
  const bool contended_;
  std::vector<int32_t> next_member_;  // of an op's unit, which is known by its first op, its head; or -1
  std::vector<int32_t> storage_root_;
  std::vector<int64_t> unit_bytes_, held_bytes_, readers_left_;
  std::vector<double> channel_free_, arrival_;
  std::vector<std::vector<Gap>> gaps_;
};

// m-ETF: of all ready ops and devices with memory left, always the pair that can start first. With each op's
// favourite child (-1 for none) m-SCT: a device that has just run an op waits for it, and takes another op first only
// if that one could by then start on any device.
void earliest_first(ListSchedule& schedule, const std::vector<double>& slowdown, const std::vector<int64_t>& rank,
                    const std::vector<int64_t>& favourite);

}  // namespace placewright
