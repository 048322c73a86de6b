"""Whether learning adds value: `auto` alone, and with proposers, on problems never seen.

    python benchmarks/proposers.py prepare --problems FOLDER
    python benchmarks/proposers.py run --problems FOLDER --out RUNS.jsonl [--jobs 2]
        [--seconds 0.3,1,3] [--cpu] [--plans 4000] [--seeds 5] [--most 44] [--arms auto,scout,…]
    python benchmarks/proposers.py report --out RUNS.jsonl

`prepare` writes the held-out problems to files, so that a machine without the libraries that some
networks are captured with can run them. `run` adds to a file what is not in it yet, each run on one
thread with one chain; with `--cpu` its own seconds count, for a machine that others use. `report`
compares each arm with `auto`, seed by seed: the geometric mean of the ratios of step times, its 95%
interval (bootstrap over problems), how many problems are better and worse by more than 1 % in the
median seed, and the median of the seconds until it had `auto`'s own last plan or better over those
that `auto` took (`inf`: it never had in half of the runs). `auto again` has other seeds: what it
shows is chance. Problems where `auto` is within 1 % of the best known plan after 1 s (or the least
budget) have nothing to gain and are listed apart.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import train_go
from proposer_controls import ShuffledProposer, untrained_proposer
from proposer_problems import held_out, problem

from placewright import files
from placewright.policies.proposers import LinearProposer
from placewright.policies.shipped import FOLDS, WEIGHTS_FOLDER
from placewright.solvers import Auto, MaxEvaluations, MaxTime, Search, Stop
from placewright.solvers.scout import (
    Scout,
    ScoutNetwork,
    shipped_network,
)
from placewright.training.go.proposer import GoProposer

if TYPE_CHECKING:
    from placewright import Problem
    from placewright.solvers.proposer import Proposer


AGAIN, OTHER_SEED = "auto again", 1_000
"""`auto` with another seed: what differs from `auto` by chance alone."""


SEEN = {
    fold: tuple(network.partition(":")[0] for network in networks)
    for fold, networks in train_go.FOLDS.items()
}
"""Beginnings of the names of what each policy of GO has seen the like of."""


def arms(name: str, arm: str) -> tuple[Proposer, ...]:
    """The proposers of an arm, for a problem of that name.

    `scout shuffled` looks at as many moves as the scout and takes any.
    """
    if arm.startswith("go"):
        return go_arms(next((one for one, seen in SEEN.items() if not name.startswith(seen)), "a"))[
            arm
        ]
    fresh = ScoutNetwork.random(shipped_network().widths)
    return {
        "auto": (),
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
    """GO of a fold, the same dealt out to other ops, and one of its shape without lessons."""
    trained = GoProposer.read(WEIGHTS_FOLDER / f"{FOLDS[fold]}.json")
    fresh = GoProposer(trained.policy.config.build(None))
    return {"go": (trained,), "go shuffled": (ShuffledProposer(trained),), "go untrained": (fresh,)}


@dataclass(frozen=True)
class CpuTime(MaxTime):
    """Over after so many seconds of this process's own, on a machine that others use as well."""

    began: float = field(default_factory=time.process_time)

    def __call__(self, search: Search) -> bool:
        return self.seconds_left(search) <= 0

    def seconds_left(self, search: Search) -> float:
        return max(0.0, self.seconds - (time.process_time() - self.began))


ARMS = f"auto,{AGAIN},scout,scout shuffled,scout untrained,pair"


@cache
def read(path: Path) -> Problem:
    return files.load(path, "problem")


def one(path: Path, name: str, arm: str, seed: int, budget: tuple[str, float]) -> dict[str, Any]:
    """One run. What is kept of a problem between runs, but for its arrays, is made anew."""
    fresh, proposers = read(path).with_arrays(), arms(name, arm)
    kind, amount = budget
    stop: Stop = MaxEvaluations(int(amount)) if kind == "plans" else MaxTime(amount)
    if kind == "cpu seconds":
        stop = CpuTime(amount)
    search = Search(fresh, stop, seed + OTHER_SEED * (arm == AGAIN))
    Auto(chains=1, proposers=proposers).run(search)
    overflow, value = search.key
    return {
        "problem": name,
        "ops": fresh.arrays.ops,
        "arm": arm,
        "seed": seed,
        "budget": list(budget),
        "overflow": overflow,
        "value": value,
        "seconds": search.seconds,
        "plans": search.evaluations,
        "found_by": search.found_by,
        "history": [[round(at, 3), best] for _, at, best in search.history[-200:]],
    }


def prepare(given: argparse.Namespace) -> None:
    given.problems.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(held_out()):
        path = given.problems / f"{number}.json"
        if not path.exists():
            made = problem(name)
            files.save(made, path)
            print(f"{name}: {made.arrays.ops} ops, {path.stat().st_size >> 10} KiB", flush=True)


