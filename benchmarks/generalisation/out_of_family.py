"""Where each shipped policy is good and where not: its own families, and families it never saw.

    python -m benchmarks.generalisation.out_of_family --seeds 0:3 --out FILE
    python -m benchmarks.generalisation.out_of_family --jobs 0 --out FILE     # only the tables

`own`: test graphs of the three families that all shipped policies were trained on; no policy saw
the wiring of a test graph. `other`: generated graphs and networks of kinds that none of them was
trained on. Each graph is on a cluster with much memory, and on one that no policy was trained on,
with 1.4 times the memory that the graph needs on one device.

A policy's `answer` is its one plan, zero-shot; `of 16` is the best of that and 15 samples, each in
the policy's order; GO's `first plans` are the three that it refines, which need no weights. `place`
is what `placewright place --method NAME` finds, which tries again where nothing fits.
`random of 16` is the null with as many plans: the best of 16 random placements of 64 groups. `auto`
has `--seconds` CPU seconds. Figures are step times over `auto`'s: geometric means with 95 %
intervals over families, problems and seeds. A plan that does not fit counts as twice one that fits;
none is left out.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import placewright as pw
from benchmarks.common import (
    ResultFile,
    Table,
    add_jobs,
    add_results,
    chosen,
    make_parser,
    name_list,
    run_jobs,
    seed_range,
)
from benchmarks.proposers.compare import CpuTime, family_of, interval, log_ratio
from benchmarks.proposers.problems import named_problem
from placewright import solvers
from placewright.policies.grouping import group_ops, legal_devices
from placewright.policies.policy import last_plans
from placewright.policies.shipped import SHIPPED, shipped_policy
from placewright.training.policy_solver import POLICY_SOLVERS
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem

    Figures = dict[tuple[str, int], dict[str, Any]]
    """By problem and seed, the figures of all columns."""

OWN = tuple(f"{name}:graph={at}" for name in ("cifar10", "ptb", "nmt") for at in (33, 36, 40))
OTHER = (
    "layered:ops=800,seed=501,width=20,weights=true",
    "layered:ops=1500,seed=502,width=60",
    "series-parallel:ops=1000,seed=503,parallel=0.5,weights=true",
    "series-parallel:ops=1500,seed=504,parallel=0.7",
    "fork-join:ops=900,seed=505,branches=5,depth=4,weights=true",
    "fork-join:ops=1500,seed=506,branches=12,depth=9",
    "branches:modules=6",
    "branches:modules=20",
    "resnet-50",
    "bert-base:layers=4",
    "gpt2:layers=4",
    "t5:layers=2",
    "unet",
)
CLUSTERS = ("4xP100+cpu", "3xV100+2xP100+cpu!1.4")
SECTIONS = {"own": OWN, "other": OTHER}
SAMPLES, GROUPS = 16, 64
AUTO, PLAIN = "auto", "without learning"
PLACE = "place: "
WHAT = (AUTO, PLAIN, *SHIPPED, *(f"{PLACE}{name}" for name in SHIPPED))
NULL = f"random of {SAMPLES}"
FIRST = "first plans"
COLUMNS = (
    NULL,
    "single",
    "m-ETF",
    "expert",
    *(f"{name}, {kind}" for name in SHIPPED for kind in ("answer", f"of {SAMPLES}", "place")),
    f"go, {FIRST}",
)


@dataclass(frozen=True)
class ComparisonJob:
    """A shipped policy, `auto`, or the methods without learning, on one problem."""

    what: str
    problem: str
    seed: int
    seconds: float

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(asdict(self))

    def __call__(self) -> dict[str, Any]:
        problem, worked = _problem(self.problem), time.process_time()
        if self.what == AUTO:
            figures = {AUTO: solved(problem, solvers.Auto(), self.seed, CpuTime(self.seconds))}
        elif self.what == PLAIN:
            figures = without_learning(problem, self.seed)
        elif self.what.startswith(PLACE):
            name = self.what.removeprefix(PLACE)
            figures = {f"{name}, place": solved(problem, POLICY_SOLVERS[name](), self.seed)}
        else:
            figures = by_policy(problem, self.what, self.seed)
        work = round(time.process_time() - worked, 2)  # CPU seconds, all figures together
        return {**asdict(self), "figures": figures, "work": work}


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """`--seconds` is `auto`'s alone."""
    seconds = row["seconds"] if row["what"] == AUTO else 0.0
    return (row["what"], row["problem"], row["seed"], seconds)


@cache
def _problem(name: str) -> Problem:
    return named_problem(name)


def best(problem: Problem, placements: NDArray[np.int32], priority: Any = None) -> dict[str, float]:
    """The best of some plans: its step time, and by how many bytes it does not fit."""
    verdict = pw.judge(problem, placements, priority)
    at = verdict.best()
    return {"value": float(verdict.value[at]), "overflow": float(verdict.overflow[at])}


def by_policy(problem: Problem, name: str, seed: int) -> dict[str, Any]:
    if name == "go":
        return by_go(problem, seed)
    with torch_threads():
        policy, plans = shipped_policy(name), []
        for count, greedy in ((1, True), (SAMPLES - 1, False)):
            episodes = policy.act(problem, count, seed, greedy=greedy)
            last = last_plans(episodes)
            order = None if episodes.priority is None else episodes.priority[last]
            plans.append((episodes.placements[last], order))
    answer, sampled = (best(problem, *each) for each in plans)
    both = min(answer, sampled, key=lambda plan: (plan["overflow"], plan["value"]))
    return {f"{name}, answer": answer, f"{name}, of {SAMPLES}": both}


