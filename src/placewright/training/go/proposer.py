"""GO as a proposer: a problem in, plans out; a plan in, where its ops would rather be out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright import policies
from placewright.plan import Plan
from placewright.training.go.issue_order import clock, issued
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from placewright.policies.go.policy import Go
    from placewright.problem import Problem


MARGINS = (0.0, 3.0)
"""How much surer than staying a move must be in some of the plans, in nats; the shape's own margin
is between."""


@dataclass(frozen=True, eq=False)
class GoProposer:
    """A trained policy for a search.

    Args:
        threads: That torch computes with.
        plan_seconds, move_seconds: For each op, measured on one core; several plans take hardly
            longer than one.
    """

    policy: Go
    threads: int = 1
    plan_seconds: float = 3e-4
    move_seconds: float = 4e-5
    name: str = field(default="go", init=False)

    def __post_init__(self) -> None:
        self.policy.clock = clock

    @classmethod
    def read(cls, path: Path, threads: int = 1) -> GoProposer:
        """The policy of a file.

        Raises:
            FileError: There is none, or it is another one.
        """
        from placewright.errors import FileError

        policy = policies.load(path)  # says what to install if there is no torch
        from placewright.policies.go.policy import Go

        if not isinstance(policy, Go):
            raise FileError(f"{path}: holds policy {policy.name!r}: expected 'go'")
        return cls(policy, threads)

    @classmethod
    def shipped(cls) -> GoProposer:
        """The policy that ships, trained on all networks.

        Raises:
            MissingDependency: There is no torch.
        """
        from placewright.policies.shipped import FOLDER

        return cls.read(FOLDER / "go.json")

    def propose(self, problem: Problem, count: int, seed: int) -> list[Plan]:
        """So many plans, the likeliest first, each with the order that the policy gives it.

        Likeliest from each first plan that it reads, then those first plans themselves, then plans
        between both: only moves that the policy is sure of. The others are drawn.
        """
        with torch_threads(self.threads):
            starts = self.policy.shape.starts
            likeliest = self.policy.act(problem, min(count, starts), seed, greedy=True)
            seen, parts, made = self.policy.see(problem), [likeliest], len(likeliest)
            if made < count:
                first = seen.settle(seen.starts[: count - made])
                order = self.policy.order(problem, first)
                parts.append(replace(likeliest, device=first, priority=order, fusion=None))
                made += len(first)
            for margin in MARGINS:
                if made < count:
                    sure = min(count - made, starts)
                    parts.append(self.policy.act(problem, sure, seed, greedy=True, margin=margin))
                    made += sure
            if made < count:
                parts.append(self.policy.act(problem, count - made, seed))
        plans = []
        for part in parts:
            orders = issued(problem, part.device, part.priority)
            for at, device in enumerate(part.device):
                order = None if orders is None else orders[at]
                fusion = None if part.fusion is None else part.fusion[at]
                plans.append(Plan.of(problem, device, order, fusion=fusion))
        return plans

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.float64]:
        """Ops × devices: where the policy would have each op, given where all are now."""
        import torch

        from placewright.policies.go.policy import SEARCH

        seen = self.policy.see(problem)
        now = plan.device[seen.leader].astype(np.int64)
        with torch.no_grad(), torch_threads(self.threads):
            legal = seen.legal[np.arange(len(now)), now]
            now = np.where(legal, now, seen.legal.argmax(axis=1))
            logits = self.policy.logits(self.policy.graph(problem), now[None], SEARCH)[0]
            likely = torch.softmax(logits.double(), dim=1).cpu().numpy()
        found: NDArray[np.float64] = likely[seen.unit]
        return found
