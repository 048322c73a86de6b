"""How GO is trained: imitation of demonstrations, then PPO on episodes that start at elites.

One step of imitation after every later update keeps the passes and the answer to a search close to
strong plans. A plan of the policy that is better than the demonstrated ones becomes a demonstration
itself (expert iteration).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from placewright.solvers.ordering.priority_rules import rule_priorities
from placewright.training.algorithms import set_learning_rate
from placewright.training.environment import best_plan
from placewright.training.go.demonstrations import Demonstration, quick_demonstration
from placewright.training.go.elites import Elites
from placewright.training.go.imitation import Imitation
from placewright.training.hooks import GREEDY, TrainerHooks
from placewright.training.sampling import EpisodeRequest
from placewright.training.schedules import Decay, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.outcome import Outcome
    from placewright.policies import Episodes
    from placewright.policies.go.policy import Go
    from placewright.training.trainer import Trainer

DEMONSTRATED, REORDERED = "demonstration", "ordered"
"""What found a plan: it was demonstrated, or it is a known plan in the order of a priority rule."""
_MAX_DEMONSTRATIONS = 6  # plans of a problem that are imitated


class GoHooks(TrainerHooks):
    """Imitation before and besides PPO, episodes from elites, argmax plans from all initial plans.

    Args:
        imitation_share: The share of the budget that goes to imitation alone.
        imitation_epochs: Optimizer steps of an update of imitation, as PPO has its epochs.
        imitation_steps: Optimizer steps of imitation after each later update.
        imitation_rate: The learning rate of imitation alone.
        imitation: How demonstrations are imitated.
    """

    pretraining = "imitation"
    overlap = True

    def __init__(
        self,
        imitation_share: float = 0.3,
        imitation_epochs: int = 1,
        imitation_steps: int = 1,
        imitation_rate: Schedule | None = None,
        imitation: Imitation | None = None,
    ) -> None:
        self.imitation_share, self.imitation_epochs = imitation_share, imitation_epochs
        self.imitation_steps, self.imitation = imitation_steps, imitation or Imitation()
        self.imitation_rate = imitation_rate or Decay(1e-3, end=imitation_share)
        self.demonstrations: list[Demonstration] = []
        self.elites: list[Elites] = []
        """The best plans of each problem, at which most episodes start."""
        self.references: dict[int, float] = {}
        """The objective of each problem's first demonstration in GO's issue order."""
        self.best_keys: dict[int, tuple[float, float]] = {}
        """Overflow and objective of the best plan that the policy itself made."""
        self.curves: dict[int, list[tuple[int, float, float]]] = {}
        """For each problem (evaluations, seconds, objective) each time that plan improved."""
        self._rng = np.random.default_rng(0)

    def start(self, trainer: Trainer) -> None:
        self.demonstrations = [
            environment.demonstration or quick_demonstration(environment.problem)
            for environment in trainer.environments
        ]
        slots = len(_policy(trainer).config.slots)
        self.elites = [Elites(slots) for _ in trainer.environments]

    def planned_updates(self, trainer: Trainer) -> int | None:
        if trainer.max_evaluations is None:
            return None
        per_update = trainer.recipe.episodes + _policy(trainer).config.starts
        learning_updates = max(1.0, trainer.max_evaluations / per_update)
        return math.ceil(learning_updates / max(1 - self.imitation_share, 1e-9))

    def begin_update(self, trainer: Trainer) -> None:
        self._rng = np.random.default_rng([trainer.seed, trainer.updates, 11])

    def pretrain(
        self, trainer: Trainer, progress: float
    ) -> list[tuple[int, dict[str, float], float]] | None:
        if progress >= self.imitation_share:
            return None
        rate = self.imitation_rate(progress)
        return [(*self._imitate(trainer, rate), rate) for _ in range(self.imitation_epochs)]

    def next_problems(self, trainer: Trainer) -> list[int]:
        """One problem, at random."""
        return [int(self._rng.integers(len(trainer.environments)))]

    def requests(self, trainer: Trainer, indices: list[int], noise: float) -> list[EpisodeRequest]:
        """Episodes of one problem; most start at its best plans so far."""
        (index,) = indices
        if self.reference_seconds(trainer, index) is None:
            return []
        policy, problem = _policy(trainer), trainer.environments[index].problem
        seed, count = int(self._rng.integers(2**31)), trainer.recipe.episodes
        elites = self.elites[index]
        start_plans = elites.start_plans(policy.initial_decisions(problem, count), self._rng)
        return [EpisodeRequest(count, seed, noise, start_plans, elites.slot_probabilities)]

    def on_outcome(
        self, trainer: Trainer, index: int, episodes: Episodes, outcome: Outcome
    ) -> None:
        self._update_best(trainer, index, outcome)
        self.elites[index].add(episodes, outcome)

    def greedy_values(self, trainer: Trainer, indices: list[int]) -> list[float]:
        """Of each problem the best argmax plan that fits, one from each initial plan."""
        values = [self.greedy_seconds(trainer, index) for index in indices]
        for index in indices:
            self._improve_demonstration(trainer, index)
        return values

    def end_update(self, trainer: Trainer, progress: float) -> None:
        for _ in range(self.imitation_steps):
            self._imitate(trainer, trainer.recipe.learning_rate(progress))

    def reference_seconds(self, trainer: Trainer, index: int) -> float | None:
        """The objective of the first demonstration in GO's order; judged, and counted, once.

        Returns:
            None if the budget does not allow to judge it.
        """
        if index not in self.references:
            demonstration = self.demonstrations[index]
            placement = demonstration.placements[:1]
            priority = _policy(trainer).priorities(demonstration.problem, placement)
            outcome = trainer.judge(index, placement, DEMONSTRATED, priority)
            if outcome is None:
                return None
            self.references[index] = float(outcome.seconds[0])
        return self.references[index]

    def greedy_seconds(self, trainer: Trainer, index: int) -> float:
        """The objective of the best argmax plan that fits, judged and counted; else infinity."""
        policy, environment = _policy(trainer), trainer.environments[index]
        episodes = policy.act(environment.problem, policy.config.starts, 0, greedy=True)
        outcome = trainer.judge(
            index, episodes.placements, GREEDY, episodes.priority, episodes.fusion
        )
        if outcome is None:
            return math.nan
        self.on_outcome(trainer, index, episodes, outcome)
        return float(np.where(outcome.feasible, outcome.seconds, np.inf).min())

    def try_priority_rules(self, trainer: Trainer, index: int) -> None:
        """Judge the best plans of a problem also in the order of every priority rule.

        The policy's own order is the longest path first, with classes before and after. Which rule
        suits a plan differs by graph (9 % on RNNLM-2), and a dozen judged plans show which.
        """
        environment = trainer.environments[index]
        observation = _policy(trainer).observe(environment.problem)
        for placement in observation.legalize(self.elites[index].placements):
            priorities = np.stack(list(rule_priorities(environment.problem, placement).values()))
            placements = np.repeat(placement[None], len(priorities), axis=0)
            outcome = environment.judge(placements, REORDERED, priorities)
            self._update_best(trainer, index, outcome)

    def state(self) -> dict[str, Any]:
        return {
            "references": [[index, value] for index, value in self.references.items()],
            "best": [[index, *key] for index, key in self.best_keys.items()],
            "found_by": [list(item.found_by) for item in self.demonstrations],
            "elites": [elites.state() for elites in self.elites],
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for index, demonstration in enumerate(self.demonstrations):
            arrays[f"demonstration.{index}.placements"] = demonstration.placements
            arrays[f"demonstration.{index}.values"] = demonstration.objective_values
            arrays[f"demonstration.{index}.overflow"] = demonstration.overflow
        for index, elites in enumerate(self.elites):
            arrays |= {f"elites.{index}.{key}": value for key, value in elites.arrays().items()}
        return arrays

    def restore(
        self, trainer: Trainer, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        self.references = {int(index): float(value) for index, value in state["references"]}
        self.best_keys = {
            int(index): (float(overflow), float(seconds))
            for index, overflow, seconds in state["best"]
        }
        for index, found_by in enumerate(state["found_by"]):
            self.demonstrations[index] = replace(
                self.demonstrations[index],
                found_by=tuple(found_by),
                placements=arrays[f"demonstration.{index}.placements"],
                objective_values=arrays[f"demonstration.{index}.values"],
                overflow=arrays[f"demonstration.{index}.overflow"],
            )
            prefix = f"elites.{index}."
            own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            self.elites[index].restore(state["elites"][index], own)

    def _imitate(self, trainer: Trainer, learning_rate: float) -> tuple[int, dict[str, float]]:
        """One optimizer step on one demonstration, at random."""
        index = int(self._rng.integers(len(self.demonstrations)))
        set_learning_rate(trainer.optimizer, learning_rate)
        demonstration = self.demonstrations[index]
        stats = self.imitation.step(_policy(trainer), trainer.optimizer, demonstration, self._rng)
        return index, stats

    def _update_best(self, trainer: Trainer, index: int, outcome: Outcome) -> None:
        best = best_plan(outcome)
        key = float(outcome.overflow[best]), float(outcome.seconds[best])
        if key < self.best_keys.get(index, (np.inf, np.inf)):
            self.best_keys[index] = key
            environment = trainer.environments[index]
            point = environment.evaluations, environment.seconds, key[1]
            self.curves.setdefault(index, []).append(point)

    def _improve_demonstration(self, trainer: Trainer, index: int) -> None:
        """Demonstrate a plan of the policy that is better than the demonstrated ones."""
        environment, demonstration = trainer.environments[index], self.demonstrations[index]
        if environment.best_placement is None or environment.found_by == DEMONSTRATED:
            return
        if environment.best_key >= (float(demonstration.overflow[0]), self.references[index]):
            return
        if (environment.best_placement == demonstration.placements[0]).all():
            return
        placements = np.concatenate([environment.best_placement[None], demonstration.placements])
        overflow, objective = environment.best_key
        self.demonstrations[index] = replace(
            demonstration,
            found_by=("go", *demonstration.found_by),
            placements=placements[:_MAX_DEMONSTRATIONS],
            objective_values=np.append(objective, demonstration.objective_values)[
                :_MAX_DEMONSTRATIONS
            ],
            overflow=np.append(int(overflow), demonstration.overflow)[:_MAX_DEMONSTRATIONS],
        )


def training_report(trainer: Trainer) -> list[dict[str, Any]]:
    """For each problem the best argmax plan and the best plan, relative to the demonstration.

    These plans are judged after training, whatever its budget.
    """
    hooks, rows = trainer.hooks, []
    assert isinstance(hooks, GoHooks)
    trainer.finished, trainer.max_evaluations = False, None
    for index, demonstration in enumerate(hooks.demonstrations):
        reference = hooks.reference_seconds(trainer, index)
        assert reference is not None  # there is no budget any more
        greedy = hooks.greedy_seconds(trainer, index)
        environment = trainer.environments[index]
        rows.append(
            {
                "task": demonstration.task.key,
                "units": len(_policy(trainer).observe(demonstration.problem)),
                "teacher": reference,
                "likeliest": greedy / reference,
                "best": environment.best_key[1] / reference,
                "plans": environment.evaluations,
            }
        )
    return rows


def _policy(trainer: Trainer) -> Go:
    return cast("Go", trainer.policy)