def by_go(problem: Problem, seed: int) -> dict[str, Any]:
    """As `--method go` has its plans: greedy ones, then the initial plans, then others."""
    from placewright.training.go.proposer import GoProposer

    proposer = GoProposer.shipped()
    plans = proposer.propose(problem, SAMPLES, seed)
    placements = np.stack([plan.placement for plan in plans])
    priorities = np.stack([plan.priority for plan in plans])
    starts = proposer.policy.config.starts
    parts = {"answer": slice(1), FIRST: slice(starts, 2 * starts), f"of {SAMPLES}": slice(None)}
    return {
        f"go, {kind}": best(problem, placements[part], priorities[part])
        for kind, part in parts.items()
    }


def without_learning(problem: Problem, seed: int) -> dict[str, Any]:
    grouping = group_ops(problem, "coarse", GROUPS)
    legal = legal_devices(problem, grouping)
    score = np.random.default_rng(seed).random((SAMPLES, *legal.shape))
    device = np.where(legal, score, -1.0).argmax(axis=2).astype(np.int32)
    figures = {
        NULL: best(problem, problem.legalize(grouping.expand(device))),
        "single": solved(problem, solvers.SingleDevices(), seed),
        "m-ETF": solved(problem, solvers.METF(), seed),
    }
    if solvers.expert.has_expert(problem):
        figures["expert"] = solved(problem, solvers.Expert(), seed)
    return figures


def solved(problem: Problem, solver: Any, seed: int, stop: Any = None) -> dict[str, float]:
    result = pw.solve(problem, solver, cautious=False, seed=seed, stop=stop)
    overflow = 0.0 if result.fits else 1.0
    return {"value": float(result.objective_value), "overflow": overflow}


def show(rows: Sequence[dict[str, Any]], seconds: float) -> None:
    """One table by cluster and one by family, of the problems in use that `auto` has solved."""
    figures: Figures = {}
    for row in rows:
        if row["what"] != AUTO or row["seconds"] == seconds:
            figures.setdefault((row["problem"], row["seed"]), {}).update(row["figures"])
    figures = {key: found for key, found in figures.items() if AUTO in found}
    by_cluster(figures, seconds)
    print()
    by_family(figures, seconds)


def within(figures: Figures, networks: Sequence[str], cluster: str) -> Figures:
    """The figures of some networks on one cluster."""
    names = {f"{network}@{cluster}" for network in networks}
    return {key: found for key, found in figures.items() if key[0] in names}


def logs_of(figures: Figures, column: str) -> dict[str, list[float]]:
    logs: dict[str, list[float]] = {}
    for (problem, _), found in figures.items():
        if column in found:
            logs.setdefault(problem, []).append(log_ratio(found[column], found[AUTO]))
    return logs


def by_cluster(figures: Figures, seconds: float) -> None:
    parts = {
        f"{section}, {cluster}": within(figures, networks, cluster)
        for section, networks in SECTIONS.items()
        for cluster in CLUSTERS
    }
    title = f"Over auto at {seconds:g} CPU s (95 % interval); runs that fit"
    table = Table("plan", *parts, title=title)
    for column in COLUMNS:
        cells = []
        for part in parts.values():
            logs = logs_of(part, column)
            if not logs:
                cells.append(None)
                continue
            mean, low, high = interval(logs)
            runs = [found[column] for found in part.values() if column in found]
            fits = sum(not run["overflow"] for run in runs)
            cells.append(f"{mean:.2f} ({low:.2f} to {high:.2f}); {fits} of {len(runs)}")
        table.row(column, *cells)


def by_family(figures: Figures, seconds: float) -> None:
    """Families in rows, geometric means over their problems and seeds on either cluster."""
    shown = [column for column in COLUMNS if column not in ("single", "expert")]
    title = f"Over auto at {seconds:g} CPU s, on {' / on '.join(CLUSTERS)}"
    table = Table("family", *shown, title=title)
    for networks in SECTIONS.values():
        for family in sorted({family_of(f"{network}@") for network in networks}):
            own = [network for network in networks if family_of(f"{network}@") == family]
            cells = []
            for column in shown:
                means = []
                for cluster in CLUSTERS:
                    logs = logs_of(within(figures, own, cluster), column)
                    values = [value for each in logs.values() for value in each]
                    means.append(f"{np.exp(np.mean(values)):.2f}" if values else "–")
                cells.append(" / ".join(means))
            table.row(family, *cells)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    option = parser.add_argument
    option("--sections", type=name_list, default=list(SECTIONS), help="own, other")
    option("--what", type=name_list, default=list(WHAT), help="what is run")
    option("--seconds", type=float, default=1.0, help="CPU seconds of auto")
    option("--seeds", type=seed_range, default=range(3), help="seeds")
    add_jobs(parser, 1)
    add_results(parser, "runs/out_of_family.jsonl")
    arguments = parser.parse_args(argv)
    sections = chosen(parser, arguments.sections, SECTIONS)
    jobs = [
        ComparisonJob(what, f"{network}@{cluster}", seed, arguments.seconds)
        for section in sections
        for network in SECTIONS[section]
        for cluster in CLUSTERS
        for what in chosen(parser, arguments.what, WHAT)
        for seed in arguments.seeds
    ]

    def describe(row: dict[str, Any]) -> str:
        return f"{row['problem']} {row['what']} {row['seed']} in {row['work']:.1f} CPU s"

    rows = run_jobs(jobs, ResultFile(arguments.out, key_of), arguments.jobs, describe)
    show(rows, arguments.seconds)


if __name__ == "__main__":
    main()
