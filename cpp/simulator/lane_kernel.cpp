#include "simulator/lane_kernel.hpp"

#include "clones.hpp"
#include "simulator/lane_sweep.hpp"

namespace placewright {

void LaneKernel::set_order(const double* priority) {
  if (!priority && layout_ && layout_->is_graph_order) return;
  layout_.emplace(a_, priority, nullptr);
  place_.resize(a_.ops * size_t{L});
  arrival_.resize(layout_->slots * L);
  use_.resize(layout_->slots * L);
  device_free_.resize(a_.devices * L);
  live_low_.resize(a_.devices * L), live_high_.resize(a_.devices * L);
  channel_free_.resize((a_.channels + 1) * L);
}

void LaneKernel::run(const int32_t* const* device, bool with_peaks, Verdict& verdict) {
  const int32_t* rows[L];
  for (int l = 0; l < L; ++l) rows[l] = device[l];
  uint8_t* place = place_.data();
  for (size_t op = 0, ops = a_.ops; op < ops; ++op) {
    for (int l = 0; l < L; ++l) place[op * L + l] = static_cast<uint8_t>(rows[l][op]);
  }
  verdict.low.resize(a_.devices * L), verdict.high.resize(a_.devices * L);
  LaneBuffers buffers;
  buffers.place = place_.data(), buffers.arrival = arrival_.data(), buffers.use = use_.data();
  buffers.device_free = device_free_.data(), buffers.at = nullptr, buffers.channel_free = channel_free_.data();
  buffers.live_low = live_low_.data(), buffers.live_high = live_high_.data();
  buffers.low = verdict.low.data(), buffers.high = verdict.high.data();
  alignas(64) double step_time[L];
  alignas(64) int32_t inexact[L];
  if (with_peaks) {
    sweep_with_peaks(buffers, step_time, inexact);
  } else {
    sweep_times(buffers, step_time, inexact);
  }
  for (int l = 0; l < L; ++l) verdict.step_time[l] = step_time[l], verdict.exact[l] = !inexact[l];
}

// The arrivals of one tensor are a local array: then nothing else can be the same memory, which makes the sweep faster.
PLACEWRIGHT_CLONES void LaneKernel::sweep_times(LaneBuffers buffers, double* step_time, int32_t* inexact) {
  alignas(64) double at[LaneLayout::kMaxDevices * L];
  buffers.at = at;
  sweep_lanes<false>(view(*layout_), buffers, step_time, inexact);
}

PLACEWRIGHT_CLONES void LaneKernel::sweep_with_peaks(LaneBuffers buffers, double* step_time, int32_t* inexact) {
  alignas(64) double at[LaneLayout::kMaxDevices * L];
  buffers.at = at;
  sweep_lanes<true>(view(*layout_), buffers, step_time, inexact);
}

}  // namespace placewright
