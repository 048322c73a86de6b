"""Islands that exchange plans, beside islands that do not and one long `auto`.

    python -m benchmarks.scaling.islands --jobs 1

Each row of results is a problem and a seed. On it, K islands exchange along a ring (`ring`), with
the best of all (`best`) or not at all (`none`, which are K runs of `auto` with seeds of their own);
`auto` is one run that may use as much processor time as `ring` took. All but the last evaluate the
same number of plans. The table has the step time or period as a share of `auto`'s; plans of islands
are the same on any machine, and processor seconds are those of one process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import placewright as pw
from benchmarks.common import (
    ResultFile,
    Table,
    add_jobs,
    add_results,
    chosen,
    geometric_mean,
    int_list,
    make_parser,
    name_list,
    run_jobs,
)
from placewright.solvers import Auto, Islands
from placewright.solvers.searches.annealing import first_round_length
from placewright.solvers.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.solvers.stop import SearchState

PROBLEMS = {
    "layered": ("layered", "4xP100+cpu", "step"),
    "series-parallel": ("series-parallel", "4xP100+cpu", "step"),
    "branches": ("branches", "4xP100+cpu", "step"),
    "layered-300": ("layered:ops=300", "4xP100+cpu", "step"),
    "transformer": ("transformer", "1xP100+cpu", "step"),
    "cifar10": ("cifar10", "4xP100+cpu", "step"),
    "wavenet-2x18": ("wavenet-2x18", "4xP100+cpu", "step"),
    "transformer-xl-4": ("transformer-xl-4", "4xP100+cpu", "step"),
    "inception-v3": ("inception-v3", "4xP100+cpu", "step"),
    "rnnlm-2": ("rnnlm-2", "4xP100+cpu", "step"),
    "gpt2 period": ("gpt2", "4xP100+cpu", "period"),
}
ARMS = ("ring", "best", "none", "auto")


@dataclass(frozen=True)
class MaxProcessorTime(Stop):
    """Over after this many seconds of this process's threads, from a given moment on."""

    seconds: float
    started: float
    certain = True

    def __call__(self, search: SearchState) -> bool:
        return self.seconds_left(search) <= 0

    def seconds_left(self, search: SearchState) -> float:
        return max(0.0, self.started + self.seconds - time.process_time())


@dataclass(frozen=True)
class IslandsJob:
    """All arms on one problem with one seed."""

    problem: str
    seed: int
    islands: int
    rounds: int
    effort: int

    @property
    def key(self) -> tuple[Any, ...]:
        return self.problem, self.seed, self.islands, self.rounds, self.effort

    def __call__(self) -> dict[str, Any]:
        name, cluster, objective = PROBLEMS[self.problem]
        problem: Any = pw.Problem(
            pw.zoo.load(name),
            pw.Cluster.parse(cluster),
            objective=objective,  # type: ignore[arg-type]
        )
        auto = Auto(exact=False)  # CP-SAT has a process of its own, whose time is not seen here
        length = 2 * first_round_length(problem) * self.effort // self.rounds
        total = length * self.rounds * self.islands
        arms: dict[str, dict[str, float]] = {}
        for arm in ARMS:
            started = time.process_time()
            stop: Stop = pw.MaxEvaluations(total)
            solver: Any = auto
            if arm == "auto":
                stop = MaxProcessorTime(arms["ring"]["cpu"], started)
            else:
                solver = Islands(self.islands, (auto,), length, arm, "threads:1")  # type: ignore[arg-type]
            result = pw.solve(problem, solver, stop, self.seed, select="best")
            arms[arm] = {
                "value": result.objective_value,
                "overflow": result.overflow,
                "evaluations": result.evaluations,
                "cpu": time.process_time() - started,
            }
        return {**vars(self), "ops": len(problem.graph), "total": total, "arms": arms}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument(
        "--problems", type=name_list, default=list(PROBLEMS), help="problems to try"
    )
    parser.add_argument("--seeds", type=int_list, default=[0, 1, 2], help="random seeds")
    parser.add_argument("--islands", type=int, default=4, help="how many islands")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each island")
    parser.add_argument(
        "--effort", type=int, default=16, help="plans of each island, in first rounds of annealing"
    )
    add_jobs(parser, 1)
    add_results(parser, "out/islands.jsonl")
    arguments = parser.parse_args(argv)
    names = chosen(parser, arguments.problems, PROBLEMS)
    settings = (arguments.islands, arguments.rounds, arguments.effort)
    jobs = [IslandsJob(name, seed, *settings) for seed in arguments.seeds for name in names]
    fields = ("problem", "seed", "islands", "rounds", "effort")
    results = ResultFile(Path(arguments.out), lambda row: tuple(row[field] for field in fields))
    rows = run_jobs(jobs, results, arguments.jobs, _describe)
    wanted = {job.key for job in jobs}
    _print_table([row for row in rows if tuple(row[field] for field in fields) in wanted], names)


def _describe(row: dict[str, Any]) -> str:
    shares = [f"{arm} {_share(row, arm):.4f}" for arm in ARMS[:-1]]
    return f"{row['problem']}, seed {row['seed']}: {', '.join(shares)}"


def _share(row: dict[str, Any], arm: str) -> float:
    """The objective as a share of `auto`'s; plans that do not fit count twice."""
    values = [
        row["arms"][name]["value"] * (2 if row["arms"][name]["overflow"] else 1)
        for name in (arm, "auto")
    ]
    return float(values[0] / values[1])


def _print_table(rows: list[dict[str, Any]], names: Sequence[str]) -> None:
    table = Table("problem", "ops", "seeds", "plans", *ARMS[:-1], "CPU s: ring", "auto")
    for name in names:
        own = [row for row in rows if row["problem"] == name]
        if own:
            table.row(name, own[0]["ops"], len(own), own[0]["total"], *_figures(own))
    if rows:
        table.row("geometric mean", "", len(rows), "", *_figures(rows))


def _figures(rows: list[dict[str, Any]]) -> list[str]:
    shares = [f"{geometric_mean(_share(row, arm) for row in rows):.4f}" for arm in ARMS[:-1]]
    cpu = [sum(row["arms"][arm]["cpu"] for row in rows) / len(rows) for arm in ("ring", "auto")]
    return [*shares, *(f"{seconds:.1f}" for seconds in cpu)]


if __name__ == "__main__":
    main()
