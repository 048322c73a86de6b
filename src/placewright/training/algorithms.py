"""REINFORCE and PPO: episodes and their advantages in, a better policy out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy, Scores
    from placewright.problem import Problem


@dataclass(frozen=True)
class Pressure:
    """What else pulls at a policy, and how hard it may be pulled.

    Args:
        bonus: What a nat of entropy of each decision is worth.
        floor: A share of an even choice's entropy; below it entropy is worth 1 a nat.
        clip: The most that all gradients together may measure; 0 for no limit.
        imitate: What a nat of log-probability of the best episode so far is worth.
        best: That episode.
    """

    bonus: float = 0.0
    floor: float = 0.0
    clip: float = 1.0
    imitate: float = 0.0
    best: Episodes | None = None

    @property
    def like(self) -> Episodes | None:
        """The episode to imitate."""
        return self.best if self.imitate else None


class Algorithm(Protocol):
    """A way to learn from episodes."""

    def update(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        optimizer: torch.optim.Optimizer,
        pressure: Pressure,
    ) -> dict[str, float]:
        """Change the policy for the better.

        Args:
            advantage: Episodes × steps: one for all decisions of an episode, or one for each.

        Returns:
            Figures to be logged: the gradient's norm, and each head's entropy as a share.
        """
        ...


@dataclass(frozen=True)
class Reinforce:
    """Williams 1992: a step along advantage × gradient of the log-probability of what was done."""

    def update(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        optimizer: torch.optim.Optimizer,
        pressure: Pressure,
    ) -> dict[str, float]:
        scores = policy.score(problem, episodes, pressure.like)
        credit = _credit(advantage, scores)
        loss = -(credit * scores.log_prob).sum(dim=1).mean() + _value_loss(scores, advantage)
        loss = (
            loss + _entropy_loss(scores, pressure) + _best_loss(policy, problem, scores, pressure)
        )
        return {"gradient": _step(policy, optimizer, loss, pressure.clip), **_shares(scores)}


@dataclass(frozen=True)
class PPO:
    """Schulman et al. 2017: several steps on the same episodes, none of them too far.

    The ratio is clipped for each decision, since that of a whole plan of thousands of them is
    nothing or beyond all measure, and losses are means over decisions.

    Args:
        epochs: Steps on the same episodes.
        clip: How far a decision's probability may move, as a share, before it counts no more.
        kl: Steps end once a whole plan's log-probability has moved by this on average.
    """

    epochs: int = 4
    clip: float = 0.2
    kl: float = 1.0

    def update(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        optimizer: torch.optim.Optimizer,
        pressure: Pressure,
    ) -> dict[str, float]:
        import torch

        said: dict[str, float] = {}
        for epoch in range(self.epochs):
            scores = policy.score(problem, episodes, pressure.like)
            before = torch.as_tensor(episodes.log_prob, device=scores.log_prob.device)
            moved = scores.log_prob - before
            apart = float((moved.exp() - 1 - moved).sum(dim=1).mean().detach())  # Schulman 2020
            if epoch and apart > self.kl:
                break
            credit, ratio = _credit(advantage, scores), moved.exp()
            kept = ratio.clamp(1 - self.clip, 1 + self.clip)
            # Decisions that were not drawn stand still: they add nothing but their number.
            gain = torch.minimum(ratio * credit, kept * credit).sum(dim=1).mean()
            pulled = _entropy_loss(scores, pressure)
            pulled = pulled + _best_loss(policy, problem, scores, pressure)
            loss = (pulled - gain) / max(scores.decisions, 1.0) + _value_loss(scores, advantage)
            norm = _step(policy, optimizer, loss, pressure.clip)
            said = {"gradient": norm, "kl": apart, **_shares(scores)}
        return said


def _credit(advantage: NDArray[np.float64], scores: Scores) -> torch.Tensor:
    """Advantages as a tensor, less what a policy with a value head expected of each episode."""
    credit = _tensor(advantage, scores)
    return credit if scores.value is None else credit - scores.value.detach()[:, None]


def _tensor(values: NDArray[np.float64], scores: Scores) -> torch.Tensor:
    import torch

    log_prob = scores.log_prob
    return torch.as_tensor(values, dtype=log_prob.dtype, device=log_prob.device)


def _entropy_loss(scores: Scores, pressure: Pressure) -> Any:
    """Less for more entropy, summed over decisions."""
    loss: Any = 0.0
    for head in scores.heads:
        if pressure.bonus:
            loss = loss - pressure.bonus * head.share * head.even
        if pressure.floor:
            loss = loss + (pressure.floor - head.share).clamp(min=0.0) * head.even
    return loss


def _best_loss(policy: Policy, problem: Problem, scores: Scores, pressure: Pressure) -> Any:
    """Less the likelier the best episode so far is (self-imitation, Oh et al. 2018).

    Where a policy can say so, it learns to do as that one did wherever its own decisions led it
    (Ross et al. 2011): else one decision that differs leads to many.
    """
    if pressure.like is None or pressure.best is None:
        return 0.0
    if scores.toward is not None:
        return -pressure.imitate * scores.toward.sum(dim=1).mean()
    return -pressure.imitate * policy.score(problem, pressure.best).log_prob.sum()


def _value_loss(scores: Scores, advantage: NDArray[np.float64]) -> Any:
    """A value head learns to expect what the baseline leaves of each episode's reward."""
    if scores.value is None:
        return 0.0
    return 0.5 * (scores.value - _tensor(advantage, scores).mean(dim=1)).square().mean()


def _step(
    policy: Policy, optimizer: torch.optim.Optimizer, loss: torch.Tensor, clip: float
) -> float:
    import torch

    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    most = clip if clip > 0 else float("inf")
    norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), most))
    if np.isfinite(norm):
        optimizer.step()
    return norm


def _shares(scores: Scores) -> dict[str, float]:
    return {f"entropy/{head.name}": float(head.share.detach()) for head in scores.heads}
