"""A controller's batch: samples plans, judges them and computes a gradient, on one worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.training.credit import advantages_of
from placewright.training.gradients import LossGradient, loss_gradient
from placewright.training.worker_tasks import SampledEpisodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.training.environment import JudgedPlans, PlanSimulation
    from placewright.training.recipes.base import Recipe
    from placewright.training.replica import PolicyReplica
    from placewright.training.sampling import EpisodeRequest


@dataclass(frozen=True, eq=False)
class ControllerBatch:
    """What a controller is to do next.

    Args:
        baseline: The state of its baseline.
        last_greedy: The argmax plan that was judged last, as bytes; None to leave it out.
        best_episode: The best episode of the problem so far.
    """

    request: EpisodeRequest
    baseline: dict[str, Any]
    last_greedy: bytes | None
    best_episode: Episodes | None


@dataclass(frozen=True, eq=False)
class ControllerGradient:
    """What a controller sends back.

    Args:
        gradient: None if there is no episode to learn from.
        baseline: The new state of its baseline.
        greedy: The argmax plan, if it is another one than before; judged.
    """

    sampled: SampledEpisodes
    gradient: LossGradient | None
    baseline: dict[str, Any]
    greedy: JudgedPlans | None


@dataclass(frozen=True, eq=False)
class RunController:
    """Runs controllers: one gradient per batch.

    Args:
        replica: The shared parameters, as they are when the batch is given out.
        progress: The share of the budget used then.
        threads: Workers of a controller: threads that judge its plans.
    """

    replica: PolicyReplica
    recipe: Recipe
    simulation: PlanSimulation
    reference_seconds: float
    progress: float
    threads: int

    def __call__(
        self, problem: Problem, items: Sequence[ControllerBatch]
    ) -> list[ControllerGradient]:
        results = []
        for batch in items:
            policy, counter = self.replica.build()
            episodes = batch.request.sample(policy, problem)
            judged = self._judge(problem, episodes)
            baseline = self.recipe.baseline()
            baseline.restore(batch.baseline)
            advantage, any_included = advantages_of(
                self.recipe,
                baseline,
                policy,
                problem,
                self.reference_seconds,
                episodes,
                judged.outcome,
                self.progress,
            )
            gradient = None
            if any_included:
                regularization = self.recipe.regularization(self.progress, batch.best_episode)
                gradient = loss_gradient(
                    policy, problem, episodes, advantage, self.recipe.algorithm, regularization
                )
            greedy = self._greedy(policy, problem, batch.last_greedy)
            sampled = SampledEpisodes(episodes, judged, counter.plans)
            results.append(ControllerGradient(sampled, gradient, baseline.state(), greedy))
        return results

    def _judge(self, problem: Problem, episodes: Episodes, last: int = 0) -> JudgedPlans:
        """Judge the plans of episodes, or only the last few."""
        rows = slice(-last, None) if last else slice(None)
        priority, fusion = episodes.priority, episodes.fusion
        return self.simulation.judge(
            problem,
            episodes.placements[rows],
            None if priority is None else priority[rows],
            None if fusion is None else fusion[rows],
            threads=self.threads,
        )

    def _greedy(
        self, policy: Policy, problem: Problem, last_greedy: bytes | None
    ) -> JudgedPlans | None:
        if last_greedy is None:
            return None
        episodes = policy.act(problem, 1, 0, greedy=True)
        if episodes.placements[-1:].tobytes() == last_greedy:
            return None
        return self._judge(problem, episodes, last=1)
