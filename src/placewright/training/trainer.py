"""The trainer: trains a policy on problems by a recipe and keeps the best plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.training.algorithms import Regularization
from placewright.training.multi_graph import (
    MultiGraphEpisodes,
    MultiGraphPolicy,
    act_all,
    pad_columns,
)
from placewright.training.rewards import step_returns
from placewright.training.start_plans import start_times
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.training.environment import Environment, Outcome
    from placewright.training.recipes.base import Recipe

SAMPLED, GREEDY = "sampled", "argmax"
"""Who found a plan: it was drawn, or it was the policy's likeliest."""


@dataclass(frozen=True)
class UpdateLog:
    """What one update was like.

    Args:
        plans: Judged so far.
        best: The best objective so far of the problem at hand, whether or not it fits.
        mean: Of the plans drawn in this update.
        greedy: The objective of the argmax plan after the update; not a number where it was not
            asked for.
        entropy: Of the decisions, as a share of an even choice's; the first head's mean.
        infeasible: The share of the plans drawn that do not fit.
    """

    update: int
    plans: int
    best: float
    mean: float
    greedy: float
    entropy: float
    infeasible: float
    gradient: float
    rate: float


class Trainer:
    """Trains one policy on one problem or several, an update at a time.

    The same problems, recipe, seed and budget give the same plans: what is drawn in an update
    depends on the seed and the update's number alone.

    Args:
        max_evaluations: How many plans to judge, all problems together; schedules go by it.
        policy: A policy to go on with; a fresh one for the first problem by default.
        device: Where the policy lives: `cpu`, `cuda`, or `auto` for a GPU if there is one.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        recipe: Recipe,
        seed: int = 0,
        max_evaluations: int = 5000,
        policy: Policy | None = None,
        device: str = "auto",
    ) -> None:
        import torch

        self.environments, self.recipe = list(environments), recipe
        self.seed, self.max_evaluations = seed, max_evaluations
        with torch_threads():
            fresh = policy or recipe.policy_config.build(self.environments[0].problem, seed)
            if device == "auto":
                device = "cuda" if torch.cuda.is_available() else "cpu"
            self.policy: Policy = fresh.to(device)  # type: ignore[attr-defined]
        if hasattr(self.policy, "starts"):
            self.policy.starts = self._start_times
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=recipe.learning_rate(0.0)
        )
        self.baseline = recipe.baseline()
        self.updates = 0
        self.finished = False
        self.log: list[UpdateLog] = []
        self.best_episodes: dict[int, Episodes] = {}
        """For each problem the episode that made its best plan."""
        self.greedy_plans: dict[int, tuple[bytes, float]] = {}
        """For each problem the argmax plan that was judged last, and its objective."""

    @property
    def evaluations(self) -> int:
        """Plans judged so far."""
        return sum(environment.evaluations for environment in self.environments)

    def run(self, on_update: Callable[[Trainer], bool] | None = None, threads: int = 1) -> None:
        """Train until the budget is used.

        Args:
            on_update: Called after each update; training pauses if it says false.
        """
        with torch_threads(threads):
            while not self.finished:
                self.update()
                if on_update is not None and not on_update(self):
                    return

    def update(self) -> None:
        """Draw plans, judge them, learn from them, and judge what the policy now likes best."""
        recipe, progress = self.recipe, min(self.evaluations / self.max_evaluations, 1.0)
        indices = self._next_problems()
        problems = [self.environments[index].problem for index in indices]
        logit_noise, learning_rate = recipe.logit_noise(progress), recipe.learning_rate(progress)
        seeds = [self._sampling_seed(position) for position in range(len(indices))]
        batches = act_all(self.policy, problems, recipe.episodes, seeds, noise=logit_noise)
        outcomes = []
        for index, episodes in zip(indices, batches, strict=True):
            outcome = self._judge(index, episodes, SAMPLED)
            if outcome is None:
                return
            outcomes.append(outcome)
        credits = [
            self._credit(*judged_batch, progress)
            for judged_batch in zip(indices, batches, outcomes, strict=True)
        ]
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = learning_rate
        stats: dict[str, float] = {}
        if any(included for _, included in credits):
            stats = self._learn(indices, batches, [advantage for advantage, _ in credits], progress)
        self.updates += 1
        greedy_batches: Sequence[Episodes | None] = [None] * len(indices)
        if recipe.greedy_every and self.updates % recipe.greedy_every == 0:
            greedy_batches = act_all(self.policy, problems, 1, [0] * len(indices), greedy=True)
        for index, outcome, greedy_episodes in zip(indices, outcomes, greedy_batches, strict=True):
            value = (
                float("nan")
                if greedy_episodes is None
                else self._judge_greedy(index, greedy_episodes)
            )
            self._log_update(self.environments[index], outcome, value, stats, learning_rate)

    def _next_problems(self) -> list[int]:
        """The problems of this update."""
        count = min(self.recipe.problems, len(self.environments))
        start = self.updates * count
        return [(start + offset) % len(self.environments) for offset in range(count)]

    def _credit(
        self, index: int, episodes: Episodes, outcome: Outcome, progress: float
    ) -> tuple[NDArray[np.float64], bool]:
        """Episodes × steps: how much better than expected each went; whether any counts."""
        recipe, environment = self.recipe, self.environments[index]
        reward = recipe.reward(outcome, environment.reference_seconds)
        credit = step_returns(reward, episodes.episode_of, len(episodes), recipe.discount)
        last_step = len(outcome.seconds) // len(episodes) - 1
        included = np.ones(len(episodes), dtype=bool)
        if progress >= recipe.drop_infeasible_after:
            included = outcome.feasible.reshape(len(episodes), -1)[:, last_step]
        graph = environment.problem.graph.fingerprint
        return self.baseline.advantage(credit, included, graph), bool(included.any())

    def _learn(
        self,
        indices: list[int],
        batches: list[Episodes],
        advantages: list[NDArray[np.float64]],
        progress: float,
    ) -> dict[str, float]:
        recipe, policy = self.recipe, self.policy
        problems = [self.environments[index].problem for index in indices]
        episodes, advantage, best_episode = (
            batches[0],
            advantages[0],
            self.best_episodes.get(indices[0]),
        )
        if len(indices) > 1:
            policy = MultiGraphPolicy(policy, problems)  # type: ignore[assignment]
            episodes, advantage = (
                MultiGraphEpisodes.of(batches),
                np.concatenate(pad_columns(advantages)),
            )
            best_episode = MultiGraphEpisodes.of([self.best_episodes[index] for index in indices])
        regularization = Regularization(
            recipe.entropy_bonus(progress),
            recipe.entropy_floor(progress),
            recipe.max_grad_norm,
            recipe.self_imitation(progress),
            best_episode,
        )
        return recipe.algorithm.update(
            policy, problems[0], episodes, advantage, self.optimizer, regularization
        )

    def _judge(self, index: int, episodes: Episodes, found_by: str) -> Outcome | None:
        """Plans judged; None, and training is over, if the budget does not allow them all."""
        environment, placements = self.environments[index], episodes.placements
        if self.evaluations and self.evaluations + len(placements) > self.max_evaluations:
            self.finished = True
            return None
        previous_key = environment.best_key
        outcome = environment.judge(placements, found_by, episodes.priority)
        if len(outcome.seconds) < len(placements):
            self.finished = True
            return None
        if environment.best_key < previous_key:
            best = int(np.lexsort((outcome.seconds, outcome.overflow))[0])
            self.best_episodes[index] = self.policy.select(episodes, int(episodes.episode_of[best]))
        return outcome

    def _judge_greedy(self, index: int, episodes: Episodes) -> float:
        """The objective of the argmax plan, which is judged, and counted, whenever it changes."""
        placement = episodes.placements[-1:]
        last_placement, value = self.greedy_plans.get(index, (b"", float("nan")))
        if placement.tobytes() != last_placement:
            priority = None if episodes.priority is None else episodes.priority[-1:]
            last_plan = replace(
                episodes,
                placements=placement,
                episode_of=episodes.episode_of[-1:],
                priority=priority,
            )
            outcome = self._judge(index, last_plan, GREEDY)
            if outcome is not None:
                value = float(outcome.seconds[-1])
                self.greedy_plans[index] = placement.tobytes(), value
        return value

    def _sampling_seed(self, position: int) -> int:
        entropy = [self.seed, self.updates, *([position] if position else [])]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    def _start_times(self, problem: Problem, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        """When ops start, for a policy that wants to know inside an episode.

        Such plans are judged too, and counted, unless they are judged again with each step.
        """
        if not getattr(self.policy.config, "steps", False):  # type: ignore[attr-defined]
            for environment in self.environments:
                if environment.problem is problem:
                    environment.evaluations += len(placements)
        return start_times(problem, placements)

    def _log_update(
        self,
        environment: Environment,
        outcome: Outcome,
        greedy: float,
        stats: dict[str, float],
        rate: float,
    ) -> None:
        shares = [value for name, value in stats.items() if name.startswith("entropy/")]
        finite = outcome.seconds[np.isfinite(outcome.seconds)]
        self.log.append(
            UpdateLog(
                self.updates,
                self.evaluations,
                environment.best_key[1],
                float(finite.mean()) if len(finite) else float("nan"),
                greedy,
                float(np.mean(shares)) if shares else float("nan"),
                float(1 - outcome.feasible.mean()),
                stats.get("gradient", 0.0),
                rate,
            )
        )
