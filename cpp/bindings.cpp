// The kernels as Python sees them: a Kernel is made once a problem and judges plans.
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
#include "contraction.hpp"
#include "event_kernel.hpp"
#include "layout.hpp"
#include "walk.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {

// What one thread needs to judge plans with fused groups.
struct FusedBench {
  FusedBench(const Layout& layout, const FusedParts& parts) : contraction(layout, parts), event(contraction.layout()) {}
  Contraction contraction;
  EventKernel event;
};

// What one thread needs to judge plans.
struct Workbench {
  explicit Workbench(const Layout& layout) : event(layout) {}
  EventKernel event;
  Period period;
  std::unique_ptr<FusedBench> fused;  // made when first needed
};

class Kernel {
 public:
  explicit Kernel(const nb::object& arrays) : layout_(read_layout(arrays)) {}

  // What fused groups are made of; needed before plans with fused groups are judged.
  void learn_fused(const nb::object& parts, const Row<int64_t>& reads, const Row<int8_t>& role) {
    parts_ = read_parts(parts, reads, role);
  }
  bool knows_fused() const { return parts_.known; }

  nb::tuple judge(const Matrix<int32_t>& device, const std::optional<Matrix<double>>& priority,
                  const std::optional<Matrix<int64_t>>& staging, const std::optional<Matrix<int32_t>>& fusion,
                  bool in_order, bool overlap, bool step, bool period, int threads) {
    const size_t plans = device.shape(0);
    if (device.shape(1) != size_t(layout_.ops) ||
        (priority && (priority->shape(0) != plans || priority->shape(1) != size_t(layout_.ops))) ||
        (staging && (staging->shape(0) != plans || staging->shape(1) != size_t(layout_.devices))) ||
        (fusion && (fusion->shape(0) != plans || fusion->shape(1) != size_t(layout_.ops) || !parts_.known))) {
      throw nb::value_error("the kernel was given arrays of the wrong shape");
    }
    std::vector<double> step_time(plans), periods(plans);
    std::vector<int64_t> peak(plans * layout_.devices);
    std::atomic<size_t> next{0};
    std::exception_ptr failure;
    size_t failed = plans;
    std::mutex guard;
    const auto work = [&] {
      std::unique_ptr<Workbench> bench = take();
      for (size_t p = next++; p < plans; p = next++) {
        const PlanView plan{device.data() + p * layout_.ops,
                            priority ? priority->data() + p * layout_.ops : nullptr,
                            staging ? staging->data() + p * layout_.devices : nullptr};
        try {
          check_placement(layout_, plan.device);
          const Shown shown = show(*bench, plan, fusion ? fusion->data() + p * layout_.ops : nullptr);
          if (step) {
            step_time[p] = shown.event.run(shown.plan, in_order, nullptr);
            std::copy(shown.event.peak().begin(), shown.event.peak().end(), peak.begin() + p * layout_.devices);
          }
          if (period) periods[p] = bench->period.evaluate(shown.layout, shown.plan, overlap);
        } catch (...) {
          const std::lock_guard<std::mutex> lock(guard);
          if (p < failed) failed = p, failure = std::current_exception();  // the first plan's error
        }
      }
      give(std::move(bench));
    };
    {
      nb::gil_scoped_release release;
      std::vector<std::thread> helpers;
      const int count = std::clamp<int>(threads, 1, static_cast<int>(std::max<size_t>(plans, 1)));
      for (int i = 1; i < count; ++i) helpers.emplace_back(work);
      work();
      for (std::thread& helper : helpers) helper.join();
    }
    raise(failure, failed);
    return nb::make_tuple(to_numpy<double>(std::move(step_time), {plans}),
                          to_numpy<double>(std::move(periods), {plans}),
                          to_numpy<int64_t>(std::move(peak), {plans, size_t(layout_.devices)}));
  }

  Blocks blocks(const Row<int32_t>& first, const Row<int32_t>& units, const Row<int32_t>& level) {
    Blocks out;
    out.first = listed(first), out.units = listed(units), out.level = listed(level);
    out.derive(layout_);
    return out;
  }

