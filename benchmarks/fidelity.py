"""Predicted against measured step times of many plans, on this machine.

    python benchmarks/fidelity.py inception-v3:training=false,batch=4 gpt2:size=test
    python benchmarks/fidelity.py --plans 30 --limit gpu0=8GiB llama-8b:layers=8

Each network's ops are profiled (docs/profiling.md), then varied plans are predicted by the
simulator and run by the runtime: the median of as many steps as half a second holds, five at least,
after the first eight. Rows append to one file, and a second run skips what is there. Around each
run steps are timed again on the host, whose pace may change while others share its processor: the
error is given with the times of the profile, and with those at that pace. The end is a table, a
scatter plot beside the file, and where the error comes from: by kind of op and device, and the time
in which devices wait.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from placewright import Constraints, Problem, zoo
from placewright.profiling.as_executed import executed_problem
from placewright.profiling.fidelity import (
    FidelityRow,
    MeasuredRun,
    compare_plans,
    read_rows,
    summarise,
)
from placewright.profiling.machine_profile import parse_workers, profile_machine
from placewright.profiling.op_costs import copy_load_for, profile_ops
from placewright.profiling.varied import diverse_plans
from placewright.profiling.whole_step import StepTimer, fits_host
from placewright.reporting.scatter import scatter_svg
from placewright.runtime.executor import Executor
from placewright.runtime.program.program import Program, build_program
from placewright.runtime.real_devices import machine_devices
from placewright.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.plan import Plan
    from placewright.profiling.copy_load import CopyLoad
    from placewright.runtime.machine import Machine
    from placewright.runtime.real_devices import RealDevice

GLANCE = 2
"""Steps on the host that its pace is told by, before and after each plan."""
WARMING, DROPPED = 3, 5
"""Steps before; steps that are timed and dropped. In eight steps the runtime has chosen."""
FEWEST, MOST, WHILE = 5, 100, 0.5
"""Steps that count: as many as there is time for in so many seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", help="networks of the zoo that are PyTorch models")
    parser.add_argument("--on", default="here", help="here, or such as here:workers=2")
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profiling", type=float, default=60.0, help="seconds to measure ops")
    parser.add_argument("--limit", action="append", default=[], metavar="DEVICE=SIZE")
    parser.add_argument("--out", type=Path, default=Path("out") / "fidelity.jsonl")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    for text in asked.models:
        report(text, asked)
    rows = read_rows(asked.out)
    groups: dict[str, list[FidelityRow]] = defaultdict(list)
    for row in rows:
        groups[row.model].append(row)
    print(table(groups))
    picture = asked.out.with_suffix(".svg")
    points = {
        model: [(row.plan, row.predicted, row.measured) for row in several]
        for model, several in groups.items()
    }
    picture.write_text(scatter_svg(points, "step time, predicted and measured"))
    print(f"\npicture: {picture}\n\n{blamed(groups)}")


def report(text: str, asked: argparse.Namespace) -> None:
    """Predict and run the plans of one network."""
    entry, given = zoo.parse(text)
    if entry.network is None:
        raise SystemExit(f"{text} is drawn op by op and cannot be run")
    chosen: dict[str, Any] = dict(given)
    size = str(chosen.pop("size", "full"))
    training = bool(entry.network.arguments(size, **chosen).get("training", False))
    torch.manual_seed(0)
    model, args, kwargs = entry.network.build(size, **chosen)
    program = build_program(model, args, kwargs, training, name=text)
    workers = parse_workers(asked.on)
    profile = profile_machine(workers, notify=print)
    sites = machine_devices(profile.machine, workers)
    limits = {name: parse_bytes(size) for name, size in (one.split("=") for one in asked.limit)}
    measured = profile_ops(
        program, profile.machine, profile.cluster, sites, asked.profiling, limits=limits
    )
    print(
        f"{text}: {measured.distinct} different times, {measured.measured} measured, "
        f"{measured.cached} known, {measured.estimated} worked out, {len(measured.failed)} failed"
    )
    problem = Problem(program.graph, profile.cluster, measured.table, Constraints(limits=limits))
    problem = executed_problem(problem, profile)
    plans = diverse_plans(problem, asked.plans, asked.seed)
    company = copy_load_for(program.graph, profile.cluster, sites, limits)
    watched = Paced(program, profile.machine, sites, company)
    begin = {name: value.clone() for name, value in model.state_dict().items()}

    def measure(plan: Plan) -> MeasuredRun:
        model.load_state_dict(begin)  # or gradients become smaller from plan to plan
        return watched.run(plan, model, args, kwargs)

    compare_plans(
        problem,
        plans,
        measure,
        asked.out,
        lambda said: print(said, flush=True),
    )


