"""Runs of learned placers: what to run in, a line of JSON each out; those there are kept."""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import placewright as pw
from placewright import solvers
from placewright.problem import Constraints
from placewright.training import PPO, Environment, Recipe, Trainer, find_recipe
from placewright.training.baselines import BatchNormalised, MovingAverage
from placewright.training.rewards import FixedPenalty, GradedPenalty
from placewright.training.schedules import Constant, Linear, Step
from placewright.transforms import by_colocation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEARCH = "local search"
POINTS = 60  # of a curve that are kept

_NOISE = Linear(2.0, 0.5)
_SOME, _LITTLE, _NONE = Step(0.8, 0.1), Step(0.8, 0.03), Constant(0.0)
_PPO = PPO(epochs=3, max_kl=10.0)

_SWEEP: dict[str, dict[str, Any]] = {
    "no noise": {"noise": _NONE},
    "noise 1": {"noise": Linear(1.0, 0.25)},
    "noise 2": {},
    "noise 4": {"noise": Linear(4.0, 1.0)},
    "noise 2 to the end": {"noise": Constant(2.0)},
    "noise 2, not shared": {"shape": {"shared": False}},
    "noise 2, rate 1e-3": {"rate": Constant(1e-3)},
    "noise 2, rate 1e-2": {"rate": Constant(1e-2)},
    "noise 2, floor 0.03": {"floor": _LITTLE},
    "noise 2, no floor": {"floor": _NONE},
    "noise 2, floor 0.03, imitate 4": {"floor": _LITTLE, "imitate": Constant(4.0)},
    "noise 2 to the end, floor 0.03": {"noise": Constant(2.0), "floor": _LITTLE},
    "noise 4 to the end, floor 0.03": {"noise": Constant(4.0), "floor": _LITTLE},
    "noise 2, floor 0.03, 8 samples": {"floor": _LITTLE, "samples": 8},
    "noise 2, floor 0.03, 16 samples": {"floor": _LITTLE, "samples": 16},
    "noise 2, imitate 0": {"imitate": _NONE},
    "noise 2, imitate 4": {"imitate": Constant(4.0)},
    "noise 4 to the end, no floor": {"noise": Constant(4.0), "floor": _NONE},
    "noise 2, no floor, rate 1e-2": {"floor": _NONE, "rate": Constant(1e-2)},
    "noise 2, no floor, imitate 4": {"floor": _NONE, "imitate": Constant(4.0)},
    "noise 2, no floor, locality 64": {"floor": _NONE, "shape": {"locality": 64.0}},
    "noise 2, no floor, PPO": {"floor": _NONE, "algorithm": _PPO},
    "noise 2, no floor, rate 5e-3, PPO": {
        "floor": _NONE,
        "rate": Constant(5e-3),
        "algorithm": _PPO,
    },
    **{
        f"patches, noise {noise:g}, no floor, imitate {imitate:g}, rate {rate:g}": {
            "noise": Constant(noise),
            "floor": _NONE,
            "imitate": Constant(imitate),
            "rate": Constant(rate),
            "shape": {"patches": True},
        }
        for noise, imitate, rate in ((2.0, 8.0, 1e-2), (2.0, 8.0, 3e-3), (4.0, 4.0, 1e-2))
    },
    "noise 2, stretches": {"shape": {"home": "stretch"}},
    "noise 2, locality 12": {"shape": {"locality": 12.0}},
    "noise 2, locality 64": {"shape": {"locality": 64.0}},
}
_BEGIN: dict[str, Any] = {
    "noise": _NOISE,
    "rate": Constant(3e-3),
    "floor": _SOME,
    "imitate": Constant(1.0),
    "shape": {"patches": False},
}
"""What the sweep's settings do not name, so that they mean the same whatever the defaults are."""

SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    **{name: {**_BEGIN, **change} for name, change in _SWEEP.items()},
    "graded, batch": {"reward": GradedPenalty(), "baseline": BatchNormalised},
    "constant, moving average": {
        "reward": FixedPenalty(10.0),
        "baseline": partial(MovingAverage, 0.9),
    },
}
"""What is changed in a recipe, by the name of the setting."""


@dataclass(frozen=True)
class Run:
    """One training run, or one local search in the same groups.

    Args:
        recipe: A recipe, with a grouping behind a colon if it is to have another; or `SEARCH`.
        setting: What is changed in it.
        limit: Each GPU may use this share of its memory.
        hidden: Of the policy's network.
        device: Where the policy lives.
    """

    network: str
    cluster: str
    recipe: str
    seed: int
    plans: int
    setting: str = "as it is"
    groups: int = 64
    hidden: int = 128
    device: str = "cpu"
    limit: float = 1.0

    def problem(self) -> pw.Problem:
        """What is to be placed, as TensorFlow's executor runs it."""
        cluster = pw.Cluster.parse(self.cluster)
        most = {
            each.name: int(each.capacity * self.limit)
            for each in cluster.devices
            if each.kind == "gpu"
        }
        limits = Constraints(limits=most) if self.limit < 1 else Constraints()
        graph = pw.zoo.load(self.network)
        return pw.Problem(graph, cluster, constraints=limits, discipline="ready")

    def made(self) -> Recipe:
        """The recipe with its sizes and changes."""
        name, _, rule = self.recipe.partition(":")
        return changed(find_recipe(name, self.groups, self.hidden, rule or None), self.setting)

    def __call__(self) -> dict[str, Any]:
        problem, told = self.problem(), asdict(self)
        if self.recipe == SEARCH:
            search = solvers.LocalSearch(
                partial(by_colocation, count=self.groups), with_priorities=False
            )
            result = pw.solve(problem, search, stop=pw.MaxEvaluations(self.plans), seed=self.seed)
            curve = [[count, best] for count, _, best in result.history]
            found = {
                "best": result.objective_value,
                "over": result.overflow,
                "judged": result.evaluations,
            }
            return {**told, **found, "seconds": result.seconds, "curve": curve}
        environment = Environment(problem)
        trainer = Trainer([environment], self.made(), self.seed, self.plans, device=self.device)
        trainer.run()
        rows = trainer.log
        kept = sorted({(len(rows) - 1) * at // (POINTS - 1) for at in range(POINTS)})
        return {
            **told,
            "best": environment.best_key[1],
            "over": environment.best_key[0],
            "found_by": environment.found_by,
            "judged": environment.evaluations,
            "seconds": environment.seconds,
            "curve": [[rows[at].plans, rows[at].best] for at in kept],
            "learned": [
                [row.plans, row.mean, row.greedy, row.entropy, row.infeasible]
                for row in (rows[at] for at in kept)
            ],
        }


def changed(made: Recipe, setting: str) -> Recipe:
    """A recipe in a setting.

    Raises:
        TypeError: The policy has no such thing.
    """
    change = dict(SETTINGS[setting])
    shape = replace(made.policy_config, **change.pop("shape", {}))  # type: ignore[type-var]
    return replace(made, policy_config=shape, **change)


def run_all(runs: Sequence[Run], path: Path, jobs: int) -> list[dict[str, Any]]:
    """Every run's line, those in the file first; as many at once as `jobs`, none anew if 0."""
    rows = read(path)
    if not jobs:
        return rows
    known = {key_of(row) for row in rows}
    waiting = [run for run in dict.fromkeys(runs) if key_of(asdict(run)) not in known]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run) for run in waiting]):
            row = done.result()
            rows.append(row)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            shown = (row[name] for name in ("network", "recipe", "setting", "seed"))
            print(*shown, f"{row['best']:.4f} in {row['seconds']:.0f} s", flush=True)
    return rows


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, if it is there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a run from others, of its line."""
    return tuple(row[name] for name in Run.__dataclass_fields__)
