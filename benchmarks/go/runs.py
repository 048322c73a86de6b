"""Runs of GO and of what it is compared with."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placewright as pw
from benchmarks.common import ResultFile, run_jobs
from placewright import policies, solvers
from placewright.policies.go.config import GoConfig
from placewright.policies.go.initial_plans import (
    INITIAL_PLAN_COUNT,
    heuristic_plans,
    path_lengths,
)
from placewright.training import PPO, Environment, Trainer, find_recipe
from placewright.training.go.demonstrations import (
    Demonstration,
    DemonstrationTask,
    make_demonstration,
    quick_demonstration,
    read_demonstrations,
)
from placewright.training.go.imitation import Imitation
from placewright.training.go.issue_order import IssueOrderEnvironment, longest_path_priorities
from placewright.training.go.proposer import GoProposer
from placewright.training.recipes.go import go_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.training import Recipe

MAX_UNITS = 5000
"""Units of a graph in training: larger graphs are merged to this number."""
EXACT = Imitation(damaged_copies=0, unit_probability=1.0, max_smoothed_decisions=0.5)
"""On one graph: imitate all of a strong plan, to the last unit."""
IMITATED = 300
"""Steps of imitation of `auto`'s plans before PPO."""
FINE_TUNED = 40, 10
"""Updates of fine-tuning: of imitation (gradient steps each: as many as PPO has epochs), of PPO."""
ABLATIONS: dict[str, dict[str, Any]] = {
    "no attention": {"attention": False},
    "no modulation": {"modulation": False},
    "one pass": {"passes": ("unit",)},
    "no imitation": {},
    "no learning": {},
}
"""Changes to GO; without learning its weights stay as they were initialised."""
ALONE = ("no imitation", "no learning")
"""Those without demonstrations."""
SOLVERS: dict[str, Any] = {
    "metis": solvers.METIS,
    "expert": solvers.Expert,
    "heft": solvers.HEFT,
    "m-etf": solvers.METF,
    "single": solvers.SingleDevices,
}
TASKS = tuple(
    "+".join(part)
    for size in (1, 2, 3)
    for part in combinations(("device", "priority", "fusion"), size)
)
"""What is decided in section `tasks`; the default decides the rest."""
FIRST = "first plans"
"""The best of GO's initial plans: what it has before it has learned anything."""
SHORT = ("fine-tuned", "50 updates")
"""Of a policy that was trained on other networks, and of fresh weights for comparison."""
LEARNED = (*TASKS, "go", "zero-shot", *SHORT, "hierarchical", *ABLATIONS)


