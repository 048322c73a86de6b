"""How many plans per second the simulator evaluates.

    python -m benchmarks.simulator.speed --sizes 500,5000 --seconds 2

Plans are always distinct: re-running one plan teaches the processor's branch predictor the
sequence of events and flatters the result by a factor of three. "random" puts every op anywhere,
so that most tensors cross; "blocks" are contiguous with 5 % of the ops moved, as local search
produces them. Rates are per second of CPU time on one thread; two threads are wall clock against
wall clock, the median of several pairs of runs. "lanes" are plans side by side, and the same with
bounds of the memory peaks: ratios to events, medians of runs in turn. "GPU lanes" are those of a
GPU, in float32, without and with the bounds, by CUDA's clock, where there is one. "fit known" are
plans of which it is exactly known whether they fit: bounds on the GPU, and a second pass of the
event kernel on all of the CPU's threads for those that the bounds leave open, whose share is behind
it; wall clock, copies included, at a capacity of `--limit` times the plans' largest peak.
"""

from __future__ import annotations

import os
import statistics
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

import placewright as pw
from benchmarks.common import Table, int_list, machine, make_parser
from placewright.simulator import reference
from placewright.simulator.evaluation import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

DEVICES = 8
GPU_PLANS = 131_072  # of one batch


def layered_problem(ops: int, discipline: str) -> pw.Problem:
    graph = pw.zoo.load(f"layered:ops={ops},seed=1,weights=no")
    return pw.Problem(graph, pw.Cluster.parse(f"{DEVICES}xA100-nvlink"), discipline=discipline)