def known(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["problem"], row["arm"], row["seed"], tuple(row["budget"])


def run(given: argparse.Namespace) -> None:
    done = {key(row) for row in known(given.out)}
    clock = "cpu seconds" if given.cpu else "seconds"
    budgets = [(clock, float(each)) for each in given.seconds.split(",") if each]
    budgets += [("plans", float(each)) for each in given.plans.split(",") if each]
    names = held_out()[: given.most]
    wanted = [
        (given.problems / f"{number}.json", name, arm, seed, budget)
        for budget in budgets
        for number, name in enumerate(names)
        for seed in range(given.seeds)
        for arm in given.arms.split(",")
        if (name, arm, seed, budget) not in done
    ]
    print(f"{len(wanted)} runs to do, {len(done)} known", flush=True)
    count = multiprocessing.Value("i", 0)
    pool = ProcessPoolExecutor(given.jobs, initializer=settle_down, initargs=(count,))
    with pool, given.out.open("a") as out:
        for done_one in as_completed([pool.submit(one, *each) for each in wanted]):
            out.write(json.dumps(done_one.result()) + "\n")
            out.flush()


def settle_down(count: Any) -> None:
    """Keep a process to one core of its own, whatever number of threads is started in it."""
    with count.get_lock():
        mine, count.value = count.value, count.value + 1
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[mine % len(cores)]})


Table = dict[tuple[str, float], dict[tuple[str, int], dict[str, dict[str, Any]]]]


def interval(logs: dict[str, list[float]], draws: int = 2_000) -> tuple[float, float, float]:
    """The geometric mean and its 95 % interval; problems are drawn with all their seeds."""
    means = np.array([np.mean(each) for each in logs.values()])
    rng = np.random.default_rng(0)
    drawn = means[rng.integers(0, len(means), size=(draws, len(means)))].mean(axis=1)
    low, high = np.exp(np.percentile(drawn, [2.5, 97.5]))
    return float(np.exp(means.mean())), float(low), float(high)


def report(given: argparse.Namespace) -> None:
    rows = known(given.out)
    table: Table = defaultdict(lambda: defaultdict(dict))
    best: dict[str, float] = defaultdict(lambda: float("inf"))
    for row in rows:
        table[tuple(row["budget"])][row["problem"], row["seed"]][row["arm"]] = row
        if not row["overflow"]:
            best[row["problem"]] = min(best[row["problem"]], row["value"])
    timed = sorted(budget for budget in table if budget[0].endswith("seconds"))
    early = next((each for each in timed if each[1] == 1.0), timed[0] if timed else None)
    idle = settled(table[early], best) if early else set()
    print(f"{len(best)} problems, {len(idle)} with nothing to gain\n")
    columns = ["budget", "arm", "problems", "ratio", "95 % interval", "better", "worse"]
    columns += ["worst median", "sooner", "win"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for budget in sorted(table, key=lambda each: (each[0] == "plans", each)):
        for title, kept in (("all", None), ("to gain", False), ("nothing to gain", True)):
            found = {
                pair: by_arm
                for pair, by_arm in table[budget].items()
                if kept is None or (pair[0] in idle) == kept
            }
            for arm in sorted({arm for by_arm in found.values() for arm in by_arm} - {"auto"}):
                line(budget, f"{arm}, {title}", arm, found)
    print()
    for name in sorted(idle):
        print(f"nothing to gain: {name}")


def settled(found: dict[tuple[str, int], dict[str, Any]], best: dict[str, float]) -> set[str]:
    """Problems where `auto` is within 1 % of the best known plan in the median seed."""
    values: dict[str, list[float]] = defaultdict(list)
    for (name, _), by_arm in found.items():
        if "auto" in by_arm:
            row = by_arm["auto"]
            values[name].append(float("inf") if row["overflow"] else row["value"])
    return {name for name, each in values.items() if np.median(each) <= 1.01 * best[name]}


def line(
    budget: tuple[str, float], title: str, arm: str, found: dict[tuple[str, int], dict[str, Any]]
) -> None:
    logs: dict[str, list[float]] = defaultdict(list)
    fits, sooner = [0, 0], []
    for (name, _), by_arm in found.items():
        if "auto" not in by_arm or arm not in by_arm:
            continue
        mine, theirs = by_arm[arm], by_arm["auto"]
        if mine["overflow"] or theirs["overflow"]:  # one fits and the other does not: counted apart
            fits[0] += not mine["overflow"]
            fits[1] += not theirs["overflow"]
            continue
        logs[name].append(float(np.log(mine["value"] / theirs["value"])))
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
    note = f" (fits alone {fits[0]}, auto alone {fits[1]})" if any(fits) else ""
    print(
        f"| {budget[1]:g} {budget[0]} | {title}{note} | {len(logs)} | {mean:.4f} "
        f"| {low:.4f} to {high:.4f} | {better} | {worse} | {max(middle.values()):.3f} "
        f"| {np.median(sooner):.2f} | {verdict} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True)
    one_ = commands.add_parser("prepare")
    one_.add_argument("--problems", type=Path, required=True)
    one_.set_defaults(run=prepare)
    two = commands.add_parser("run")
    two.add_argument("--problems", type=Path, required=True)
    two.add_argument("--out", type=Path, required=True)
    two.add_argument("--jobs", type=int, default=2)
    two.add_argument("--seconds", default="0.3,1,3")
    two.add_argument("--plans", default="")
    two.add_argument("--cpu", action="store_true", help="count the process's own seconds")
    two.add_argument("--seeds", type=int, default=5)
    two.add_argument("--most", type=int, default=1_000)
    two.add_argument("--arms", default=ARMS)
    two.set_defaults(run=run)
    three = commands.add_parser("report")
    three.add_argument("--out", type=Path, required=True)
    three.set_defaults(run=report)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
