"""Predicted against measured step times of many plans, on this machine.

    python -m benchmarks.fidelity.fidelity inception-v3:training=false,batch=4 gpt2:size=test
    python -m benchmarks.fidelity.fidelity --plans 30 --limit gpu0=8GiB llama-8b:layers=8

Each network's ops are profiled (docs/profiling.md). Then varied plans are predicted by the
simulator and run by the runtime: the median of as many steps as half a second holds, five at least,
after the first eight. Rows append to one file, and a second run skips the rows that it holds.
Before and after each run a few steps are timed on the host, whose pace may change while other
processes share its processor: the error is given with the times of the profile, and with those at
that pace. The script ends with a table, a scatter plot next to the file, and the origin of the
error: by kind of op and device, and the time in which devices wait.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.common import add_results, add_seed, make_parser
from benchmarks.fidelity.fidelity_rows import (
    FidelityRow,
    MeasuredRun,
    compare_plans,
    read_rows,
    summarise,
)
from benchmarks.fidelity.scatter import scatter_svg
from benchmarks.fidelity.varied_plans import diverse_plans
from placewright import Constraints, Problem, zoo
from placewright.profiling.as_executed import executed_problem
from placewright.profiling.copy_load import copy_load_for
from placewright.profiling.machine_profile import parse_workers, profile_machine
from placewright.profiling.op_costs import profile_ops
from placewright.profiling.whole_step import StepTimer, fits_host
from placewright.runtime.executor import Executor
from placewright.runtime.program.program import Program, build_program
from placewright.runtime.real_devices import machine_devices
from placewright.units import parse_bytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from placewright.plan import Plan
    from placewright.profiling.copy_load import CopyLoad
    from placewright.runtime.machine import Machine
    from placewright.runtime.real_devices import RealDevice

PACE_STEPS = 2
"""Steps on the host that its pace is measured by, before and after each plan."""
WARMUP_STEPS, DROPPED_STEPS = 3, 5
"""Untimed steps, and timed ones that are dropped: by then the runtime has decided on graphs."""
MIN_STEPS, MAX_STEPS, STEP_SECONDS = 5, 100, 0.5
"""Steps that count: as many as fit into these seconds."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("models", nargs="*", help="networks of the zoo that are PyTorch models")
    parser.add_argument("--on", default="here", help="here, or such as here:workers=2")
    parser.add_argument("--plans", type=int, default=30, help="plans per network")
    add_seed(parser)
    parser.add_argument("--profiling", type=float, default=60.0, help="seconds to measure ops")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="DEVICE=SIZE", help="a memory limit"
    )
    add_results(parser, "out/fidelity.jsonl")
    options = parser.parse_args(argv)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for text in options.models:
        report(text, options)
    rows = read_rows(options.out)
    groups: dict[str, list[FidelityRow]] = defaultdict(list)
    for row in rows:
        groups[row.model].append(row)
    print(table(groups))
    picture = options.out.with_suffix(".svg")
    points = {
        model: [(row.plan, row.predicted, row.measured) for row in model_rows]
        for model, model_rows in groups.items()
    }
    picture.write_text(scatter_svg(points, "step time, predicted and measured"))
    print(f"\npicture: {picture}\n\n{error_table(groups)}")


def report(text: str, options: argparse.Namespace) -> None:
    """Predict and run the plans of one network."""
    entry, given = zoo.parse(text)
    if entry.network is None:
        raise SystemExit(f"{text} is synthetic and cannot be run")
    chosen: dict[str, Any] = dict(given)
    size = str(chosen.pop("size", "full"))
    training = bool(entry.network.arguments(size, **chosen).get("training", False))
    torch.manual_seed(0)
    model, args, kwargs = entry.network.build(size, **chosen)
    program = build_program(model, args, kwargs, training, name=text)
    workers = parse_workers(options.on)
    profile = profile_machine(workers, notify=print)
    devices = machine_devices(profile.machine, workers)
    limits = {name: parse_bytes(size) for name, size in (one.split("=") for one in options.limit)}
    measured = profile_ops(
        program, profile.machine, profile.cluster, devices, options.profiling, limits=limits
    )
    print(
        f"{text}: {measured.distinct} distinct timings, {measured.measured} measured, "
        f"{measured.cached} cached, {measured.estimated} estimated, {len(measured.failed)} failed"
    )
    problem = Problem(program.graph, profile.cluster, measured.table, Constraints(limits=limits))
    problem = executed_problem(problem, profile)
    plans = diverse_plans(problem, options.plans, options.seed)
    copy_load = copy_load_for(program.graph, profile.cluster, devices, limits)
    paced = PacedRuns(program, profile.machine, devices, copy_load)
    begin = {name: value.clone() for name, value in model.state_dict().items()}

    def measure(plan: Plan) -> MeasuredRun:
        model.load_state_dict(begin)  # or gradients become smaller from plan to plan
        return paced.run(plan, model, args, kwargs)

    compare_plans(
        problem,
        plans,
        measure,
        options.out,
        lambda text: print(text, flush=True),
    )


