#include "bindings/lanes.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

namespace placewright {

nb::tuple judge_in_lanes(const ProblemLayout& layout, WorkspacePool& pool, const Matrix<int32_t>& device,
                         const std::optional<Row<double>>& priority, const std::optional<Row<int64_t>>& capacity,
                         bool bounds, int threads) {
  const size_t plans = device.shape(0), ops = layout.ops, devices = layout.devices;
  if (device.shape(1) != ops || (priority && priority->size() != ops) ||
      (capacity && capacity->size() != devices)) {
    throw nb::value_error("the lanes were given arrays of the wrong shape");
  }
  std::vector<double> step_time(plans);
  std::vector<int64_t> overflow(plans, 0);
  std::vector<int64_t> low(bounds ? plans * devices : 0), high(low.size());
  std::atomic<size_t> next{0}, simulated{0};
  std::exception_ptr failure;
  size_t failed = plans;
  std::mutex guard;
  const auto work = [&] {
    std::unique_ptr<KernelWorkspace> workspace = pool.acquire();
    if (!workspace->lanes) workspace->lanes = std::make_unique<LaneKernel>(layout);
    workspace->lanes->set_order(priority ? priority->data() : nullptr);
    LaneKernel::Verdict verdict;
    constexpr size_t kLanes = LaneKernel::kLanes;
    for (size_t block = next++; block * kLanes < plans; block = next++) {
      const size_t first = block * kLanes, count = std::min(kLanes, plans - first);
      size_t at = first;
      try {
        const int32_t* rows[kLanes];
        for (size_t lane = 0; lane < kLanes; ++lane) {
          at = first + std::min(lane, count - 1);  // the last plan fills what is left
          rows[lane] = device.data() + at * ops;
          check_placement(layout, rows[lane]);
        }
        workspace->lanes->run(rows, capacity || bounds, verdict);
        for (size_t lane = 0; lane < count; ++lane) {
          at = first + lane;
          step_time[at] = verdict.step_time[lane];
          bool fits = true;
          for (size_t place = 0; place < devices; ++place) {
            if (capacity) fits = fits && verdict.high[place * kLanes + lane] <= capacity->data()[place];
            if (bounds) {
              low[at * devices + place] = verdict.low[place * kLanes + lane];
              high[at * devices + place] = verdict.high[place * kLanes + lane];
            }
          }
          if (verdict.exact[lane] && fits) continue;
          ++simulated;
          const PlanView plan{rows[lane], priority ? priority->data() : nullptr, nullptr};
          step_time[at] = workspace->event.run(plan, true, nullptr);
          for (size_t place = 0; capacity && place < devices; ++place) {
            overflow[at] += std::max<int64_t>(0, workspace->event.peak()[place] - capacity->data()[place]);
          }
        }
      } catch (...) {
        const std::lock_guard<std::mutex> lock(guard);
        if (at < failed) failed = at, failure = std::current_exception();  // the first plan's error
      }
    }
    pool.recycle(std::move(workspace));
  };
  {
    nb::gil_scoped_release release;
    std::vector<std::thread> helpers;
    const int blocks = static_cast<int>((plans + LaneKernel::kLanes - 1) / LaneKernel::kLanes);
    const int count = std::clamp(threads, 1, std::max(blocks, 1));
    for (int i = 1; i < count; ++i) helpers.emplace_back(work);
    if (plans) work();
    for (std::thread& helper : helpers) helper.join();
  }
  raise_malformed(failure, failed);
  const size_t rows = bounds ? plans : 0;
  return nb::make_tuple(to_numpy<double>(std::move(step_time), {plans}),
                        to_numpy<int64_t>(std::move(overflow), {plans}), to_numpy<int64_t>(std::move(low), {rows, devices}),
                        to_numpy<int64_t>(std::move(high), {rows, devices}), simulated.load());
}

void raise_malformed(const std::exception_ptr& failure, size_t plan) {
  if (!failure) return;
  try {
    std::rethrow_exception(failure);
  } catch (const MalformedPlan& malformed) {
    static constexpr const char* kReasons[] = {"placement", "staging", "fusion"};
    const char* reason = kReasons[malformed.reason];
    PyErr_SetObject(PyExc_ValueError, nb::make_tuple(reason, plan, malformed.op).ptr());
    throw nb::python_error();
  }
}

}  // namespace placewright
