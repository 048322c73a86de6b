"""Whether rewards alone teach Hierarchical, Placeto and GO when plans are not scarce.

    python -m benchmarks.learning.long_runs speed
    python -m benchmarks.learning.long_runs run --systems go --batches 4096,256
    python -m benchmarks.learning.long_runs report --systems go

The sibling of `gate` for the other three systems: the smallest row of each (`rows.py`), on devices
that run ops in the plan's order, 5 million plans for Hierarchical and 500,000 for Placeto and GO.
Recipes are those of `arms`, with more plans an update. `rewards only` imitates nothing, `never
learns` leaves the update out, and local search moves the same groups or ops with as many plans.
The first plan of GO, which its policy refines, is one of its plans. `speed` prints the plans per
CPU second of `rewards only`, and how long a run would take. Runs continue from their checkpoints.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import (
    ResultFile,
    Table,
    add_jobs,
    add_results,
    chosen,
    int_list,
    make_parser,
    name_list,
    read_rows,
    run_jobs,
    seed_range,
)
from benchmarks.learning.arm_runs import demonstrate
from benchmarks.learning.gate import print_arms
from benchmarks.learning.resumable_runs import search_row, train_row
from benchmarks.learning.rows import SYSTEMS, find_row
from placewright.training import Trainer
from placewright.training.recipes.arms import with_arm

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import placewright as pw

RESULTS = "benchmarks/results/raw/2026-11-19-long-runs.jsonl"
ROWS = {"hierarchical": "inception-v3", "placeto": "inception-v3", "go": "txl-2"}
"""The row of each system: the smallest of its rows in `arms`."""
PLANS = {"hierarchical": 5_000_000, "placeto": 500_000, "go": 500_000}
SEARCH, NULL, LEARNING = "local search", "never learns", "rewards only"
ARMS = (SEARCH, LEARNING, NULL)
MARKS = (1_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 5_000_000)
WARM_UPDATES = 2  # before `speed` counts: GO learns from an update while it samples the next


@dataclass(frozen=True)
class Run:
    """One arm on the row of a system.

    Args:
        batch: Plans of an update; 0 for local search.
        checkpoints: The folder of the checkpoints of all runs.
    """

    system: str
    network: str
    arm: str
    batch: int
    seed: int
    plans: int
    checkpoints: str = "out/long-runs"

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(asdict(self))

    @property
    def folder(self) -> Path:
        """Where its checkpoints are."""
        return Path(self.checkpoints) / "-".join(map(str, self.key)).replace(" ", "-")

    def problem(self) -> pw.Problem:
        """The problem of the row, with devices that run ops in the plan's order."""
        problem = find_row(self.system, self.network).problem()
        return replace(problem, discipline="in order")

    def trainer(self) -> Trainer:
        problem = self.problem()
        recipe = with_arm(SYSTEMS[self.system].recipe(), self.arm)
        recipe = replace(recipe, episodes=self.batch)
        taught_by = None
        if self.system == "go":
            row = find_row(self.system, self.network)
            taught_by, _ = demonstrate(row, problem, recipe, self.plans, self.seed)
        environment = recipe.environment(problem, demonstration=taught_by)
        return Trainer([environment], recipe, self.seed, self.plans, device="cpu")

    def __call__(self) -> dict[str, Any]:
        own = asdict(self)
        del own["checkpoints"]
        return {**own, **(self.search() if self.arm == SEARCH else self.train())}

    def search(self) -> dict[str, Any]:
        row = search_row(self.problem(), SYSTEMS[self.system].search, self.plans, self.seed)
        return {**row, "learned": []}

    def train(self) -> dict[str, Any]:
        trainer = self.trainer()
        row = train_row(trainer, self.folder)
        return {**row, "found_by": trainer.environments[0].found_by}


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes a run from others, given its line."""
    return tuple(row[name] for name in Run.__dataclass_fields__ if name != "checkpoints")


def needed_runs(arguments: argparse.Namespace) -> list[Run]:
    """All runs, seed by seed; what never learns samples as much at once as the first size."""
    runs = []
    for seed, system, batch, arm in product(
        arguments.seeds, arguments.systems, arguments.batches, arguments.arms
    ):
        size = {SEARCH: 0, NULL: arguments.batches[0]}.get(arm, batch)
        plans = arguments.plans or PLANS[system]
        runs.append(Run(system, ROWS[system], arm, size, seed, plans, str(arguments.checkpoints)))
    return list(dict.fromkeys(runs))


def run(arguments: argparse.Namespace) -> None:
    def describe(row: dict[str, Any]) -> str:
        names = ", ".join(str(row[name]) for name in ("system", "arm", "batch", "seed"))
        return f"{names}: {row['best']:.4f}, {row['rate']:,.0f} plans per CPU s"

    results = ResultFile(arguments.out, key_of)
    run_jobs(needed_runs(arguments), results, arguments.jobs, describe)


def speed(arguments: argparse.Namespace) -> None:
    """Plans per CPU second of `rewards only`, and the CPU hours of a whole run."""
    table = Table("system", "row", "plans an update", "plans per CPU s", "plans", "CPU hours")
    for each in needed_runs(arguments):
        if each.arm == LEARNING:
            rate = measure_speed(each, arguments.seconds)
            hours = f"{each.plans / rate / 3600:.1f}"
            table.row(
                *(each.system, each.network, each.batch, f"{rate:,.0f}", f"{each.plans:,}", hours)
            )


def measure_speed(each: Run, seconds: float) -> float:
    """Plans per CPU second of updates, for so many CPU seconds or longer."""
    trainer = each.trainer()
    for _ in range(WARM_UPDATES):
        trainer.update()
    before, began = trainer.evaluations, time.process_time()
    while not trainer.finished and (
        time.process_time() - began < seconds or trainer.evaluations == before
    ):
        trainer.update()
    return (trainer.evaluations - before) / (time.process_time() - began)


def report(arguments: argparse.Namespace) -> None:
    """The best plan after so many plans, medians over seeds, and what the policy itself does."""
    rows = read_rows(arguments.out)
    for system in arguments.systems:
        plans = arguments.plans or PLANS[system]
        mine = [row for row in rows if (row["system"], row["plans"]) == (system, plans)]
        marks = [mark for mark in MARKS if mark <= plans]
        if mine:
            print(f"\n**{SYSTEMS[system].title}**\n")
            print_arms(mine, ARMS, marks, "plans per CPU s", [ROWS[system]])


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, __spec__.name)
    actions = {"run": run, "speed": speed, "report": report}
    option = parser.add_argument
    option("action", choices=actions, help="what to do")
    option("--systems", type=name_list, default=[*ROWS], help="systems to run")
    option("--arms", type=name_list, default=[*ARMS], help="arms to run")
    option("--seeds", type=seed_range, default=range(1), help="first:last + 1")
    option("--batches", type=int_list, default=[4096], help="plans of an update")
    option("--plans", type=int, default=0, help="plans that each run judges; 0 for the system's")
    option("--seconds", type=float, default=20.0, help="CPU seconds that `speed` measures")
    option("--checkpoints", type=Path, default=Path("out/long-runs"), help="folder of checkpoints")
    add_results(parser, RESULTS)
    add_jobs(parser, 1)
    arguments = parser.parse_args(argv)
    chosen(parser, arguments.systems, ROWS)
    chosen(parser, arguments.arms, ARMS)
    actions[arguments.action](arguments)


if __name__ == "__main__":
    main()
