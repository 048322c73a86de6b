"""Whether learning adds value: `auto` alone, and with proposers, on problems never seen.

    python -m benchmarks.proposers.compare prepare --problems FOLDER
    python -m benchmarks.proposers.compare run --problems FOLDER --out RUNS.jsonl --jobs 2
    python -m benchmarks.proposers.compare report --out RUNS.jsonl

`prepare` writes the held-out problems to files, so that a machine without the libraries that some
networks are captured with can run them. `run` adds to a file what is not in it yet, each run on one
thread with one chain; with `--cpu` its own CPU seconds count, for a machine that others use.
`report` compares each arm with `null`, seed by seed: the same `auto` with a proposer that proposes
nothing. It prints the geometric mean of the ratios of step times, its 95 % interval (bootstrap over
families of problems, problems and seeds), how many problems are better and worse by more than 1 %
in the median seed, and the median of the seconds until it had the null's own last plan or a better
one over those that the null took (`inf`: it never had in half of the runs). A plan that does not
fit counts as twice the step time of one that does. `auto` tries the null's plans, so the two differ
only where a time ends them; `auto again` has other seeds: it shows chance alone. Problems where the
null is within 1 % of the best known plan after 1 s (or the smallest budget) have nothing to gain
and are listed apart, and so are networks of kinds that the scout was not trained on. A second table
has the null's longer budgets over that first one: how much there is to gain.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import (
    BenchmarkParser,
    ResultFile,
    Table,
    float_list,
    make_parser,
    name_list,
    read_rows,
    run_jobs,
)
from benchmarks.go.folds import fold_policy
from benchmarks.proposers.problems import held_out, named_problem
from benchmarks.proposers.proposer_controls import (
    NullProposer,
    ShuffledProposer,
    untrained_proposer,
)
from benchmarks.train import train_go
from placewright import files
from placewright.policies.proposers import LinearProposer
from placewright.solvers import Auto, MaxEvaluations, MaxTime, Search, Stop
from placewright.solvers.move_scorer import (
    Scout,
    ScoutNetwork,
    shipped_network,
)
from placewright.training.go.proposer import GoProposer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright import Problem
    from placewright.solvers.proposer import Proposer


NULL = "null"
AGAIN, OTHER_SEED = "auto again", 1_000
"""`auto` with another seed: what differs from `auto` by chance alone."""


SEEN = {
    fold: tuple(network.partition(":")[0] for network in networks)
    for fold, networks in train_go.FOLDS.items()
}
"""Prefixes of the networks that each policy of GO was trained on."""


def arms(name: str, arm: str) -> tuple[Proposer, ...]:
    """The proposers of an arm, for a problem of that name.

    `scout shuffled` looks at as many moves as the scout and takes any of them.
    """
    if arm.startswith("go"):
        return go_arms(next((one for one, seen in SEEN.items() if not name.startswith(seen)), "a"))[
            arm
        ]
    fresh = ScoutNetwork.random(shipped_network().widths)
    return {
        "auto": (),
        NULL: (NullProposer(NULL),),
        AGAIN: (),
        "scout": (Scout(),),
        "scout shuffled": (Scout(name="scout shuffled", blind=True),),
        "scout untrained": (Scout(fresh, name="scout untrained"),),
        "pair": (LinearProposer(),),
        "pair shuffled": (ShuffledProposer(LinearProposer()),),
        "pair untrained": (untrained_proposer(),),
        "scout and pair": (Scout(), LinearProposer()),
    }[arm]


@cache
def go_arms(fold: str) -> dict[str, tuple[Proposer, ...]]:
    """GO of a fold; its proposals shuffled over the ops; and the same network untrained."""
    trained = GoProposer.read(fold_policy(fold))
    fresh = GoProposer(trained.policy.config.build(None))
    return {"go": (trained,), "go shuffled": (ShuffledProposer(trained),), "go untrained": (fresh,)}


@dataclass(frozen=True)
class CpuTime(MaxTime):
    """Stops after this many CPU seconds of this process, on a machine that others use as well."""

    began: float = field(default_factory=time.process_time)

    def __call__(self, search: Search) -> bool:
        return self.seconds_left(search) <= 0

    def seconds_left(self, search: Search) -> float:
        return max(0.0, self.seconds - (time.process_time() - self.began))


NEW_KINDS = ("amoebanet-d", "wavenet", "transformer-xl", "t5")
"""Networks for testing of kinds that no problem for training has."""
ARMS = (NULL, "auto", AGAIN, "scout", "scout shuffled", "scout untrained", "pair")


@cache
def read_problem(path: Path) -> Problem:
    return files.load(path, "problem")


@dataclass(frozen=True)
class Run:
    """One arm on one problem with one seed and budget."""

    path: Path
    name: str
    arm: str
    seed: int
    budget: tuple[str, float]

    @property
    def key(self) -> tuple[Any, ...]:
        return self.name, self.arm, self.seed, self.budget

    def __call__(self) -> dict[str, Any]:
        """Run it; nothing that a problem caches is kept between runs, except its arrays."""
        fresh, proposers = read_problem(self.path).with_arrays(), arms(self.name, self.arm)
        kind, amount = self.budget
        stop: Stop = MaxEvaluations(int(amount)) if kind == "plans" else MaxTime(amount)
        if kind == "cpu seconds":
            stop = CpuTime(amount)
        search = Search(fresh, stop, self.seed + OTHER_SEED * (self.arm == AGAIN))
        Auto(chains=1, proposers=proposers).run(search)
        overflow, value = search.key
        return {
            "problem": self.name,
            "ops": fresh.arrays.ops,
            "arm": self.arm,
            "seed": self.seed,
            "budget": list(self.budget),
            "overflow": overflow,
            "value": value,
            "seconds": search.seconds,
            "plans": search.evaluations,
            "found_by": search.found_by,
            "history": [[round(at, 3), best] for _, at, best in search.history[-200:]],
        }


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes a run from others, given its line."""
    return row["problem"], row["arm"], row["seed"], tuple(row["budget"])


