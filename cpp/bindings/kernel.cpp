// Python bindings of the kernels: one Kernel per problem, which evaluates plans.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "arrays.hpp"
#include "bindings/lanes.hpp"
#include "bindings/workspaces.hpp"
#include "problem_layout.hpp"
#include "annealing/annealing.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {

class Kernel {
 public:
  explicit Kernel(const nb::object& arrays)
      : layout_(read_layout(arrays)), has_lanes_(LaneLayout::applies_to(layout_)), pool_(layout_) {}

  // Sets the costs of fused groups; needed before plans with fused groups are evaluated. They are set
  // once: other threads may be reading them by the time that a second one sets them.
  void set_fused_parts(const nb::object& parts, const Row<int64_t>& reads, const Row<int8_t>& role) {
    if (!parts_.is_set) parts_ = read_parts(parts, reads, role);
  }
  bool has_fused_parts() const { return parts_.is_set; }

  nb::tuple judge(const Matrix<int32_t>& device, const std::optional<Matrix<double>>& priority,
                  const std::optional<Matrix<int64_t>>& staging, const std::optional<Matrix<int32_t>>& fusion,
                  bool in_order, bool overlap, bool step, bool period, int threads) {
    const size_t plans = device.shape(0);
    if (device.shape(1) != size_t(layout_.ops) ||
        (priority && (priority->shape(0) != plans || priority->shape(1) != size_t(layout_.ops))) ||
        (staging && (staging->shape(0) != plans || staging->shape(1) != size_t(layout_.devices))) ||
        (fusion && (fusion->shape(0) != plans || fusion->shape(1) != size_t(layout_.ops) || !parts_.is_set))) {
      throw nb::value_error("the kernel was given arrays of the wrong shape");
    }
    std::vector<double> step_time(plans), periods(plans);
    std::vector<int64_t> peak(plans * layout_.devices);
    std::atomic<size_t> next{0};
    std::exception_ptr failure;
    size_t failed = plans;
    std::mutex guard;
    const auto work = [&] {
      std::unique_ptr<KernelWorkspace> workspace = pool_.acquire();
      for (size_t p = next++; p < plans; p = next++) {
        const PlanView plan{device.data() + p * layout_.ops,
                            priority ? priority->data() + p * layout_.ops : nullptr,
                            staging ? staging->data() + p * layout_.devices : nullptr};
        try {
          check_placement(layout_, plan.device);
          const SimulationTarget target =
              prepare_target(*workspace, plan, fusion ? fusion->data() + p * layout_.ops : nullptr);
          if (step) {
            step_time[p] = target.event.run(target.plan, in_order, nullptr);
            std::copy(target.event.peak().begin(), target.event.peak().end(), peak.begin() + p * layout_.devices);
          }
          if (period) periods[p] = workspace->period.evaluate(target.layout, target.plan, overlap);
        } catch (...) {
          const std::lock_guard<std::mutex> lock(guard);
          if (p < failed) failed = p, failure = std::current_exception();  // the first plan's error
        }
      }
      pool_.recycle(std::move(workspace));
    };
    {
      nb::gil_scoped_release release;
      std::vector<std::thread> helpers;
      const int count = std::clamp<int>(threads, 1, static_cast<int>(std::max<size_t>(plans, 1)));
      for (int i = 1; i < count; ++i) helpers.emplace_back(work);
      work();
      for (std::thread& helper : helpers) helper.join();
    }
    raise_malformed(failure, failed);
    return nb::make_tuple(to_numpy<double>(std::move(step_time), {plans}),
                          to_numpy<double>(std::move(periods), {plans}),
                          to_numpy<int64_t>(std::move(peak), {plans, size_t(layout_.devices)}));
  }

  bool has_lanes() const { return has_lanes_; }

  // Plans that share one order, side by side: see `judge_in_lanes`.
  nb::tuple judge_lanes(const Matrix<int32_t>& device, const std::optional<Row<double>>& priority,
                        const std::optional<Row<int64_t>>& capacity, bool bounds, int threads) {
    if (!has_lanes_) throw nb::value_error("the lanes were given a problem that they cannot simulate");
    return judge_in_lanes(layout_, pool_, device, priority, capacity, bounds, threads);
  }