def run(
    program: Program, model: torch.nn.Module, args: Any, kwargs: Any, plan: Plan
) -> MeasuredRun:
    """Measure a plan's step, and when its ops ran in a step of about that time."""
    seen: list[tuple[int, float, float]] = []
    gc.collect()
    cuda = torch.cuda.is_available()
    try:
        with Executor(program, model, plan, record=lambda *span: seen.append(span)) as executor:
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            for _ in range(WARMUP_STEPS):
                executor(*args, **kwargs)
            steps: list[tuple[float, float, list[tuple[int, float, float]]]] = []
            until = time.perf_counter() + STEP_SECONDS
            while len(steps) < DROPPED_STEPS + MIN_STEPS or (
                len(steps) < DROPPED_STEPS + MAX_STEPS and time.perf_counter() < until
            ):
                if cuda:
                    torch.cuda.synchronize()
                seen.clear()
                began = time.perf_counter()
                executor(*args, **kwargs)
                if cuda:
                    torch.cuda.synchronize()
                steps.append((time.perf_counter() - began, began, list(seen)))
            peak = {"gpu0": torch.cuda.max_memory_allocated() - libraries()} if cuda else {}
            issued = executor.issue_mode
    except Exception as error:
        return MeasuredRun(math.inf, error=f"{type(error).__name__}: {error}")
    kept = sorted(steps[DROPPED_STEPS:], key=lambda step: step[0])
    times = [took for took, _, _ in kept]
    quarters = statistics.quantiles(times, n=4)
    middle, began, spans = kept[len(kept) // 2]
    ops = program.graph.ops
    found = {ops[at].name: (start - began, end - began) for at, start, end in spans}
    spread = (quarters[2] - quarters[0]) / middle
    return MeasuredRun(statistics.median(times), spread, peak, found, issue_mode=issued)


class PacedRuns:
    """Runs plans, and measures the host's pace around each run.

    Other processes that share a processor come and go.
    """

    def __init__(
        self, program: Program, machine: Machine, devices: Sequence[RealDevice], copy_load: CopyLoad
    ) -> None:
        self.program, self.copy_load = program, copy_load
        hosts = [device for device in devices if not device.is_gpu]
        is_timed = hosts and len(devices) > 1 and fits_host(program, machine)
        self.steps = StepTimer(program, hosts[0]) if is_timed else None
        self.baseline = self.now = self.seconds()  # just after all was profiled

    def run(self, plan: Plan, model: torch.nn.Module, args: Any, kwargs: Any) -> MeasuredRun:
        """Measure a plan, with the host's pace before and after it."""
        self.copy_load.release()  # or its buffers would count as the plan's
        found = run(self.program, model, args, kwargs, plan)
        before, self.now = self.now, self.seconds()
        return replace(found, pace=math.sqrt(before * self.now) / self.baseline)

    def seconds(self) -> float:
        """Seconds of a step on the host now."""
        if self.steps is None:
            return 1.0
        with self.copy_load.running():
            self.steps.device.run(partial(self.steps.run, math.inf, max_steps=PACE_STEPS))
        return sum(one.seconds + one.issue for one in self.steps.timings().values())


def libraries() -> int:
    """Bytes that cuBLAS keeps for itself on every stream: a device's reserve, not a plan's."""
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()  # graphs that work in them are not replayed any more
    return before - torch.cuda.memory_allocated()


def table(groups: dict[str, list[FidelityRow]]) -> str:
    lines = [
        "| network | plans | failed | median error | at the host's pace | rank correlation | "
        "memory error |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, rows in groups.items():
        found = summarise(rows)
        memory = "" if found.memory_error is None else f"{100 * found.memory_error:.1f} %"
        lines.append(
            f"| {model} | {found.plans} | {found.failed} | {100 * found.error:.1f} % | "
            f"{100 * found.adjusted_error:.1f} % | {found.rank_correlation:.3f} | {memory} |"
        )
    return "\n".join(lines)


def error_table(groups: dict[str, list[FidelityRow]], max_rows: int = 12) -> str:
    """The origin of the error, over all plans of a network."""
    lines = []
    for model, rows in groups.items():
        total: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for row in rows:
            for one in row.blame:
                if one["what"] != "op":
                    both = total[one["what"], one["name"], one["device"]]
                    both[0] += one["predicted"]
                    both[1] += one["measured"]
        worst = sorted(total.items(), key=lambda item: -abs(item[1][0] - item[1][1]))[:max_rows]
        if worst:
            lines += [f"{model}: ms over all plans", "| what | device | predicted | measured |"]
            lines += ["|---|---|---|---|"]
            for (what, name, device), (predicted, measured) in worst:
                lines.append(
                    f"| {name or what} | {device} | {1e3 * predicted:.2f} | {1e3 * measured:.2f} |"
                )
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