  // One walk for each plan given, each on a thread of its own. Returns the best plans and where the
  // walks ended: devices, priorities and rooms of each, and bytes over and value of the best.
  nb::tuple walk(const Blocks& blocks, const WalkSettings& settings, const Matrix<int32_t>& device,
                 const std::optional<Matrix<double>>& priority, const std::optional<Matrix<int64_t>>& staging,
                 const std::vector<uint64_t>& seeds, const std::optional<Cube<double>>& likely) {
    const size_t plans = device.shape(0), ops = layout_.ops, devices = layout_.devices;
    const size_t units = blocks.resident.size();
    if (device.shape(1) != ops || seeds.size() != plans ||
        (priority && (priority->shape(0) != plans || priority->shape(1) != ops)) ||
        (staging && (staging->shape(0) != plans || staging->shape(1) != devices)) ||
        (likely && (likely->shape(0) != plans || likely->shape(1) != units || likely->shape(2) != devices))) {
      throw nb::value_error("the kernel was given arrays of the wrong shape");
    }
    std::vector<Walked> walked(plans);
    std::exception_ptr failure;
    size_t failed = plans;
    std::mutex guard;
    const auto work = [&](size_t p) {
      std::unique_ptr<Workbench> bench = take();
      WalkPlan start;
      start.device.assign(device.data() + p * ops, device.data() + (p + 1) * ops);
      if (priority) start.priority.assign(priority->data() + p * ops, priority->data() + (p + 1) * ops);
      if (staging) start.room.assign(staging->data() + p * devices, staging->data() + (p + 1) * devices);
      try {
        check_placement(layout_, start.device.data());
        Likely thought;
        if (likely) thought.assign(likely->data() + p * units * devices, likely->data() + (p + 1) * units * devices);
        walked[p] = placewright::walk(layout_, blocks, bench->event, start, settings, thought, seeds[p]);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(guard);
        if (p < failed) failed = p, failure = std::current_exception();
      }
      give(std::move(bench));
    };
    {
      nb::gil_scoped_release release;
      std::vector<std::thread> helpers;
      for (size_t p = 1; p < plans; ++p) helpers.emplace_back(work, p);
      if (plans) work(0);
      for (std::thread& helper : helpers) helper.join();
    }
    raise(failure, failed);
    std::vector<int64_t> overflow;
    std::vector<double> value;
    for (const Walked& one : walked) overflow.push_back(one.overflow), value.push_back(one.value);
    return nb::make_tuple(rows(walked, &Walked::best), rows(walked, &Walked::last),
                          to_numpy<int64_t>(std::move(overflow), {plans}), to_numpy<double>(std::move(value), {plans}));
  }