def prepare(arguments: argparse.Namespace) -> None:
    arguments.problems.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(held_out()):
        path = arguments.problems / f"{number}.json"
        if not path.exists():
            problem = named_problem(name)
            files.save(problem, path)
            print(f"{name}: {problem.arrays.ops} ops, {path.stat().st_size >> 10} KiB", flush=True)


def run(arguments: argparse.Namespace) -> None:
    clock = "cpu seconds" if arguments.cpu else "seconds"
    budgets = [(clock, seconds) for seconds in arguments.seconds]
    budgets += [("plans", plans) for plans in arguments.plans]
    runs = [
        Run(arguments.problems / f"{number}.json", name, arm, seed, budget)
        for budget in budgets
        for number, name in enumerate(held_out()[: arguments.most])
        for seed in range(arguments.seeds)
        for arm in arguments.arms
    ]
    count = multiprocessing.get_context("spawn").Value("i", 0)
    results = ResultFile(arguments.out, key_of)
    run_jobs(
        *(runs, results, arguments.jobs, lambda row: " ".join(str(part) for part in key_of(row))),
        initializer=pin_to_core,
        initargs=(count,),
    )


def pin_to_core(count: Any) -> None:
    """Keep a process to one core of its own, however many threads it starts."""
    with count.get_lock():
        mine, count.value = count.value, count.value + 1
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[mine % len(cores)]})


Runs = dict[tuple[str, float], dict[tuple[str, int], dict[str, dict[str, Any]]]]


UNFIT_FACTOR = 2.0
"""A plan that does not fit counts as this many times one that does."""


def log_ratio(mine: dict[str, Any], theirs: dict[str, Any]) -> float:
    """The logarithm of two runs' step times, one over the other; none is left out."""
    if mine["overflow"] and theirs["overflow"]:
        return 0.0
    if mine["overflow"]:
        return float(np.log(UNFIT_FACTOR))
    if theirs["overflow"]:
        return -float(np.log(UNFIT_FACTOR))
    return float(np.log(mine["value"] / theirs["value"]))


def family_of(problem: str) -> str:
    """The family of a problem: its network without sizes, variants and cluster."""
    return problem.partition("@")[0].partition(":")[0].partition("-")[0]


def interval(logs: dict[str, list[float]], draws: int = 2_000) -> tuple[float, float, float]:
    """The geometric mean over problems and its 95 % interval.

    Families are resampled, then problems of each, then seeds of each: all three are chance.
    """
    by_family: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    for name, each in logs.items():
        by_family[family_of(name)].append(np.array(each))
    families, rng = list(by_family.values()), np.random.default_rng(0)
    means = []
    for _ in range(draws):
        drawn = [
            rng.choice(problems[problem], size=len(problems[problem])).mean()
            for family in rng.integers(len(families), size=len(families))
            for problems in [families[family]]
            for problem in rng.integers(len(problems), size=len(problems))
        ]
        means.append(np.mean(drawn))
    low, high = np.exp(np.percentile(means, [2.5, 97.5]))
    mean = np.mean([np.mean(each) for each in logs.values()])
    return float(np.exp(mean)), float(low), float(high)


def report(arguments: argparse.Namespace) -> None:
    rows = read_rows(arguments.out)
    table: Runs = defaultdict(lambda: defaultdict(dict))
    best: dict[str, float] = defaultdict(lambda: float("inf"))
    for row in rows:
        table[tuple(row["budget"])][row["problem"], row["seed"]][row["arm"]] = row
        if not row["overflow"]:
            best[row["problem"]] = min(best[row["problem"]], row["value"])
    timed = sorted(budget for budget in table if budget[0].endswith("seconds"))
    early = next((each for each in timed if each[1] == 1.0), timed[0] if timed else None)
    idle = settled(table[early], best) if early else set()
    new = {name for name in best if name.startswith(NEW_KINDS)}
    groups = {"all": {*best}, "to gain": best.keys() - idle, "nothing to gain": idle}
    groups["kinds never seen"] = new
    print(f"{len(best)} problems, {len(idle)} with nothing to gain\n")
    columns = ["budget", "arm", "problems", "ratio", "95 % interval", "better", "worse"]
    columns += ["worst median", "sooner", "win"]
    printed = Table(*columns)
    for budget in sorted(table, key=lambda each: (each[0] == "plans", each)):
        for title, names in groups.items():
            found = {pair: arms for pair, arms in table[budget].items() if pair[0] in names}
            for arm in sorted({arm for by_arm in found.values() for arm in by_arm} - {NULL}):
                print_arm(printed, budget, f"{arm}, {title}", arm, found)
    if early:
        print_longer(table, early)
    print()
    for name in sorted(idle):
        print(f"nothing to gain: {name}")


