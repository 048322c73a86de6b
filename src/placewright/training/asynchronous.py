"""ColocRL's asynchronous training: controllers whose gradients are applied as they arrive.

Mirhoseini et al. 2017, Section 3.3: controllers share parameters. Each samples K plans, which its K
workers execute, computes the gradient of those K samples with a baseline of its own, and sends it
to the parameters' server. Here the trainer is that server: it applies a gradient as soon as one is
there and gives the controller the parameters as they are then, so that gradients of others are
stale by a few updates. Which gradient is next depends on the machine: two runs differ, unless there
is one controller.
"""

from __future__ import annotations

import math
import re
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError
from placewright.training.algorithms import clipped_step, set_learning_rate
from placewright.training.controller_task import ControllerBatch, RunController
from placewright.training.gradients import set_gradient
from placewright.training.hooks import GREEDY, TrainerHooks
from placewright.training.replica import PolicyReplica
from placewright.training.sampling import EpisodeRequest, episode_seed
from placewright.training.trainer import SAMPLED, Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placewright.policies import Policy
    from placewright.training.baselines import Baseline
    from placewright.training.controller_task import ControllerGradient
    from placewright.training.environment import Environment
    from placewright.training.recipes.base import Recipe
    from placewright.workers import Workers


@dataclass(frozen=True)
class Controllers:
    """How many controllers there are, and of how many workers each: `4:8` is 4 with 8 each.

    Args:
        workers: Plans of a gradient, and threads that judge them.
    """

    count: int
    workers: int

    @classmethod
    def parse(cls, text: str) -> Controllers:
        """Read a text such as `4:8`.

        Raises:
            ConfigError: It is none.
        """
        match = re.fullmatch(r"(\d{1,4}):(\d{1,4})", text.strip())
        if match is None or not int(match[1]) or not int(match[2]):
            raise ConfigError(
                f"controllers {text!r}: expected their number and the workers of each, as in 4:8"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.count}:{self.workers}"


