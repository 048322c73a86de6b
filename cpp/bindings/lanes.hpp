// Python bindings of the lanes: batches of plans side by side, and one plan a thread.
#pragma once

#include <exception>
#include <optional>

#include "bindings/workspaces.hpp"
#include "numpy.hpp"
#include "problem_layout.hpp"

namespace placewright {

// Step times and overflow of plans that share one order, side by side (`LaneKernel`); in order, nothing streamed or
// fused. A plan that may not fit, or whose hand-overs are tied, is simulated event by event. Without a capacity, the
// overflow is left at 0. Also returns bounds of the peaks, if wanted, and the number of plans simulated.
nb::tuple judge_in_lanes(const ProblemLayout& layout, WorkspacePool& pool, const Matrix<int32_t>& device,
                         const std::optional<Row<double>>& priority, const std::optional<Row<int64_t>>& capacity,
                         bool bounds, int threads);

// A malformed plan becomes ValueError(reason, plan, op).
void raise_malformed(const std::exception_ptr& failure, size_t plan);

// Adds what `simulator/gpu_lanes.py` needs to a module.
void bind_lane_threads(nb::module_& m);

}  // namespace placewright