def run(
    program: Program, model: torch.nn.Module, args: Any, kwargs: Any, plan: Plan
) -> MeasuredRun:
    """What a plan takes, and when its ops ran in a step of about that time."""
    seen: list[tuple[int, float, float]] = []
    gc.collect()
    cuda = torch.cuda.is_available()
    try:
        with Executor(program, model, plan, record=lambda *span: seen.append(span)) as executor:
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            for _ in range(WARMING):
                executor(*args, **kwargs)
            steps: list[tuple[float, float, list[tuple[int, float, float]]]] = []
            until = time.perf_counter() + WHILE
            while len(steps) < DROPPED + FEWEST or (
                len(steps) < DROPPED + MOST and time.perf_counter() < until
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
    kept = sorted(steps[DROPPED:], key=lambda step: step[0])
    times = [took for took, _, _ in kept]
    quarters = statistics.quantiles(times, n=4)
    middle, began, spans = kept[len(kept) // 2]
    ops = program.graph.ops
    found = {ops[at].name: (start - began, end - began) for at, start, end in spans}
    spread = (quarters[2] - quarters[0]) / middle
    return MeasuredRun(statistics.median(times), spread, peak, found, issue_mode=issued)


class Paced:
    """Tells how quick the host is around each run: others that share a processor come and go."""

    def __init__(
        self, program: Program, machine: Machine, sites: Sequence[RealDevice], company: CopyLoad
    ) -> None:
        self.program, self.company = program, company
        hosts = [site for site in sites if not site.is_gpu]
        told = hosts and len(sites) > 1 and fits_host(program, machine)
        self.steps = StepTimer(program, hosts[0]) if told else None
        self.usual = self.now = self.seconds()  # just after all was profiled

    def run(self, plan: Plan, model: torch.nn.Module, args: Any, kwargs: Any) -> MeasuredRun:
        """What a plan takes, with the host's pace before and after it."""
        self.company.release()  # or its rooms would count as the plan's
        found = run(self.program, model, args, kwargs, plan)
        before, self.now = self.now, self.seconds()
        return replace(found, pace=math.sqrt(before * self.now) / self.usual)

    def seconds(self) -> float:
        """Of a step on the host now."""
        if self.steps is None:
            return 1.0
        with self.company.running():
            self.steps.site.run(partial(self.steps.run, math.inf, max_steps=GLANCE))
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
        memory = "" if found.memory is None else f"{100 * found.memory_error:.1f} %"
        lines.append(
            f"| {model} | {found.plans} | {found.failed} | {100 * found.error:.1f} % | "
            f"{100 * found.adjusted_error:.1f} % | {found.rank_correlation:.3f} | {memory} |"
        )
    return "\n".join(lines)


def blamed(groups: dict[str, list[FidelityRow]], most: int = 12) -> str:
    """Where the error comes from, all plans of a network together."""
    lines = []
    for model, rows in groups.items():
        total: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for row in rows:
            for one in row.blame:
                if one["what"] != "op":
                    both = total[one["what"], one["name"], one["device"]]
                    both[0] += one["predicted"]
                    both[1] += one["measured"]
        worst = sorted(total.items(), key=lambda item: -abs(item[1][0] - item[1][1]))[:most]
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
