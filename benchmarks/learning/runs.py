"""Training runs of learned placers, and local search in the same groups."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import placewright as pw
from benchmarks.common import ResultFile, run_jobs
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
POINTS = 60  # of a learning curve that are saved

_NOISE = Linear(2.0, 0.5)
_SOME, _LITTLE, _NONE = Step(0.8, 0.1), Step(0.8, 0.03), Constant(0.0)
_PPO = PPO(epochs=3, max_kl=10.0)

_SWEEP: dict[str, dict[str, Any]] = {
    "no noise": {"logit_noise": _NONE},
    "noise 1": {"logit_noise": Linear(1.0, 0.25)},
    "noise 2": {},
    "noise 4": {"logit_noise": Linear(4.0, 1.0)},
    "noise 2 to the end": {"logit_noise": Constant(2.0)},
    "noise 2, not shared": {"policy_config": {"shared": False}},
    "noise 2, rate 1e-3": {"learning_rate": Constant(1e-3)},
    "noise 2, rate 1e-2": {"learning_rate": Constant(1e-2)},
    "noise 2, floor 0.03": {"entropy_floor": _LITTLE},
    "noise 2, no floor": {"entropy_floor": _NONE},
    "noise 2, floor 0.03, imitate 4": {"entropy_floor": _LITTLE, "self_imitation": Constant(4.0)},
    "noise 2 to the end, floor 0.03": {"logit_noise": Constant(2.0), "entropy_floor": _LITTLE},
    "noise 4 to the end, floor 0.03": {"logit_noise": Constant(4.0), "entropy_floor": _LITTLE},
    "noise 2, floor 0.03, 8 samples": {"entropy_floor": _LITTLE, "episodes": 8},
    "noise 2, floor 0.03, 16 samples": {"entropy_floor": _LITTLE, "episodes": 16},
    "noise 2, imitate 0": {"self_imitation": _NONE},
    "noise 2, imitate 4": {"self_imitation": Constant(4.0)},
    "noise 4 to the end, no floor": {"logit_noise": Constant(4.0), "entropy_floor": _NONE},
    "noise 2, no floor, rate 1e-2": {"entropy_floor": _NONE, "learning_rate": Constant(1e-2)},
    "noise 2, no floor, imitate 4": {"entropy_floor": _NONE, "self_imitation": Constant(4.0)},
    "noise 2, no floor, locality 64": {"entropy_floor": _NONE, "policy_config": {"locality": 64.0}},
    "noise 2, no floor, PPO": {"entropy_floor": _NONE, "algorithm": _PPO},
    "noise 2, no floor, rate 5e-3, PPO": {
        "entropy_floor": _NONE,
        "learning_rate": Constant(5e-3),
        "algorithm": _PPO,
    },
    **{
        f"patches, noise {noise:g}, no floor, imitate {imitate:g}, rate {rate:g}": {
            "logit_noise": Constant(noise),
            "entropy_floor": _NONE,
            "self_imitation": Constant(imitate),
            "learning_rate": Constant(rate),
            "policy_config": {"patches": True},
        }
        for noise, imitate, rate in ((2.0, 8.0, 1e-2), (2.0, 8.0, 3e-3), (4.0, 4.0, 1e-2))
    },
    "noise 2, stretches": {"policy_config": {"home": "stretch"}},
    "noise 2, locality 12": {"policy_config": {"locality": 12.0}},
    "noise 2, locality 64": {"policy_config": {"locality": 64.0}},
}
_BEGIN: dict[str, Any] = {
    "logit_noise": _NOISE,
    "learning_rate": Constant(3e-3),
    "entropy_floor": _SOME,
    "self_imitation": Constant(1.0),
    "policy_config": {"patches": False},
}
"""What the sweep's settings do not name, so that a change of defaults does not change them."""

SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    **{name: {**_BEGIN, **change} for name, change in _SWEEP.items()},
    "graded, batch": {"reward": GradedPenalty(), "baseline": BatchNormalised},
    "constant, moving average": {
        "reward": FixedPenalty(10.0),
        "baseline": partial(MovingAverage, 0.9),
    },
}
"""Changes to a recipe, by the name of the setting."""


@dataclass(frozen=True)
class Run:
    """One training run, or one local search in the same groups.

    Args:
        recipe: A recipe, with another grouping behind a colon; or `SEARCH`.
        setting: A name in `SETTINGS`.
        limit: Each GPU may use this share of its memory.
        hidden: Size of the policy's hidden states.
        device: The policy's torch device.
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
        """The problem, with devices that run ready ops first, as TensorFlow's executor does."""
        cluster = pw.Cluster.parse(self.cluster)
        limits = {
            each.name: int(each.capacity * self.limit) - each.reserve
            for each in cluster.devices
            if each.kind == "gpu"
        }
        constraints = Constraints(limits=limits) if self.limit < 1 else Constraints()
        graph = pw.zoo.load(self.network)
        return pw.Problem(graph, cluster, constraints=constraints, discipline="ready")

    def find_recipe(self) -> Recipe:
        """The recipe with its sizes and changes."""
        name, _, grouping = self.recipe.partition(":")
        recipe = find_recipe(name, self.groups, self.hidden, grouping or None)
        return change_recipe(recipe, self.setting)

    @property
    def key(self) -> tuple[Any, ...]:
        return key_of(asdict(self))

    def __call__(self) -> dict[str, Any]:
        problem, own = self.problem(), asdict(self)
        if self.recipe == SEARCH:
            search = solvers.LocalSearch(
                partial(by_colocation, count=self.groups), with_priorities=False
            )
            result = pw.solve(problem, search, stop=pw.MaxEvaluations(self.plans), seed=self.seed)
            curve = [[count, best] for count, _, best in result.history]
            figures = {
                "best": result.objective_value,
                "over": result.overflow,
                "judged": result.evaluations,
            }
            return {**own, **figures, "seconds": result.seconds, "curve": curve}
        environment = Environment(problem)
        trainer = Trainer(
            [environment], self.find_recipe(), self.seed, self.plans, device=self.device
        )
        trainer.run()
        rows = trainer.log
        points = sorted({(len(rows) - 1) * at // (POINTS - 1) for at in range(POINTS)})
        return {
            **own,
            "best": environment.best_key[1],
            "over": environment.best_key[0],
            "found_by": environment.found_by,
            "judged": environment.evaluations,
            "seconds": environment.seconds,
            "curve": [[rows[at].plans, rows[at].best] for at in points],
            "learned": [
                [row.plans, row.mean, row.greedy, row.entropy, row.infeasible]
                for row in (rows[at] for at in points)
            ],
        }


def change_recipe(recipe: Recipe, setting: str) -> Recipe:
    """A recipe with the changes of a setting.

    Raises:
        TypeError: The policy's configuration has no such field.
    """
    changes = dict(SETTINGS[setting])
    config = replace(recipe.policy_config, **changes.pop("policy_config", {}))  # type: ignore[type-var]
    return replace(recipe, policy_config=config, **changes)


def run_all(runs: Sequence[Run], path: Path, jobs: int) -> list[dict[str, Any]]:
    """All lines of the file, after the runs that are not in it; see `run_jobs`."""

    def describe(row: dict[str, Any]) -> str:
        names = " ".join(str(row[name]) for name in ("network", "recipe", "setting", "seed"))
        return f"{names} {row['best']:.4f} in {row['seconds']:.0f} s"

    return run_jobs(runs, ResultFile(path, key_of), jobs, describe)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes a run from others, given its line."""
    return tuple(row[name] for name in Run.__dataclass_fields__)