def print_longer(table: Runs, primary: tuple[str, float]) -> None:
    """What longer searches of the null gain over its primary budget, seed by seed."""
    budgets = sorted(each for each in table if each[0] == primary[0] and each > primary)
    columns = ["null's budget", "pairs of", "problems", "seeds", "ratio", "95 % interval"]
    printed = Table(*columns, title="Longer")
    for budget, pairs_of in dict.fromkeys(
        (each, of) for each in budgets for of in (each, max(budgets))
    ):
        logs: dict[str, list[float]] = defaultdict(list)
        for pair in table[pairs_of]:
            long, short = (table[each].get(pair, {}).get(NULL) for each in (budget, primary))
            if long and short and NULL in table[pairs_of][pair]:
                logs[pair[0]].append(log_ratio(long, short))
        if logs:
            mean, low, high = interval(logs)
            seeds = " or ".join(str(count) for count in sorted({len(one) for one in logs.values()}))
            cells = f"{pairs_of[1]:g}", len(logs), seeds, f"{mean:.4f}"
            printed.row(f"{budget[1]:g} {budget[0]}", *cells, f"{low:.4f} to {high:.4f}")


def settled(found: dict[tuple[str, int], dict[str, Any]], best: dict[str, float]) -> set[str]:
    """Problems where the null is within 1 % of the best known plan in the median seed."""
    values: dict[str, list[float]] = defaultdict(list)
    for (name, _), by_arm in found.items():
        if NULL in by_arm:
            row = by_arm[NULL]
            values[name].append(float("inf") if row["overflow"] else row["value"])
    return {name for name, each in values.items() if np.median(each) <= 1.01 * best[name]}


def print_arm(
    table: Table,
    budget: tuple[str, float],
    title: str,
    arm: str,
    found: dict[tuple[str, int], dict[str, Any]],
) -> None:
    logs: dict[str, list[float]] = defaultdict(list)
    fits, sooner = [0, 0], []
    for (name, _), by_arm in found.items():
        if NULL not in by_arm or arm not in by_arm:
            continue
        mine, theirs = by_arm[arm], by_arm[NULL]
        logs[name].append(log_ratio(mine, theirs))
        if mine["overflow"] or theirs["overflow"]:
            fits[0] += not mine["overflow"]
            fits[1] += not theirs["overflow"]
            continue
        reached = [at for at, best in mine["history"] if best <= theirs["value"]]
        needed = next(at for at, best in theirs["history"] if best <= theirs["value"])
        sooner.append(reached[0] / needed if reached else np.inf)
    if not logs:
        return
    mean, low, high = interval(logs)
    middle = {name: float(np.exp(np.median(each))) for name, each in logs.items()}
    better = sum(each < 0.99 for each in middle.values())
    worse = sum(each > 1.01 for each in middle.values())
    verdict = "yes" if high < 1 else "hurts" if high > 1.002 else "no"
    note = f" (fits alone {fits[0]}, null alone {fits[1]})" if any(fits) else ""
    table.row(
        f"{budget[1]:g} {budget[0]}",
        f"{title}{note}",
        len(logs),
        f"{mean:.4f}",
        f"{low:.4f} to {high:.4f}",
        better,
        worse,
        f"{max(middle.values()):.3f}",
        f"{np.median(sooner or [np.inf]):.2f}",
        verdict,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    commands = parser.add_subparsers(required=True, parser_class=BenchmarkParser)
    preparing = commands.add_parser("prepare", help="write the held-out problems")
    running = commands.add_parser("run", help="run what is not in the file yet")
    reporting = commands.add_parser("report", help="print the table")
    for command in (preparing, running):
        command.add_argument("--problems", type=Path, required=True, help="folder of the problems")
    for command in (running, reporting):
        command.add_argument("--out", type=Path, required=True, help="file of results")
    option = running.add_argument
    option("--jobs", type=int, default=2, help="processes at once")
    option("--seconds", type=float_list, default=[0.3, 1, 3], help="time budgets")
    option("--plans", type=float_list, default="", help="budgets in evaluations")
    option("--cpu", action="store_true", help="count CPU seconds of the process")
    option("--seeds", type=int, default=5, help="seeds per problem")
    option("--most", type=int, default=1_000, help="run this many problems at most")
    option("--arms", type=name_list, default=ARMS, help="arms to run")
    preparing.set_defaults(run=prepare)
    running.set_defaults(run=run)
    reporting.set_defaults(run=report)
    arguments = parser.parse_args(argv)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