  // Moves of one plan as a walk draws them: what a scout knows of each, and what it brings.
  nb::tuple sample_moves(const Blocks& blocks, const WalkSettings& settings, const Matrix<int32_t>& device,
                         const std::optional<Matrix<double>>& priority, int count, uint64_t seed) {
    const size_t ops = layout_.ops;
    if (device.shape(0) != 1 || device.shape(1) != ops || (priority && priority->shape(1) != ops)) {
      throw nb::value_error("the kernel was given arrays of the wrong shape");
    }
    WalkPlan start;
    start.device.assign(device.data(), device.data() + ops);
    if (priority) start.priority.assign(priority->data(), priority->data() + ops);
    check_placement(layout_, start.device.data());
    std::unique_ptr<Workbench> bench = take();
    Samples out = placewright::sample_moves(layout_, blocks, bench->event, start, settings, count, seed);
    give(std::move(bench));
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
    std::unique_ptr<Workbench> bench = take();
    std::exception_ptr failure;
    {
      nb::gil_scoped_release release;
      try {
        check_placement(layout_, plan.device);
        step_time = bench->event.run(plan, in_order, &record);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    raise(failure, 0);
    std::vector<int64_t> peak = bench->event.peak();
    give(std::move(bench));
    std::stable_sort(record.transfers.begin(), record.transfers.end(), [](const auto& x, const auto& y) {
      return x.start < y.start || (x.start == y.start && x.channel < y.channel);
    });
    using Transfer = Record::Transfer;
    using Use = Record::Use;
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
    out["memory_device"] = column<int32_t>(record.memory, [](const Use& row) { return row.device; });
    out["memory_time"] = column<double>(record.memory, [](const Use& row) { return row.time; });
    out["memory_used"] = column<int64_t>(record.memory, [](const Use& row) { return row.used; });
    return out;
  }

 private:
  // What the kernels see of a plan: the problem itself, or with its groups contracted.
  struct Shown {
    const Layout& layout;
    EventKernel& event;
    PlanView plan;
  };

  Shown show(Workbench& bench, const PlanView& plan, const int32_t* fusion) const {
    if (!fusion) return {layout_, bench.event, plan};
    if (!bench.fused) bench.fused = std::make_unique<FusedBench>(layout_, parts_);
    Contraction& contraction = bench.fused->contraction;
    contraction.contract(plan, fusion);
    bench.fused->event.fit();
    return {contraction.layout(), bench.fused->event, contraction.plan()};
  }

  template <typename T>
  static nb::object stacked(const std::vector<Walked>& walked, WalkPlan Walked::* plan, std::vector<T> WalkPlan::* part) {
    std::vector<T> all;
    for (const Walked& one : walked) all.insert(all.end(), (one.*plan.*part).begin(), (one.*plan.*part).end());
    if (all.empty()) return nb::none();
    const size_t width = all.size() / walked.size();
    return nb::cast(to_numpy<T>(std::move(all), {walked.size(), width}));
  }

  static nb::tuple rows(const std::vector<Walked>& walked, WalkPlan Walked::* plan) {
    return nb::make_tuple(stacked(walked, plan, &WalkPlan::device), stacked(walked, plan, &WalkPlan::priority),
                          stacked(walked, plan, &WalkPlan::room));
  }

  std::unique_ptr<Workbench> take() {
    {
      const std::lock_guard<std::mutex> lock(benches_guard_);
      if (!benches_.empty()) {
        std::unique_ptr<Workbench> bench = std::move(benches_.back());
        benches_.pop_back();
        return bench;
      }
    }
    return std::make_unique<Workbench>(layout_);
  }

  void give(std::unique_ptr<Workbench> bench) {
    const std::lock_guard<std::mutex> lock(benches_guard_);
    benches_.push_back(std::move(bench));
  }

  // A malformed plan becomes ValueError(reason, plan, op).
  static void raise(const std::exception_ptr& failure, size_t plan) {
    if (!failure) return;
    try {
      std::rethrow_exception(failure);
    } catch (const Malformed& malformed) {
      static constexpr const char* kReasons[] = {"placement", "staging", "fusion"};
      const char* reason = kReasons[malformed.reason];
      PyErr_SetObject(PyExc_ValueError, nb::make_tuple(reason, plan, malformed.op).ptr());
      throw nb::python_error();
    }
  }

  const Layout layout_;
  FusedParts parts_;
  std::mutex benches_guard_;
  std::vector<std::unique_ptr<Workbench>> benches_;
};

}  // namespace placewright

NB_MODULE(_kernel, m) {
  using placewright::Blocks;
  using placewright::Kernel;
  using placewright::ScoutNet;
  using placewright::WalkSettings;
  nb::class_<Blocks>(m, "Blocks");
  nb::class_<ScoutNet>(m, "ScoutNet")
      .def(nb::init<>())
      .def_rw("widths", &ScoutNet::widths)
      .def_rw("weights", &ScoutNet::weights)
      .def_rw("sharpness", &ScoutNet::sharpness)
      .def_rw("candidates", &ScoutNet::candidates)
      .def_rw("blind", &ScoutNet::blind);
  nb::class_<WalkSettings>(m, "WalkSettings")
      .def(nb::init<>())
      .def_rw("evaluations", &WalkSettings::evaluations)
      .def_rw("hot", &WalkSettings::hot)
      .def_rw("cold", &WalkSettings::cold)
      .def_rw("penalty", &WalkSettings::penalty)
      .def_rw("doublings", &WalkSettings::doublings)
      .def_rw("in_order", &WalkSettings::in_order)
      .def_rw("period", &WalkSettings::period)
      .def_rw("overlap", &WalkSettings::overlap)
      .def_rw("guided", &WalkSettings::guided)
      .def_rw("change_share", &WalkSettings::change_share)
      .def_rw("level_share", &WalkSettings::level_share)
      .def_rw("capacity", &WalkSettings::capacity)
      .def_rw("kept_back", &WalkSettings::kept_back)
      .def_rw("scout", &WalkSettings::scout);
  nb::class_<Kernel>(m, "Kernel")
      .def(nb::init<const nb::object&>(), "arrays"_a)
      .def("judge", &Kernel::judge, "device"_a, "priority"_a.none(), "staging"_a.none(), "fusion"_a.none(),
           "in_order"_a, "overlap"_a, "step"_a, "period"_a, "threads"_a)
      .def("learn_fused", &Kernel::learn_fused, "parts"_a, "reads"_a, "role"_a)
      .def_prop_ro("knows_fused", &Kernel::knows_fused)
      .def("blocks", &Kernel::blocks, "first"_a, "units"_a, "level"_a)
      .def("walk", &Kernel::walk, "blocks"_a, "settings"_a, "device"_a, "priority"_a.none(), "staging"_a.none(),
           "seeds"_a, "likely"_a.none() = nb::none())
      .def("sample_moves", &Kernel::sample_moves, "blocks"_a, "settings"_a, "device"_a, "priority"_a.none(), "count"_a,
           "seed"_a)
      .def("timeline", &Kernel::timeline, "device"_a, "priority"_a.none(), "staging"_a.none(), "in_order"_a);
}
