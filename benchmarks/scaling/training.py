"""Training on workers: samples per second, and how soon asynchronous controllers find a plan.

    python -m benchmarks.scaling.training --only training --workers 1,2 --kinds processes
    python -m benchmarks.scaling.training --only asynchronous --controllers 2 --plans 400

Section `training`: episodes that are sampled, judged and learned from in a second, in micro-batches
on workers, relative to one worker. All rows of a size are measured in turns, and a figure is the
median of the rounds, so that a machine with other work slows all of them. `driver` is the CPU time
of the driver for an episode, and `in one process` that of the whole work: their ratio is the most
that any number of workers can gain.

Section `asynchronous`: one controller trains with N plans, once for each seed; the median of the
step times that it reaches is the target. Then C controllers train with the same seeds until they
have a plan that fast. Times begin when all workers have the problem and a policy. Plans that were
judged until then stand beside.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import placewright as pw
from benchmarks.common import (
    ResultFile,
    Table,
    add_results,
    chosen,
    int_list,
    make_parser,
    name_list,
    seed_range,
)
from placewright.training import Environment, Recipe, Trainer, find_recipe
from placewright.training.asynchronous import AsynchronousTrainer, Controllers
from placewright.workers import Workers, open_workers

if TYPE_CHECKING:
    from argparse import Namespace
    from contextlib import AbstractContextManager

SECTIONS = {
    "training": ("layered:ops=5000", "4xP100+cpu"),
    "asynchronous": ("nmt-2", "4xK40+Haswell"),
}
"""The network and the cluster of each section."""
KINDS = ("processes", "threads", "ray")
WHOLE, ALONE = "whole batches", "in one process"
WARM_UP = 2  # updates before a measurement


@dataclass(frozen=True)
class Task:
    """What is trained."""

    network: str
    cluster: str
    recipe: str
    groups: int
    hidden: int
    episodes: int

    def problem(self) -> pw.Problem:
        return pw.Problem(pw.zoo.load(self.network), pw.Cluster.parse(self.cluster))

    def find_recipe(self) -> Recipe:
        recipe = find_recipe(self.recipe, self.groups, self.hidden)
        return replace(recipe, episodes=self.episodes)


# -- samples per second ------------------------------------------------------------------------


class Mode:
    """One way to compute updates, whose trainer goes on from round to round."""

    def __init__(self, name: str, trainer: Trainer) -> None:
        self.name, self.trainer = name, trainer
        self.seconds: list[float] = []
        """Per episode, in each round."""
        self.cpu_seconds: list[float] = []
        """Those of this process, per episode, in each round."""

    def run(self, updates: int, measured: bool = True) -> None:
        """Make some updates."""
        last = self.trainer.updates + updates
        began, cpu_began = time.perf_counter(), time.process_time()
        self.trainer.run(lambda trainer: trainer.updates < last)
        if self.trainer.micro_batches is not None:  # episodes sampled ahead, beside the next mode
            self.trainer.micro_batches.prefetch.wait()
        if measured:
            episodes = updates * self.trainer.recipe.episodes
            self.seconds.append((time.perf_counter() - began) / episodes)
            self.cpu_seconds.append((time.process_time() - cpu_began) / episodes)


def measure_training(task: Task, arguments: Namespace, results: ResultFile) -> None:
    """Measure all modes that are not in the file, in turns with one worker and one process."""
    names = [f"{kind}:{count}" for kind in arguments.kinds for count in arguments.workers]
    if all(_training_key({**asdict(task), "mode": name}) in results for name in names):
        return
    problem, recipe = task.problem(), task.find_recipe()

    def make_trainer(workers: Workers | None, micro_batch: int | None) -> Trainer:
        return Trainer(
            [Environment(problem)],
            recipe,
            0,
            None,
            device="cpu",
            workers=workers,
            micro_batch=micro_batch,
        )

    with ExitStack() as stack:
        if "ray" in arguments.kinds:  # one process has one Ray cluster
            stack.enter_context(_ray_cluster(sum(arguments.workers)))
        size = arguments.micro_batch
        modes = [Mode(WHOLE, make_trainer(None, None)), Mode(ALONE, make_trainer(None, size))]
        for name in names:
            workers = stack.enter_context(open_workers(name))
            modes.append(Mode(name, make_trainer(workers, size)))
        for mode in modes:
            mode.run(WARM_UP, measured=False)
        for _ in range(arguments.rounds):
            for mode in modes:
                mode.run(arguments.updates)
        _check_equal(modes[1:])
    for mode in modes:
        if _training_key({**asdict(task), "mode": mode.name}) not in results:
            results.append(
                {
                    "section": "training",
                    **asdict(task),
                    "mode": mode.name,
                    "micro_batch": size,
                    "ops": problem.arrays.ops,
                    "seconds": mode.seconds,
                    "cpu_seconds": mode.cpu_seconds,
                }
            )


def _ray_cluster(cpus: int) -> AbstractContextManager[None]:
    from placewright.workers.ray_workers import local_cluster

    return local_cluster(cpus)


def _check_equal(modes: list[Mode]) -> None:
    """End the program unless all have the same weights: a faster way to another result is none."""
    states = [mode.trainer.policy.state_dict() for mode in modes]
    for mode, state in zip(modes, states, strict=True):
        if any((state[key] != states[0][key]).any() for key in state):
            raise SystemExit(f"{mode.name} has other weights than {modes[0].name}")


def print_training(task: Task, results: ResultFile) -> None:
    rows = {
        row["mode"]: row
        for row in results.rows
        if row["section"] == "training" and _task_of(row) == task
    }
    if not rows:
        return
    table = Table(
        "workers",
        "episodes a second",
        "against one of its kind",
        "driver, CPU ms an episode",
        title=f"{task.recipe} on {task.network}, {task.episodes} episodes an update",
    )
    for name, row in rows.items():
        kind, _, count = name.partition(":")
        one = rows.get(f"{kind}:1") if count else None
        ratio = None
        if one is not None and len(one["seconds"]) == len(row["seconds"]):
            pairs = zip(one["seconds"], row["seconds"], strict=True)
            ratio = f"{statistics.median(a / b for a, b in pairs):.2f}"
        seconds, cpu = statistics.median(row["seconds"]), statistics.median(row["cpu_seconds"])
        table.row(name, f"{1 / seconds:.1f}", ratio, f"{1e3 * cpu:.2f}")


# -- time to a plan ----------------------------------------------------------------------------


def measure_asynchronous(task: Task, arguments: Namespace, results: ResultFile) -> None:
    """Train with one controller for each seed, then with several up to the target."""
    _measure_runs(task, arguments, results, 1, 0.0)
    target = find_target(task, arguments, results)
    for count in arguments.controllers:
        _measure_runs(task, arguments, results, count, target)


def find_target(task: Task, arguments: Namespace, results: ResultFile) -> float:
    """The median over seeds of the step time of one controller after N plans."""
    rows = _asynchronous_rows(task, arguments, results, 1, 0.0)
    return statistics.median(row["best"] for row in rows)


def _measure_runs(
    task: Task, arguments: Namespace, results: ResultFile, count: int, target: float
) -> None:
    """Train with each seed that is not in the file, on workers that have begun."""
    missing = {
        seed: own
        for seed in arguments.seeds
        if _asynchronous_key(own := _run_of(task, arguments, count, seed, target)) not in results
    }
    if not missing:
        return
    problem, recipe = task.problem(), task.find_recipe()
    controllers = Controllers(count, arguments.samples)
    budget = arguments.plans * (arguments.max_ratio if target else 1)
    with open_workers(f"processes:{count}") as workers:
        warm_up = AsynchronousTrainer(
            [Environment(problem)], recipe, workers, controllers, 0, None, max_updates=4 * count
        )
        warm_up.run(lambda trainer: min(trainer.baseline.batches) < 1)  # type: ignore[attr-defined]
        for seed, own in missing.items():
            environment = Environment(problem)
            trainer = AsynchronousTrainer([environment], recipe, workers, controllers, seed, budget)
            cpu_began = time.process_time()
            trainer.run(lambda _, of=environment: of.best_key > (0.0, target))
            row = results.append(
                {
                    **own,
                    "best": environment.best_key[1] if environment.best_key[0] == 0 else inf,
                    "judged": environment.evaluations,
                    "updates": trainer.updates,
                    "seconds": trainer.seconds,
                    "driver_seconds": time.process_time() - cpu_began,
                    "staleness": statistics.mean(entry.stats["staleness"] for entry in trainer.log),
                    "history": [list(point) for point in environment.history],
                }
            )
            print(
                f"{count} controllers, seed {seed}: {row['best']:.6g} s after {row['judged']:,} "
                f"plans and {row['seconds']:.1f} s",
                flush=True,
            )


def _run_of(
    task: Task, arguments: Namespace, count: int, seed: int, target: float
) -> dict[str, Any]:
    """What distinguishes a run from others."""
    return {
        "section": "asynchronous",
        **asdict(task),
        "plans": arguments.plans,
        "controllers": count,
        "samples": arguments.samples,
        "seed": seed,
        "target": target,
    }


def time_to(row: dict[str, Any], target: float) -> tuple[float, float]:
    """Seconds and plans until a run had a plan at least as fast; infinity if it never had."""
    for plans, seconds, best in row["history"]:
        if best <= target:
            return seconds, plans
    return inf, inf


def print_asynchronous(task: Task, arguments: Namespace, results: ResultFile) -> None:
    one = _asynchronous_rows(task, arguments, results, 1, 0.0)
    if not one:
        return
    target = find_target(task, arguments, results)
    table = Table(
        "controllers",
        "seeds",
        "seconds to the target",
        "against one",
        "plans to the target",
        "plans a second",
        "staleness",
        title=f"{task.recipe} on {task.network}: a plan of {1e3 * target:.4g} ms, the median of "
        f"one controller's after {arguments.plans:,} plans",
    )
    one_seconds = statistics.median(time_to(row, target)[0] for row in one)
    for count in (1, *arguments.controllers):
        rows = one if count == 1 else _asynchronous_rows(task, arguments, results, count, target)
        if not rows:
            continue
        seconds = statistics.median(time_to(row, target)[0] for row in rows)
        table.row(
            count,
            len(rows),
            f"{seconds:.1f}",
            f"{seconds / one_seconds:.2f}",
            f"{statistics.median(time_to(row, target)[1] for row in rows):,.0f}",
            f"{statistics.median(row['judged'] / row['seconds'] for row in rows):.1f}",
            f"{statistics.mean(row['staleness'] for row in rows):.1f}",
        )


# -- rows and options --------------------------------------------------------------------------


def _task_of(row: dict[str, Any]) -> Task:
    return Task(**{name: row[name] for name in Task.__dataclass_fields__})


def _training_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return "training", _task_of(row), row["mode"]


def _asynchronous_key(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("plans", "controllers", "samples", "seed", "target")
    return "asynchronous", _task_of(row), *(row[name] for name in names)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return _training_key(row) if row["section"] == "training" else _asynchronous_key(row)


def _asynchronous_rows(
    task: Task, arguments: Namespace, results: ResultFile, count: int, target: float
) -> list[dict[str, Any]]:
    keys = {
        _asynchronous_key(_run_of(task, arguments, count, seed, target)) for seed in arguments.seeds
    }
    return [row for row in results.rows if _key(row) in keys]


def main() -> None:
    parser = make_parser(__doc__, __spec__.name)
    parser.add_argument("--only", type=name_list, default=list(SECTIONS), help="sections")
    parser.add_argument("--network", help="a network of the zoo, instead of each section's own")
    parser.add_argument("--on", help="a cluster, instead of each section's own")
    parser.add_argument("--recipe", default="colocrl", help="a recipe")
    parser.add_argument("--groups", type=int, default=64, help="groups that the policy places")
    parser.add_argument("--hidden", type=int, default=128, help="size of the policy's states")
    parser.add_argument("--episodes", type=int, default=16, help="episodes of an update")
    parser.add_argument("--micro-batch", type=int, default=2, help="episodes of a micro-batch")
    parser.add_argument("--kinds", type=name_list, default=["processes"], help="kinds of workers")
    parser.add_argument("--workers", type=int_list, default=[1, 2], help="numbers of workers")
    parser.add_argument("--updates", type=int, default=4, help="updates of a measurement")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each row")
    parser.add_argument("--controllers", type=int_list, default=[2], help="numbers of controllers")
    parser.add_argument("--samples", type=int, default=4, help="plans of a controller's gradient")
    parser.add_argument("--plans", type=int, default=2000, help="plans of one controller")
    parser.add_argument(
        "--max-ratio", type=int, default=8, help="times as many plans until others give up"
    )
    parser.add_argument("--seeds", type=seed_range, default=range(5), help="seeds")
    parser.add_argument("--print-only", action="store_true", help="print what is in --out")
    add_results(parser, "out/scaling-training.jsonl")
    arguments = parser.parse_args()
    chosen(parser, arguments.only, SECTIONS)
    chosen(parser, arguments.kinds, KINDS)
    results = ResultFile(arguments.out, _key)
    for section in arguments.only:
        network, cluster = SECTIONS[section]
        task = Task(
            arguments.network or network,
            arguments.on or cluster,
            arguments.recipe,
            arguments.groups,
            arguments.hidden,
            arguments.episodes,
        )
        if section == "training":
            if not arguments.print_only:
                measure_training(task, arguments, results)
            print_training(task, results)
        else:
            if not arguments.print_only:
                measure_asynchronous(task, arguments, results)
            print_asynchronous(task, arguments, results)


if __name__ == "__main__":
    main()