def distinct_plans(problem: pw.Problem, kind: str, count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    ops = len(problem.graph)
    anywhere = rng.integers(0, DEVICES, size=(count, ops), dtype=np.int32)
    if kind == "random":
        return anywhere
    blocks = np.tile((np.arange(ops) * DEVICES // ops).astype(np.int32), (count, 1))
    return np.where(rng.random((count, ops)) < 0.05, anywhere, blocks)


def event_rate(
    problem: pw.Problem,
    plans: np.ndarray,
    threads: int,
    clock: Callable[[], float] = time.process_time,
) -> float:
    start = clock()
    in_order = problem.discipline == "in order"
    kernel(problem.arrays).judge(plans, None, None, None, in_order, True, True, False, threads)
    return len(plans) / (clock() - start)


def lane_rate(problem: pw.Problem, plans: np.ndarray, bounds: bool) -> float:
    start = time.process_time()
    kernel(problem.arrays).judge_lanes(plans, None, None, bounds, 1)
    return len(plans) / (time.process_time() - start)


def gpu_rates(problem: pw.Problem, kind: str) -> tuple[str, str]:
    """Plans per second in lanes on a GPU, without and with bounds of the peaks."""
    torch = find_gpu()
    if torch is None or problem.discipline != "in order":
        return "–", "–"
    from placewright.simulator.gpu_lanes import GpuLanes

    lanes = GpuLanes(problem, np.arange(len(problem.graph)))  # any devices: nothing to check
    generator = torch.Generator("cuda").manual_seed(0)
    places = lanes.draw(GPU_PLANS, generator)
    if kind == "blocks":
        ops = len(places)
        block = (torch.arange(ops, device="cuda") * DEVICES // ops).to(torch.uint8)
        moved = torch.rand(places.shape, generator=generator, device="cuda") < 0.05
        places = torch.where(moved, places, block[:, None])
    rates = []
    for peaks in (False, True):
        lanes.evaluate(places, peaks)  # compiles the kernel
        milliseconds = []
        for _ in range(5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            lanes.evaluate(places, peaks)
            end.record()
            torch.cuda.synchronize()
            milliseconds.append(start.elapsed_time(end))
        rates.append(f"{GPU_PLANS / statistics.median(milliseconds) * 1e3:,.0f}")
    return rates[0], rates[1]


def fit_known_rate(
    problem: pw.Problem, plans: np.ndarray, limit: float, device: str, threads: int
) -> tuple[float, float]:
    """Plans per second of which it is known whether they fit, and the share judged exactly."""
    import torch

    from placewright.simulator.gpu_lanes import GpuLanes

    peak = int(pw.judge(problem, plans[:16]).peak.max())
    devices = problem.arrays.devices
    limited = problem.with_arrays(capacity=np.full(devices, int(limit * peak)))
    lanes = GpuLanes(limited, np.arange(len(problem.graph)), device=device)
    places = torch.from_numpy(np.ascontiguousarray(plans.T.astype(np.uint8))).to(device)
    lanes.evaluate(places)  # compiles the kernel
    start = time.perf_counter()
    verdict = lanes.evaluate(places)
    is_unfit = (verdict.least_excess > 0).any(dim=0)
    is_open = ~verdict.fits & ~is_unfit
    rows = places[:, is_open].T.cpu().numpy().astype(np.int32)
    if len(rows):
        run = kernel(limited.arrays).judge
        run(np.ascontiguousarray(rows), None, None, None, True, True, True, False, threads)
    is_unfit.cpu()
    return len(plans) / (time.perf_counter() - start), len(rows) / len(plans)


def find_gpu() -> ModuleType | None:
    """PyTorch, if it is installed and finds a GPU."""
    if find_spec("torch") is None:
        return None
    import torch

    return torch if torch.cuda.is_available() else None


def reference_rate(problem: pw.Problem, plans: np.ndarray) -> float:
    start = time.process_time()
    in_order = problem.discipline == "in order"
    rows = plans[: max(1, 2_000 // plans.shape[1])]
    for row in rows:
        reference.run(problem.arrays, in_order, row)
    return len(rows) / (time.process_time() - start)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument(
        "--sizes", type=int_list, default=[500, 5_000, 50_000], help="numbers of ops"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="about this long per figure")
    parser.add_argument("--limit", type=float, default=2.0, help="capacity for `fit known`")
    arguments = parser.parse_args(argv)
    print(f"{DEVICES} devices; plans per second, distinct plans; {machine()}\n")
    table = Table(
        *("ops", "discipline", "plans", "events", "reference", "times as fast"),
        *("two threads / one", "lanes", "lanes / events", "with bounds / events"),
        *("GPU lanes", "with bounds", "fit known (open)"),
    )
    for ops in arguments.sizes:
        for discipline in ("in order", "ready"):
            problem = layered_problem(ops, discipline)
            for kind in ("random", "blocks"):
                count = max(8, int(arguments.seconds * 5_000_000 / ops))
                plans = distinct_plans(problem, kind, count)
                event_rate(problem, plans[:4], 2)  # warm up
                wall = time.perf_counter
                pairs = [
                    event_rate(problem, plans, 2, wall) / event_rate(problem, plans, 1, wall)
                    for _ in range(5)
                ]
                events, lanes, bounds = [], [], []
                for _ in range(5):
                    events.append(event_rate(problem, plans, 1))
                    if discipline == "in order":
                        lanes.append(lane_rate(problem, plans, bounds=False))
                        bounds.append(lane_rate(problem, plans, bounds=True))
                one, slow = statistics.median(events), reference_rate(problem, plans)
                table.row(
                    f"{ops:,}",
                    discipline,
                    kind,
                    f"{one:,.0f}",
                    f"{slow:.3g}",
                    f"{one / slow:.0f}",
                    f"{statistics.median(pairs):.2f}",
                    f"{statistics.median(lanes):,.0f}" if lanes else "–",
                    median_ratio(lanes, events),
                    median_ratio(bounds, events),
                    *gpu_rates(problem, kind),
                    fit_known_cell(problem, plans, arguments.limit),
                )


def fit_known_cell(problem: pw.Problem, plans: np.ndarray, limit: float) -> str:
    if find_gpu() is None or problem.discipline != "in order":
        return "–"
    threads = len(os.sched_getaffinity(0))
    rate, share = fit_known_rate(problem, plans, limit, "cuda", threads)
    return f"{rate:,.0f} ({share:.0%})"


def median_ratio(rates: list[float], yardstick: list[float]) -> str:
    pairs = list(zip(rates, yardstick, strict=False))
    return f"{statistics.median(one / two for one, two in pairs):.1f}" if pairs else "–"


if __name__ == "__main__":
    main()
