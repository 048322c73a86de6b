"""Training options of the command line: saved with a run, and read again to resume it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from placewright.problem import Problem
    from placewright.training import Environment, Recipe, Trainer
    from placewright.workers import Workers

DEFAULT_EVALUATIONS = 5000
"""Plans that a run judges by default."""
_RENAMED = {"plans": "evaluations", "rule": "grouping", "graphs": "family", "times": "start_times"}
"""Names in runs of release 0.1.0."""
_BUDGETS = ("evaluations", "seconds")
SIMULATORS = ("cpu", "gpu")
"""What can evaluate the plans of a run."""


@dataclass(frozen=True)
class TrainingOptions:
    """The options of `train` that define a run; None where nothing is typed.

    Args:
        evaluations: Plans to judge.
        seconds: Seconds to train.
        family: Families of graphs to train on, with commas between them.
        demonstrations: A file of demonstrated plans, whose problems are trained on.
        episodes: Episodes of an update, instead of the recipe's.
        micro_batch: Episodes of a micro-batch, in a run on workers.
        asynchronous: Controllers and the workers of each, such as `4:8`.
        simulator: What evaluates plans: `cpu`, or `gpu` for lanes on a GPU.
        measure: Whether plans are measured on this machine.
    """

    recipe: str | None = None
    evaluations: int | None = None
    seconds: float | None = None
    seed: int | None = None
    groups: int | None = None
    hidden: int | None = None
    grouping: str | None = None
    family: str | None = None
    start_times: bool = False
    demonstrations: str | None = None
    episodes: int | None = None
    micro_batch: int | None = None
    asynchronous: str | None = None
    simulator: str | None = None
    measure: bool = False

    def for_new_run(self) -> TrainingOptions:
        """With the defaults of what is not typed.

        Raises:
            ConfigError: No recipe is named, or there is none of that name.
        """
        from placewright.training import RECIPES

        if self.recipe is None:
            raise ConfigError(f"no recipe is named: name one of {', '.join(RECIPES)}")
        if self.recipe not in RECIPES:
            raise ConfigError(
                f"no recipe is named {self.recipe!r}: {nearest(self.recipe, RECIPES)}"
            )
        if self.simulator not in (None, *SIMULATORS):
            raise ConfigError(
                f"no simulator is named {self.simulator!r}: expected {' or '.join(SIMULATORS)}"
            )
        if self.measure and self.simulator is not None:
            raise ConfigError(
                "--measure runs plans instead of simulating them: leave out --simulator"
            )
        options = replace(self, seed=self.seed or 0)
        if self.evaluations is None and self.seconds is None:
            options = replace(options, evaluations=DEFAULT_EVALUATIONS)
        return options

    def for_resumed_run(self, saved: Mapping[str, Any], folder: Path) -> TrainingOptions:
        """Those of a saved run, with the larger budget that is typed, if any.

        Raises:
            ConfigError: Another option is typed, a budget is smaller than the saved one, or the run
                was not started on the command line.
        """
        options = {_RENAMED.get(name, name): value for name, value in saved.items()}
        if not set(options) <= {option.name for option in fields(self)} or "recipe" not in options:
            raise ConfigError(f"{folder} keeps a run that was not started on the command line")
        former = TrainingOptions(**options)
        for option in fields(self):
            typed, value = getattr(self, option.name), getattr(former, option.name)
            if typed in (None, False) or typed == value:
                continue
            if option.name not in _BUDGETS:
                raise ConfigError(
                    f"the run in {folder} was begun with {option.name} {value!r}: to resume it "
                    f"leave out {typed!r}, or begin a new run"
                )
            if value is not None and typed < value:
                raise ConfigError(
                    f"the run in {folder} has a budget of {value:,} {option.name}: expected "
                    f"more, not {typed:,}"
                )
            former = replace(former, **{option.name: typed})
        return former

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for checkpoints."""
        return asdict(self)

    def find_recipe(self) -> Recipe:
        """The recipe with the typed settings of its policy.

        Raises:
            ConfigError: Its plans have orders of their own, which lanes on a GPU cannot evaluate.
        """
        from placewright.training import Environment, find_recipe

        assert self.recipe is not None
        recipe = find_recipe(self.recipe, self.groups, self.hidden, self.grouping, self.start_times)
        if self.simulator == "gpu" and recipe.environment is not Environment:
            raise ConfigError(
                f"recipe {recipe.name!r} gives each plan its own order, and --simulator gpu "
                "evaluates plans of one order: leave it out"
            )
        return recipe if self.episodes is None else replace(recipe, episodes=self.episodes)

    def environment(self, recipe: Recipe, problem: Problem, **settings: Any) -> Environment:
        """What judges the plans of one problem.

        Raises:
            ProblemError: Lanes on a GPU are to, and cannot evaluate this problem.
            ConfigError: They are to, and there is no GPU.
        """
        if self.simulator == "gpu":
            from placewright.training.gpu_simulation import GpuSimulation

            settings["measure"] = GpuSimulation(problem)
        return recipe.environment(problem, **settings)

    def worker_spec(self, workers: str | None, resume: Path | None) -> str | None:
        """Which workers to open: those that are typed, or a process for each controller.

        Args:
            resume: The folder of a run that is resumed.

        Raises:
            ConfigError: They do not suit the run.
        """
        from placewright.training.asynchronous import Controllers

        if self.asynchronous is not None:
            if self.simulator == "gpu":
                raise ConfigError(
                    "controllers evaluate plans where they run: leave out --simulator gpu or "
                    "--asynchronous"
                )
            if self.micro_batch is not None or self.episodes is not None:
                raise ConfigError(
                    "--asynchronous C:K samples K episodes for each gradient: leave out "
                    "--micro-batch and --episodes"
                )
            return workers or f"processes:{Controllers.parse(self.asynchronous).count}"
        if resume is not None and workers is not None and self.micro_batch is None:
            raise ConfigError(
                f"the run in {resume} was begun without workers, and learns from whole batches: "
                "leave out --workers, or begin a new run"
            )
        return workers

    def trainer(
        self, environments: Sequence[Environment], recipe: Recipe, workers: Workers | None
    ) -> Trainer:
        """The trainer of the run."""
        from placewright.training import Trainer
        from placewright.training.asynchronous import AsynchronousTrainer, Controllers

        seed = self.seed or 0
        if self.asynchronous is not None:
            assert workers is not None  # see `worker_spec`
            controllers = Controllers.parse(self.asynchronous)
            return AsynchronousTrainer(
                environments,
                recipe,
                workers,
                controllers,
                seed,
                self.evaluations,
                max_seconds=self.seconds,
            )
        return Trainer(
            environments,
            recipe,
            seed,
            self.evaluations,
            max_seconds=self.seconds,
            workers=workers,
            micro_batch=self.micro_batch,
        )


def saved_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The problem options and the training options of a run.

    Raises:
        FileError: The folder keeps no checkpoint.
        ConfigError: The run was not started on the command line.
    """
    from placewright.files.header import RESERVE_IN_LIMITS
    from placewright.training import read_checkpoint
    from placewright.training.run import CHECKPOINT_FILE

    checkpoint = read_checkpoint(folder / CHECKPOINT_FILE)[0]
    saved = checkpoint["metadata"]
    problem = saved.get("problem", saved.get("asked"))  # release 0.1.0: asked, own
    training = saved.get("training", saved.get("own"))
    if not isinstance(problem, dict) or not isinstance(training, dict):
        raise ConfigError(f"{folder} keeps a run that was not started on the command line")
    if "limit" in problem and checkpoint["version"] <= RESERVE_IN_LIMITS:
        raise ConfigError(
            f"{folder} keeps a run with --limit of an older release, where a limit included the "
            "reserve: begin a new run, with limits without it"
        )
    return {k: tuple(v) if isinstance(v, list) else v for k, v in problem.items()}, training