  MoveBlocks move_blocks(const Row<int32_t>& first, const Row<int32_t>& units, const Row<int32_t>& level) {
    MoveBlocks out;
    out.first = to_vector(first), out.units = to_vector(units), out.level = to_vector(level);
    out.derive(layout_);
    return out;
  }

  // One annealing chain per start plan, each on its own thread. Returns the best plans and where the
  // chains ended: devices, priorities and staging of each, and overflow and value of the best.
  nb::tuple anneal(const MoveBlocks& move_blocks, const AnnealingSettings& settings, const Matrix<int32_t>& device,
                 const std::optional<Matrix<double>>& priority, const std::optional<Matrix<int64_t>>& staging,
                 const std::vector<uint64_t>& seeds, const std::optional<Cube<double>>& device_probs) {
    const size_t plans = device.shape(0), ops = layout_.ops, devices = layout_.devices;
    const size_t units = move_blocks.resident.size();
    if (device.shape(1) != ops || seeds.size() != plans ||
        (priority && (priority->shape(0) != plans || priority->shape(1) != ops)) ||
        (staging && (staging->shape(0) != plans || staging->shape(1) != devices)) ||
        (device_probs && (device_probs->shape(0) != plans || device_probs->shape(1) != units ||
                          device_probs->shape(2) != devices))) {
      throw nb::value_error("the kernel was given arrays of the wrong shape");
    }
    std::vector<AnnealingResult> results(plans);
    std::exception_ptr failure;
    size_t failed = plans;
    std::mutex guard;
    const auto work = [&](size_t p) {
      std::unique_ptr<KernelWorkspace> workspace = pool_.acquire();
      OwnedPlan start;
      start.device.assign(device.data() + p * ops, device.data() + (p + 1) * ops);
      if (priority) start.priority.assign(priority->data() + p * ops, priority->data() + (p + 1) * ops);
      if (staging) start.staging.assign(staging->data() + p * devices, staging->data() + (p + 1) * devices);
      try {
        check_placement(layout_, start.device.data());
        DeviceProbs probs;
        if (device_probs)
          probs.assign(device_probs->data() + p * units * devices,
                       device_probs->data() + (p + 1) * units * devices);
        results[p] = placewright::anneal(layout_, move_blocks, workspace->event, start, settings, probs, seeds[p]);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(guard);
        if (p < failed) failed = p, failure = std::current_exception();
      }
      pool_.recycle(std::move(workspace));
    };
    {
      nb::gil_scoped_release release;
      std::vector<std::thread> helpers;
      for (size_t p = 1; p < plans; ++p) helpers.emplace_back(work, p);
      if (plans) work(0);
      for (std::thread& helper : helpers) helper.join();
    }
    raise_malformed(failure, failed);
    std::vector<int64_t> overflow;
    std::vector<double> value;
    for (const AnnealingResult& result : results) overflow.push_back(result.overflow), value.push_back(result.value);
    return nb::make_tuple(plan_arrays(results, &AnnealingResult::best), plan_arrays(results, &AnnealingResult::last),
                          to_numpy<int64_t>(std::move(overflow), {plans}), to_numpy<double>(std::move(value), {plans}));
  }

  // Moves of one plan as annealing samples them: the scout's features of each, and the change of cost.
  nb::tuple sample_moves(const MoveBlocks& move_blocks, const AnnealingSettings& settings,
                         const Matrix<int32_t>& device,
                         const std::optional<Matrix<double>>& priority, int count, uint64_t seed) {
    const size_t ops = layout_.ops;
    if (device.shape(0) != 1 || device.shape(1) != ops || (priority && priority->shape(1) != ops)) {
      throw nb::value_error("the kernel was given arrays of the wrong shape");
    }
    OwnedPlan start;
    start.device.assign(device.data(), device.data() + ops);
    if (priority) start.priority.assign(priority->data(), priority->data() + ops);
    check_placement(layout_, start.device.data());
    std::unique_ptr<KernelWorkspace> workspace = pool_.acquire();
    MoveSamples out = placewright::sample_moves(layout_, move_blocks, workspace->event, start, settings, count, seed);
    pool_.recycle(std::move(workspace));
    const size_t moves = out.change.size();
    return nb::make_tuple(to_numpy<float>(std::move(out.features), {moves, size_t(Scout::kFeatures)}),
                          to_numpy<double>(std::move(out.change), {moves}));
  }

