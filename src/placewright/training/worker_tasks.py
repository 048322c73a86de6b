"""What workers do in training: sample and judge episodes, and compute gradients of their loss.

Both tasks are pure: each item carries its seed or its episodes, and the task the weights. So a
micro-batch has the same episodes and the same gradient wherever it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.training.gradients import GradientSum, add_gradients, loss_gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from placewright.policies import Episodes
    from placewright.problem import Problem
    from placewright.training.algorithms import Algorithm, Regularization
    from placewright.training.environment import JudgedPlans, PlanSimulation
    from placewright.training.replica import PolicyReplica
    from placewright.training.sampling import EpisodeRequest


@dataclass(frozen=True, eq=False)
class SampledEpisodes:
    """Episodes that a worker sampled.

    Args:
        judged: Their plans, judged; None where plans are measured.
        simulated: Plans that were simulated inside the episodes.
    """

    episodes: Episodes
    judged: JudgedPlans | None
    simulated: int


@dataclass(frozen=True, eq=False)
class SampleEpisodes:
    """Samples episodes and judges their plans, one result per request.

    Args:
        simulation: How plans are judged; None leaves them to the driver.
        threads: Threads that judge plans.
    """

    replica: PolicyReplica
    simulation: PlanSimulation | None
    threads: int = 1

    def __call__(self, problem: Problem, items: Sequence[EpisodeRequest]) -> list[SampledEpisodes]:
        policy, counter = self.replica.build()
        results = []
        for request in items:
            counter.plans = 0
            episodes = request.sample(policy, problem)
            judged = None
            if self.simulation is not None:
                judged = self.simulation.judge(
                    problem,
                    episodes.placements,
                    episodes.priority,
                    episodes.fusion,
                    threads=self.threads,
                )
            results.append(SampledEpisodes(episodes, judged, counter.plans))
        return results


@dataclass(frozen=True, eq=False)
class ComputeGradients:
    """Computes the gradients of items: runs of micro-batches, as (index of the first, parts).

    A part has episodes and their advantages. The result of an item is the sums of its gradients.
    """

    replica: PolicyReplica
    algorithm: Algorithm
    regularization: Regularization

    def __call__(
        self,
        problem: Problem,
        items: Sequence[tuple[int, Sequence[tuple[Episodes, NDArray[np.float64]]]]],
    ) -> list[list[GradientSum]]:
        policy, _ = self.replica.build()
        return [
            add_gradients(
                GradientSum.of(
                    first + position,
                    loss_gradient(policy, problem, *part, self.algorithm, self.regularization),
                )
                for position, part in enumerate(parts)
            )
            for first, parts in items
        ]