class ControllerBaselines:
    """The baseline of each controller, and how many of its batches were learned from."""

    def __init__(self, make: Callable[[], Baseline], count: int) -> None:
        self.states = [make().state() for _ in range(count)]
        self.batches = [0] * count

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {"controllers": [list(pair) for pair in zip(self.batches, self.states, strict=True)]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        pairs = state["controllers"]
        if len(pairs) != len(self.batches):
            raise ValueError(f"it has {len(pairs)} controllers")
        self.batches = [int(batches) for batches, _ in pairs]
        self.states = [dict(baseline) for _, baseline in pairs]


@dataclass(frozen=True, eq=False)
class _Assignment:
    """A batch that a controller works on."""

    index: int  # of the problem
    future: Future[list[ControllerGradient]]
    updates: int  # of the parameters it began with
    rate: float


class AsynchronousTrainer(Trainer):
    """Trains a policy with asynchronous controllers, a gradient at a time.

    The argmax plan is that of the parameters that a controller began with. Arguments that are not
    here are those of `Trainer`.

    Args:
        workers: They run the controllers; each should have one worker.
        controllers: Their number, and the plans of each gradient, instead of the recipe's.
    """

    baseline: ControllerBaselines  # type: ignore[assignment]

    def __init__(
        self,
        environments: Sequence[Environment],
        recipe: Recipe,
        workers: Workers,
        controllers: Controllers,
        seed: int = 0,
        max_evaluations: int | None = 5000,
        policy: Policy | None = None,
        max_updates: int | None = None,
        max_seconds: float | None = None,
    ) -> None:
        recipe = replace(recipe, episodes=controllers.workers)
        super().__init__(
            environments, recipe, seed, max_evaluations, policy, "cpu", max_updates, max_seconds
        )
        _check(self)
        self.workers, self.controllers = workers, controllers
        self.baseline = ControllerBaselines(recipe.baseline, controllers.count)
        self._assignments: dict[int, _Assignment] = {}
        self._plans_of_batch = controllers.workers + bool(recipe.greedy_every)

    @property
    def mode(self) -> dict[str, Any]:
        return {**super().mode, "asynchronous": str(self.controllers)}

    def run(self, on_update: Callable[[Trainer], bool] | None = None, threads: int = 1) -> None:
        """See `Trainer.run`; batches that are not learned from when it ends are sampled again."""
        try:
            super().run(on_update, threads)
        finally:
            for assignment in self._assignments.values():
                assignment.future.cancel()
            self._assignments.clear()

    def update(self) -> None:
        """Apply the next gradient that arrives, and give its controller another batch."""
        if self._is_over():
            self.finished = True
            return
        for controller in range(self.controllers.count):
            if controller not in self._assignments and self._allows_batch():
                self._assign(controller)
        if not self._assignments:
            self.finished = True
            return
        futures = {item.future: controller for controller, item in self._assignments.items()}
        done = wait(futures, return_when=FIRST_COMPLETED).done
        controller = min(  # the oldest of those that are done
            (futures[future] for future in done),
            key=lambda number: (self._assignments[number].updates, number),
        )
        assignment = self._assignments.pop(controller)
        (result,) = assignment.future.result()
        self._apply(controller, assignment, result)

    def _allows_batch(self) -> bool:
        """Whether the budget allows one more batch beside those under way."""
        limit, under_way = self.max_evaluations, len(self._assignments)
        if limit is None or not self.updates + under_way:
            return True
        return self.evaluations + self._plans_of_batch * (under_way + 1) <= limit

    def _assign(self, controller: int) -> None:
        """Give a controller the parameters as they are now, and a batch."""
        batches, progress = self.baseline.batches[controller], self.progress
        index = (controller + batches * self.controllers.count) % len(self.environments)
        environment, recipe = self.environments[index], self.recipe
        request = EpisodeRequest(
            recipe.episodes,
            episode_seed(self.seed, batches, controller),
            recipe.logit_noise(progress),
            self.policy.initial_decisions(environment.problem, recipe.episodes),
        )
        has_greedy = recipe.greedy_every and batches % recipe.greedy_every == 0
        batch = ControllerBatch(
            request,
            self.baseline.states[controller],
            self.greedy_plans.get(index, (b"", math.nan))[0] if has_greedy else None,
            self.best_episodes.get(index),
        )
        simulation = environment.simulation
        assert simulation is not None  # it was checked at the start
        task = RunController(
            PolicyReplica.of(self.policy),
            recipe,
            simulation,
            environment.reference_seconds,
            progress,
            self.controllers.workers,
        )
        future = self.workers.submit(task, [batch], environment.problem)
        rate = recipe.learning_rate(progress)
        self._assignments[controller] = _Assignment(index, future, self.updates, rate)

    def _apply(self, controller: int, assignment: _Assignment, result: ControllerGradient) -> None:
        index, sampled = assignment.index, result.sampled
        environment = self.environments[index]
        if not self.policy.judges_steps:  # those are judged again with each step
            environment.evaluations += sampled.simulated
        assert sampled.judged is not None
        outcome = self._judge_episodes(index, sampled.episodes, SAMPLED, sampled.judged)
        if outcome is None:  # steps take more plans than the budget has
            return
        self._plans_of_batch = (
            len(outcome.seconds) + sampled.simulated + bool(self.recipe.greedy_every)
        )
        self.baseline.states[controller] = result.baseline
        self.baseline.batches[controller] += 1
        stats: dict[str, float] = {"staleness": float(self.updates - assignment.updates)}
        if result.gradient is not None:
            set_learning_rate(self.optimizer, assignment.rate)
            set_gradient(self.policy, result.gradient)
            norm = clipped_step(self.policy, self.optimizer, self.recipe.max_grad_norm)
            self.optimizer.zero_grad(set_to_none=True)
            stats = {"gradient": norm, **result.gradient.figures, **stats}
        self.updates += 1
        if result.greedy is not None:
            self._record_greedy(index, result)
        self.log_outcome(
            index, outcome, stats, assignment.rate, self.greedy_plans.get(index, (b"", math.nan))[1]
        )

    def _record_greedy(self, index: int, result: ControllerGradient) -> None:
        plan = result.greedy
        assert plan is not None
        if self._allows(1):
            value = float(self.environments[index].record(plan, GREEDY).seconds[-1])
            self.greedy_plans[index] = plan.placements.tobytes(), value


def _check(trainer: Trainer) -> None:
    """Raise ConfigError unless a recipe can be trained by asynchronous controllers."""
    recipe = trainer.recipe
    reason = ""
    if type(trainer.hooks) is not TrainerHooks:
        reason = "has phases and episodes of its own"
    elif recipe.algorithm.epochs != 1:
        reason = f"makes {recipe.algorithm.epochs} steps on the same episodes"
    elif any(environment.simulation is None for environment in trainer.environments):
        reason = "is to learn from measured plans, which this machine alone can measure"
    if reason:
        raise ConfigError(
            f"recipe {recipe.name!r} {reason}: controllers make one step on simulated plans, as "
            "the recipes of ColocRL and Hierarchical do; train it with workers instead"
        )
    PolicyReplica.of(trainer.policy)