  // One plan's step time, peaks and record: ops, transfers and memory as columns.
  nb::dict timeline(const Matrix<int32_t>& device, const std::optional<Matrix<double>>& priority,
                    const std::optional<Matrix<int64_t>>& staging, bool in_order) {
    const PlanView plan{device.data(), priority ? priority->data() : nullptr, staging ? staging->data() : nullptr};
    Record record;
    double step_time = 0.0;
    std::unique_ptr<KernelWorkspace> workspace = pool_.acquire();
    std::exception_ptr failure;
    {
      nb::gil_scoped_release release;
      try {
        check_placement(layout_, plan.device);
        step_time = workspace->event.run(plan, in_order, &record);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    raise_malformed(failure, 0);
    std::vector<int64_t> peak = workspace->event.peak();
    pool_.recycle(std::move(workspace));
    std::stable_sort(record.transfers.begin(), record.transfers.end(), [](const auto& x, const auto& y) {
      return x.start < y.start || (x.start == y.start && x.channel < y.channel);
    });
    using Transfer = Record::Transfer;
    using MemoryUse = Record::MemoryUse;
    nb::dict out;
    out["step_time"] = step_time;
    const size_t devices = peak.size(), ops = record.start.size();
    out["peak"] = to_numpy<int64_t>(std::move(peak), {devices});
    out["start"] = to_numpy<double>(std::move(record.start), {ops});
    out["end"] = to_numpy<double>(std::move(record.end), {ops});
    out["transfer_tensor"] = column<int32_t>(record.transfers, [](const Transfer& row) { return row.tensor; });
    out["transfer_source"] = column<int32_t>(record.transfers, [](const Transfer& row) { return row.source; });
    out["transfer_target"] = column<int32_t>(record.transfers, [](const Transfer& row) { return row.target; });
    out["transfer_channel"] = column<int32_t>(record.transfers, [](const Transfer& row) { return row.channel; });
    out["transfer_reader"] = column<int32_t>(record.transfers, [](const Transfer& row) { return row.reader; });
    out["transfer_start"] = column<double>(record.transfers, [](const Transfer& row) { return row.start; });
    out["transfer_end"] = column<double>(record.transfers, [](const Transfer& row) { return row.end; });
    out["memory_device"] = column<int32_t>(record.memory, [](const MemoryUse& row) { return row.device; });
    out["memory_time"] = column<double>(record.memory, [](const MemoryUse& row) { return row.time; });
    out["memory_used"] = column<int64_t>(record.memory, [](const MemoryUse& row) { return row.used; });
    return out;
  }

 private:
  // The problem that a plan is simulated on: the problem itself, or the one with its groups contracted.
  struct SimulationTarget {
    const ProblemLayout& layout;
    EventKernel& event;
    PlanView plan;
  };

  SimulationTarget prepare_target(KernelWorkspace& workspace, const PlanView& plan, const int32_t* fusion) const {
    if (!fusion) return {layout_, workspace.event, plan};
    if (!workspace.fused) workspace.fused = std::make_unique<FusedWorkspace>(layout_, parts_);
    Contraction& contraction = workspace.fused->contraction;
    contraction.contract(plan, fusion);
    workspace.fused->event.resize_buffers();
    return {contraction.layout(), workspace.fused->event, contraction.plan()};
  }

  template <typename T>
  static nb::object stack(const std::vector<AnnealingResult>& results, OwnedPlan AnnealingResult::* plan,
                          std::vector<T> OwnedPlan::* part) {
    std::vector<T> all;
    for (const AnnealingResult& result : results)
      all.insert(all.end(), (result.*plan.*part).begin(), (result.*plan.*part).end());
    if (all.empty()) return nb::none();
    const size_t width = all.size() / results.size();
    return nb::cast(to_numpy<T>(std::move(all), {results.size(), width}));
  }

  static nb::tuple plan_arrays(const std::vector<AnnealingResult>& results, OwnedPlan AnnealingResult::* plan) {
    return nb::make_tuple(stack(results, plan, &OwnedPlan::device), stack(results, plan, &OwnedPlan::priority),
                          stack(results, plan, &OwnedPlan::staging));
  }

  const ProblemLayout layout_;
  bool has_lanes_;
  FusedParts parts_;
  WorkspacePool pool_;
};

}  // namespace placewright

NB_MODULE(_kernel, m) {
  placewright::bind_lane_threads(m);
  nb::set_leak_warnings(false);  // problems cached for the whole process are no leaks
  using placewright::MoveBlocks;
  using placewright::Kernel;
  using placewright::ScoutNet;
  using placewright::AnnealingSettings;
  nb::class_<MoveBlocks>(m, "MoveBlocks");
  nb::class_<ScoutNet>(m, "ScoutNet")
      .def(nb::init<>())
      .def_rw("widths", &ScoutNet::widths)
      .def_rw("weights", &ScoutNet::weights)
      .def_rw("sharpness", &ScoutNet::sharpness)
      .def_rw("candidates", &ScoutNet::candidates)
      .def_rw("blind", &ScoutNet::blind);
  nb::class_<AnnealingSettings>(m, "AnnealingSettings")
      .def(nb::init<>())
      .def_rw("evaluations", &AnnealingSettings::evaluations)
      .def_rw("hot", &AnnealingSettings::hot)
      .def_rw("cold", &AnnealingSettings::cold)
      .def_rw("penalty", &AnnealingSettings::penalty)
      .def_rw("doublings", &AnnealingSettings::doublings)
      .def_rw("in_order", &AnnealingSettings::in_order)
      .def_rw("period", &AnnealingSettings::period)
      .def_rw("overlap", &AnnealingSettings::overlap)
      .def_rw("simulate_memory", &AnnealingSettings::simulate_memory)
      .def_rw("overflow_first", &AnnealingSettings::overflow_first)
      .def_rw("guided_share", &AnnealingSettings::guided_share)
      .def_rw("move_share", &AnnealingSettings::move_share)
      .def_rw("level_share", &AnnealingSettings::level_share)
      .def_rw("capacity", &AnnealingSettings::capacity)
      .def_rw("memory_margin", &AnnealingSettings::memory_margin)
      .def_rw("scout", &AnnealingSettings::scout);
  nb::class_<Kernel>(m, "Kernel")
      .def(nb::init<const nb::object&>(), "arrays"_a)
      .def_prop_ro("has_lanes", &Kernel::has_lanes)
      .def("judge_lanes", &Kernel::judge_lanes, "device"_a, "priority"_a.none(), "capacity"_a.none(), "bounds"_a,
           "threads"_a)
      .def("judge", &Kernel::judge, "device"_a, "priority"_a.none(), "staging"_a.none(), "fusion"_a.none(),
           "in_order"_a, "overlap"_a, "step"_a, "period"_a, "threads"_a)
      .def("set_fused_parts", &Kernel::set_fused_parts, "parts"_a, "reads"_a, "role"_a)
      .def_prop_ro("has_fused_parts", &Kernel::has_fused_parts)
      .def("move_blocks", &Kernel::move_blocks, "first"_a, "units"_a, "level"_a)
      .def("anneal", &Kernel::anneal, "blocks"_a, "settings"_a, "device"_a, "priority"_a.none(), "staging"_a.none(),
           "seeds"_a, "device_probs"_a.none() = nb::none())
      .def("sample_moves", &Kernel::sample_moves, "blocks"_a, "settings"_a, "device"_a, "priority"_a.none(), "count"_a,
           "seed"_a)
      .def("timeline", &Kernel::timeline, "device"_a, "priority"_a.none(), "staging"_a.none(), "in_order"_a);
}
