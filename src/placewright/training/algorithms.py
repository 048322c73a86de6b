"""REINFORCE and PPO: update a policy from episodes and their advantages."""

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
class Regularization:
    """Further terms of the loss, and the limit of the gradient.

    Args:
        entropy_bonus: The reward of a nat of entropy of each decision.
        entropy_floor: A share of a uniform choice's entropy; below it a nat is worth 1.
        max_grad_norm: The largest norm of all gradients together; 0 for no limit.
        self_imitation: The reward of a nat of log-probability of the best episode so far.
        best_episode: That episode.
    """

    entropy_bonus: float = 0.0
    entropy_floor: float = 0.0
    max_grad_norm: float = 1.0
    self_imitation: float = 0.0
    best_episode: Episodes | None = None

    @property
    def imitation_target(self) -> Episodes | None:
        """The episode to imitate."""
        return self.best_episode if self.self_imitation else None


class Algorithm(Protocol):
    """Updates a policy from episodes: one or several optimizer steps on a loss."""

    @property
    def epochs(self) -> int:
        """The largest number of optimizer steps on the same episodes."""
        ...

    def loss(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        regularization: Regularization,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of episodes under the policy as it is now, with gradients.

        Args:
            advantage: Episodes × steps: one for all decisions of an episode, or one for each.

        Returns:
            The loss, and figures to be logged: means over episodes, such as each head's entropy as
            a share.
        """
        ...

    def ends_before(self, epoch: int, figures: dict[str, float]) -> bool:
        """Whether there is no step in this epoch, by the figures of its loss."""
        ...

    def update(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        optimizer: torch.optim.Optimizer,
        regularization: Regularization,
    ) -> dict[str, float]:
        """Update the policy.

        Returns:
            The gradient's norm and the loss's figures, of the last step.
        """
        ...


class OptimizerSteps:
    """Base of algorithms: optimizer steps on the loss of all episodes together."""

    def update(
        self: Algorithm,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        optimizer: torch.optim.Optimizer,
        regularization: Regularization,
    ) -> dict[str, float]:
        stats: dict[str, float] = {}
        for epoch in range(self.epochs):
            loss, figures = self.loss(policy, problem, episodes, advantage, regularization)
            if self.ends_before(epoch, figures):
                break
            norm = optimizer_step(policy, optimizer, loss, regularization.max_grad_norm)
            stats = {"gradient": norm, **figures}
        return stats


@dataclass(frozen=True)
class Reinforce(OptimizerSteps):
    """Williams 1992: a step along advantage × gradient of the log-probability of the actions."""

    @property
    def epochs(self) -> int:
        return 1

    def ends_before(self, epoch: int, figures: dict[str, float]) -> bool:
        return False

    def loss(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        regularization: Regularization,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        scores = policy.score(problem, episodes, regularization.imitation_target)
        credit = _credit(advantage, scores)
        loss = -(credit * scores.log_prob).sum(dim=1).mean() + _value_loss(scores, advantage)
        loss = (
            loss
            + _entropy_loss(scores, regularization)
            + _self_imitation_loss(policy, problem, scores, regularization)
        )
        return loss, _entropy_shares(scores)


@dataclass(frozen=True)
class PPO(OptimizerSteps):
    """Schulman et al. 2017: several steps on the same episodes, none of them too far.

    The ratio is clipped for each decision, since the ratio of a whole plan of thousands of them
    underflows or overflows, and losses are means over decisions.

    Args:
        epochs: Steps on the same episodes.
        clip_ratio: How far a decision's probability may move, as a share, before it is clipped.
        max_kl: Steps end once a whole plan's log-probability has moved by this on average.
    """

    epochs: int = 4
    clip_ratio: float = 0.2
    max_kl: float = 1.0

    def ends_before(self, epoch: int, figures: dict[str, float]) -> bool:
        return epoch > 0 and figures["kl"] > self.max_kl

    def loss(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        regularization: Regularization,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        import torch

        scores = policy.score(problem, episodes, regularization.imitation_target)
        old_log_prob = torch.as_tensor(episodes.log_prob, device=scores.log_prob.device)
        log_ratio = scores.log_prob - old_log_prob
        kl = float((log_ratio.exp() - 1 - log_ratio).sum(dim=1).mean().detach())  # Schulman 2020
        credit, ratio = _credit(advantage, scores), log_ratio.exp()
        clipped_ratio = ratio.clamp(1 - self.clip_ratio, 1 + self.clip_ratio)
        # Decisions that were not sampled have ratio 1: they add a constant.
        gain = torch.minimum(ratio * credit, clipped_ratio * credit).sum(dim=1).mean()
        penalty = _entropy_loss(scores, regularization)
        penalty = penalty + _self_imitation_loss(policy, problem, scores, regularization)
        loss = (penalty - gain) / max(scores.mean_decisions, 1.0) + _value_loss(scores, advantage)
        return loss, {"kl": kl, **_entropy_shares(scores)}


def _credit(advantage: NDArray[np.float64], scores: Scores) -> torch.Tensor:
    """Advantages as a tensor, less the value that a value head predicted of each episode."""
    credit = _tensor(advantage, scores)
    return credit if scores.value is None else credit - scores.value.detach()[:, None]


def _tensor(values: NDArray[np.float64], scores: Scores) -> torch.Tensor:
    import torch

    log_prob = scores.log_prob
    return torch.as_tensor(values, dtype=log_prob.dtype, device=log_prob.device)


def _entropy_loss(scores: Scores, regularization: Regularization) -> Any:
    """Less for more entropy, summed over decisions."""
    loss: Any = 0.0
    for head in scores.heads:
        if regularization.entropy_bonus:
            loss = (
                loss
                - regularization.entropy_bonus * head.normalised_entropy * head.episode_max_entropy
            )
        if regularization.entropy_floor:
            loss = (
                loss
                + (regularization.entropy_floor - head.normalised_entropy).clamp(min=0.0)
                * head.episode_max_entropy
            )
    return loss


def _self_imitation_loss(
    policy: Policy, problem: Problem, scores: Scores, regularization: Regularization
) -> Any:
    """Less the likelier the best episode so far is (self-imitation, Oh et al. 2018).

    Where a policy has `log_prob_of_best`, it learns that episode's choices in the states that its
    own decisions led to (Ross et al. 2011): otherwise one decision that differs leads to many.
    """
    if regularization.imitation_target is None or regularization.best_episode is None:
        return 0.0
    if scores.log_prob_of_best is not None:
        return -regularization.self_imitation * scores.log_prob_of_best.sum(dim=1).mean()
    return (
        -regularization.self_imitation
        * policy.score(problem, regularization.best_episode).log_prob.sum()
    )


def _value_loss(scores: Scores, advantage: NDArray[np.float64]) -> Any:
    """A value head learns to predict the part of each episode's reward that the baseline leaves."""
    if scores.value is None:
        return 0.0
    return 0.5 * (scores.value - _tensor(advantage, scores).mean(dim=1)).square().mean()


def optimizer_step(
    policy: Policy, optimizer: torch.optim.Optimizer, loss: torch.Tensor, max_grad_norm: float
) -> float:
    """Take one optimizer step, unless a gradient is not finite.

    Returns:
        The norm of all gradients together, before it was clipped.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    return clipped_step(policy, optimizer, max_grad_norm)


def clipped_step(policy: Policy, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> float:
    """Clip the gradients that the parameters have and take one step; see `optimizer_step`."""
    import torch

    max_norm = max_grad_norm if max_grad_norm > 0 else float("inf")
    norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm))
    if np.isfinite(norm):
        optimizer.step()
    return norm


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all parameters."""
    for param_group in optimizer.param_groups:
        param_group["lr"] = learning_rate


def _entropy_shares(scores: Scores) -> dict[str, float]:
    return {
        f"entropy/{head.name}": float(head.normalised_entropy.detach()) for head in scores.heads
    }


def loss_terms(
    policy: Policy,
    problem: Problem,
    episodes: Episodes,
    advantage: NDArray[np.float64],
    regularization: Regularization,
) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, float]]:
    """REINFORCE's loss in two terms: of rewards, and of entropy and self-imitation, if it has any.

    Returns:
        Both, and each head's entropy as a share.
    """
    scores = policy.score(problem, episodes, regularization.imitation_target)
    rewards = -(_credit(advantage, scores) * scores.log_prob).sum(dim=1).mean()
    others = _entropy_loss(scores, regularization)
    others = others + _self_imitation_loss(policy, problem, scores, regularization)
    no_others = isinstance(others, float)
    return (
        rewards + _value_loss(scores, advantage),
        None if no_others else others,
        _entropy_shares(scores),
    )
