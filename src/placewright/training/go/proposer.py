"""GO as a proposer for searches: proposes whole plans, and moves for a given plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright import policies
from placewright.plan import Plan
from placewright.training.clock import SimulatorClock
from placewright.training.go.issue_order import issue_priorities
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from placewright.policies.go.policy import Go
    from placewright.problem import Problem


MARGINS = (0.0, 3.0)
"""Margins of some of the plans (`GoConfig.margin`); the policy's own margin is between."""


@dataclass(frozen=True, eq=False)
class GoProposer:
    """A trained GO policy as a proposer for a search.

    Args:
        threads: Threads of torch.
        plan_seconds, move_seconds: For each op, measured on one core; several plans take little
            longer than one.
    """

    policy: Go
    threads: int = 1
    plan_seconds: float = 3e-4
    move_seconds: float = 4e-5
    name: str = field(default="go", init=False)

    def __post_init__(self) -> None:
        self.policy.use_clock(SimulatorClock())

    @classmethod
    def read(cls, path: Path, threads: int = 1) -> GoProposer:
        """The policy of a file.

        Raises:
            FileError: There is no policy, or another one.
        """
        from placewright.errors import FileError

        policy = policies.load(path)  # an error if there is no torch
        from placewright.policies.go.policy import Go

        if not isinstance(policy, Go):
            raise FileError(f"{path}: holds policy {policy.name!r}: expected 'go'")
        return cls(policy, threads)

    @classmethod
    def shipped(cls) -> GoProposer:
        """The shipped policy, trained on all networks.

        Raises:
            MissingDependency: There is no torch.
        """
        from placewright.policies.shipped import WEIGHTS_FOLDER

        return cls.read(WEIGHTS_FOLDER / "go.json")

    def propose(self, problem: Problem, count: int, seed: int) -> list[Plan]:
        """`count` plans, each in the policy's order.

        First the argmax plan from each initial plan, then those initial plans, then plans between
        both, with only those moves that the policy is certain of. The others are samples.
        """
        with torch_threads(self.threads):
            starts = self.policy.config.starts
            greedy = self.policy.act(problem, min(count, starts), seed, greedy=True)
            observation, batches, plan_count = self.policy.observe(problem), [greedy], len(greedy)
            if plan_count < count:
                initial_plans = observation.legalize(
                    observation.initial_plans[: count - plan_count]
                )
                priority = self.policy.priorities(problem, initial_plans)
                batches.append(
                    replace(greedy, placements=initial_plans, priority=priority, fusion=None)
                )
                plan_count += len(initial_plans)
            for margin in MARGINS:
                if plan_count < count:
                    batch_size = min(count - plan_count, starts)
                    batches.append(
                        self.policy.act(problem, batch_size, seed, greedy=True, margin=margin)
                    )
                    plan_count += batch_size
            if plan_count < count:
                batches.append(self.policy.act(problem, count - plan_count, seed))
        plans = []
        for batch in batches:
            priorities = issue_priorities(problem, batch.placements, batch.priority)
            for index, placement in enumerate(batch.placements):
                priority = None if priorities is None else priorities[index]
                fusion = None if batch.fusion is None else batch.fusion[index]
                plans.append(Plan.of(problem, placement, priority, fusion=fusion))
        return plans

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.float64]:
        """Ops × devices: the probability of each device for each op, given the plan."""
        import torch

        from placewright.policies.go.policy import SEARCH_MODE

        observation = self.policy.observe(problem)
        current = plan.placement[observation.leader].astype(np.int64)
        with torch.no_grad(), torch_threads(self.threads):
            legal = observation.legal[np.arange(len(current)), current]
            current = np.where(legal, current, observation.legal.argmax(axis=1))
            logits = self.policy.logits(
                self.policy.encode_graph(problem), current[None], SEARCH_MODE
            )[0]
            unit_probabilities = torch.softmax(logits.double(), dim=1).cpu().numpy()
        op_probabilities: NDArray[np.float64] = unit_probabilities[observation.unit]
        return op_probabilities
