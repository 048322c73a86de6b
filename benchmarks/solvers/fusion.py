"""What fusion gains: none, a compiler's default, and a search over urgencies, per placement.

    python -m benchmarks.solvers.fusion --networks rnnlm-2,nmt-4
    python -m benchmarks.solvers.fusion --speed

Step times in milliseconds on simulated P100s (`in order`), for two placements of each network: all
ops on one device, and HEFT's. Each cell has the time in the placement's own order, then in the best
order that the priority rules find; peaks are those of the fullest device in the own order, in GiB.
`--speed` shows plans fused and evaluated per second on one thread instead.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import placewright as pw
from benchmarks.common import Table, add_seed, make_parser, name_list
from placewright import solvers
from placewright.simulator import judge
from placewright.solvers.fuse_plan import reorder_fused
from placewright.transforms import fuse, fuse_greedily

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NETWORKS = ("rnnlm-2", "nmt-4", "wavenet-2x18", "transformer-xl-2", "inception-v3", "gpt2")
CLUSTER = "2xP100+cpu"
COLUMNS = (
    *("network", "ops", "placement", "no fusion", "compiler's", "search"),
    *("gain of the last two", "best of them over none's best", "groups (ops) of the compiler's"),
    "peaks",
)
SPEEDS = (
    *("network", "ops", "fused by urgency", "as a compiler"),
    *("evaluated", "evaluated fused"),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("--plans", type=int, default=1000, help="evaluations of the search")
    parser.add_argument("--networks", type=name_list, default=NETWORKS, help="networks of the zoo")
    parser.add_argument("--speed", action="store_true", help="plans per second instead")
    add_seed(parser)
    arguments = parser.parse_args(argv)
    if arguments.speed:
        speeds = Table(*SPEEDS)
        for name in arguments.networks:
            speeds.row(*_speed(name))
        return
    table = Table(*COLUMNS)
    for name in arguments.networks:
        problem = pw.Problem(pw.zoo.load(name), pw.Cluster.parse(CLUSTER))
        single = problem.legalize(np.zeros(len(problem.graph), dtype=np.int32))
        heft = pw.solve(problem, solvers.HEFT(contended=True)).plan
        for where, plan in (("one device", pw.Plan.of(problem, single)), ("HEFT", heft)):
            table.row(name, *_gains(problem, where, plan, arguments.plans, arguments.seed))


def _gains(
    problem: pw.Problem, where: str, plan: pw.Plan, plans: int, seed: int
) -> tuple[str, ...]:
    group = fuse_greedily(problem, plan.placement)
    stop = solvers.MaxEvaluations(plans)  # before the search would change the order itself
    found = pw.solve(problem, solvers.FusionSearch(plan), stop, seed).plan
    own = [plan, pw.Plan.of(problem, plan.placement, plan.priority, group, plan.staging), found]
    timelines = [pw.simulate(problem, each) for each in own]
    again = [pw.simulate(problem, reorder_fused(problem, each)).step_time for each in own]
    times = [timeline.step_time for timeline in timelines]
    best = [min(pair) for pair in zip(times, again, strict=True)]
    return (
        f"{len(problem.graph):,}",
        where,
        *(f"{kept * 1e3:.1f}, {new * 1e3:.1f}" for kept, new in zip(times, again, strict=True)),
        ", ".join(f"{1 - each / times[0]:.1%}" for each in times[1:]),
        f"{1 - min(best[1:]) / best[0]:.1%}",
        f"{len(np.unique(group[group >= 0])):,} ({int((group >= 0).sum()):,})",
        ", ".join(f"{timeline.peak.max() / 2**30:.2f}" for timeline in timelines),
    )


def _speed(name: str, plans: int = 64) -> tuple[str, ...]:
    problem = pw.Problem(pw.zoo.load(name), pw.Cluster.parse(CLUSTER))
    device = np.repeat(pw.solve(problem, solvers.HEFT()).plan.placement[None], plans, axis=0)
    urgency = np.random.default_rng(0).integers(0, 21, size=device.shape)
    group = fuse(problem, device, urgency)
    judge(problem, device[:1], fusion=group[:1])
    works: list[Callable[[], object]] = [
        partial(fuse, problem, device, urgency),
        partial(fuse_greedily, problem, device),
        partial(judge, problem, device),
        partial(judge, problem, device, fusion=group),
    ]
    rates = []
    for work in works:
        begun = time.perf_counter()
        work()
        rates.append(plans / (time.perf_counter() - begun))
    return (name, f"{len(problem.graph):,}", *(f"{rate:,.0f}/s" for rate in rates))


if __name__ == "__main__":
    main()