@dataclass(frozen=True)
class Run:
    """One method on one row.

    Args:
        method: Of `SOLVERS` or `LEARNED`, or `auto`, `bound`, `default`, `FIRST`.
        plans: Plans that a learned method samples in training.
        policy: The file of a policy that was trained on the other fold.
        samples: Episodes per update.
    """

    network: str
    cluster: str
    method: str
    seed: int = 0
    plans: int = 0
    device: str = "cpu"
    policy: str = ""
    samples: int = 32
    hidden: int = 64
    seconds: float = 30.0
    threads: int = 1
    graphs: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes it from others; not the machine that it ran on."""
        return key_of(asdict(self))

    def __call__(self) -> dict[str, Any]:
        began = time.perf_counter()
        task = DemonstrationTask(self.network, self.cluster, "ready")
        problem = task.problem(Path(self.graphs) if self.graphs else None)
        figures = self._figures(task, problem)
        return {**asdict(self), **figures, "took": time.perf_counter() - began}

    def _figures(self, task: DemonstrationTask, problem: pw.Problem) -> dict[str, Any]:
        if self.method == "bound":
            return {"best": solvers.bound(problem).seconds, "over": 0}
        if self.method in SOLVERS:
            return _figures_of(pw.solve(problem, SOLVERS[self.method]()))
        if self.method == "auto":
            stop = pw.MaxTime(self.seconds)
            result = pw.solve(problem, solvers.Auto(), stop=stop, seed=self.seed, cautious=False)
            return _figures_of(result)
        if self.method == FIRST:
            rank = path_lengths(problem.arrays)[0]
            device = heuristic_plans(problem, rank, INITIAL_PLAN_COUNT)
            order = longest_path_priorities(problem, device)
            verdict = pw.judge(problem, device, order)
            best = verdict.best()
            return {"best": float(verdict.value[best]), "over": int(verdict.overflow[best])}
        if self.method == "hierarchical":
            return self._hierarchical(problem)
        if self.method == "zero-shot":
            return self._zero_shot(problem)
        if self.method == "default" or self.method in TASKS:
            return self._tasks(task, problem)
        return self._trained(task, problem)

    def _hierarchical(self, problem: pw.Problem) -> dict[str, Any]:
        environment = Environment(problem)
        recipe = find_recipe("hierarchical", 64, 128)
        Trainer([environment], recipe, self.seed, self.plans, device=self.device).run()
        curve = [[plans, seconds, best] for plans, seconds, best in environment.history]
        return {"best": environment.best_key[1], "over": environment.best_key[0], "curve": curve}

    def _tasks(self, task: DemonstrationTask, problem: pw.Problem) -> dict[str, Any]:
        """Some tasks learned from the default: its devices, first-ready, a compiler's fusion."""
        device = default_devices(problem)[None]
        environment = IssueOrderEnvironment(problem, threads=self.threads, fuse_by_default=True)
        judged = environment.judge(device, "default")
        found = {"best": float(judged.seconds[0]), "over": int(judged.overflow[0])}
        if self.method == "default":
            return found
        tasks = tuple(self.method.split("+"))
        shape = GoConfig(hidden=self.hidden, max_groups=MAX_UNITS)
        made = replace(shape, tasks=tasks, ranked=False, timed=True).build(problem, self.seed)
        made.set_initial_plan(problem, device[0])
        lesson = Demonstration(task, problem, ("default",), device, judged.seconds, judged.overflow)
        how = go_recipe(episodes=self.samples, imitation_share=0.0, imitation_steps=0)
        updates = max(1, self.plans // self.samples) + 1
        trainer = self._trainer(made, lesson, how, updates, fuse_by_default=True)
        trainer.run()
        hooks: Any = trainer.hooks
        over, best = hooks.best_keys[0]
        return {"best": best, "over": over, "curve": hooks.curves[0]}

    def _trainer(
        self, policy: Any, lesson: Demonstration, recipe: Recipe, updates: int, **options: Any
    ) -> Trainer:
        environment = recipe.environment(
            lesson.problem, demonstration=lesson, threads=self.threads, **options
        )
        return Trainer(
            [environment], recipe, self.seed, None, policy, self.device, max_updates=updates
        )

    def _zero_shot(self, problem: pw.Problem) -> dict[str, Any]:
        """The greedy plan and 15 sampled ones, for the whole graph."""
        proposer = GoProposer.read(Path(self.policy), self.threads)
        began = time.perf_counter()
        plans = proposer.propose(problem, 16, self.seed)
        took = time.perf_counter() - began
        priority = [
            np.zeros(len(plan)) if plan.priority is None else plan.priority for plan in plans
        ]
        verdict = pw.judge(
            problem, np.stack([plan.placement for plan in plans]), np.stack(priority)
        )
        best = verdict.best()
        first = float(verdict.value[0]) if not verdict.overflow[0] else None
        return {
            "best": float(verdict.value[best]),
            "over": int(verdict.overflow[best]),
            "likeliest": first,
            "inference": took,
        }

    def _trained(self, task: DemonstrationTask, problem: pw.Problem) -> dict[str, Any]:
        shape = GoConfig(
            hidden=self.hidden,
            max_groups=MAX_UNITS,
            timed=True,
            starts=INITIAL_PLAN_COUNT,
            tasks=("device", "priority"),
            **ABLATIONS.get(self.method, {}),
        )
        updates, steps = max(1, self.plans // self.samples), IMITATED
        how: dict[str, Any] = {"learning_rates": (3e-3, 1e-3)}
        made: Any = shape.build(problem, self.seed)
        if self.method in SHORT:
            steps, updates = FINE_TUNED
            how["imitation_epochs"] = PPO().epochs
        if self.method == "fine-tuned":
            made = policies.load(Path(self.policy))
            made.config = replace(made.config, max_groups=MAX_UNITS)
        if self.method in ALONE:
            steps = 0
        if self.method == "no learning":
            how["learning_rates"] = (0.0, 0.0)
        lesson = _demonstration(task, problem, self.seconds if steps else 0.0)
        recipe = go_recipe(
            episodes=self.samples,
            imitation_share=steps / (steps + updates),
            imitation_steps=0,
            imitation=EXACT,
            **how,
        )
        trainer = self._trainer(made, lesson, recipe, steps + updates + 1)
        hooks: Any = trainer.hooks
        trainer.run(partial(_after_imitation, steps=steps))
        hooks.try_priority_rules(trainer, 0)
        over, best = hooks.best_keys[0]
        reference = hooks.references[0]
        return {
            "best": best,
            "over": over,
            "teacher": lesson.best_objective,
            "judged": trainer.environments[0].evaluations,
            "curve": hooks.curves[0],
            "learned": [
                [row.update - 1, row.greedy / reference, row.mean / reference]
                for row in trainer.log[::10]
            ],
        }


def _after_imitation(trainer: Trainer, steps: int) -> bool:
    """Evaluate what imitation alone has learned, in every order; training continues."""
    hooks: Any = trainer.hooks
    if trainer.updates == steps:
        hooks.greedy_seconds(trainer, 0)
        hooks.try_priority_rules(trainer, 0)
    return True


def default_devices(problem: pw.Problem) -> NDArray[np.int32]:
    """The best single device that fits, else METIS's parts, repaired."""
    single = pw.solve(problem, solvers.SingleDevices())
    if single.fits:
        return single.plan.placement
    return pw.solve(problem, solvers.METIS(repaired=True)).plan.placement


def _demonstration(task: DemonstrationTask, problem: pw.Problem, seconds: float) -> Demonstration:
    """Plans of `auto` with this budget; with none, GO's initial plan and list schedules."""
    if seconds:
        record = make_demonstration(task, problem, (1000, 5000, 10**7), seconds)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "demonstrations.jsonl"
            path.write_text(json.dumps(record) + "\n")
            return read_demonstrations(path, None)[0]
    return quick_demonstration(problem)


def _figures_of(result: pw.Result) -> dict[str, Any]:
    curve = [[plans, seconds, best] for plans, seconds, best in result.history]
    return {"best": result.objective_value, "over": result.overflow, "curve": curve}


def run_all(runs: Sequence[Run], path: Path, jobs: int) -> list[dict[str, Any]]:
    """All lines of the file, after the runs that are not in it; see `run_jobs`."""

    def describe(row: dict[str, Any]) -> str:
        return f"{row['network']} {row['method']}: {row['best']:.4f}, {row['took']:.0f} s"

    # A method may need a library that is not installed, e.g. METIS.
    return run_jobs(runs, ResultFile(path, key_of), jobs, describe, (pw.PlacewrightError,))


@cache
def _names() -> tuple[str, ...]:
    machine_fields = ("device", "threads", "graphs", "policy", "seconds")
    return tuple(name for name in Run.__dataclass_fields__ if name not in machine_fields)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes a run from others, given its line."""
    return tuple(row[name] for name in _names())
