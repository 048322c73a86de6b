"""The policy interface: sample episodes for a problem, and score episodes with gradients.

An episode is one run of a policy: the actions it drew and the plans that they stand for. The
trainer knows policies by this page alone, and a policy knows neither simulator nor trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from numpy.typing import NDArray

    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class Episodes:
    """What a policy did, in numbers that need no torch.

    Args:
        actions: What was drawn, by the policy's own names; `score` reads them and nothing else.
        placements: Plans × ops: the plans to be judged, lawful.
        episode_of: Plans: the episode that each belongs to; rising, and in the order of its steps.
        log_prob: Episodes × decisions: the log-probability of everything that was drawn.
        priority: Plans × ops: the order that a policy has in mind for each plan, if it has one.
        fusion: Plans × ops: the fused group of each op, or -1, if a policy decides on it.
    """

    actions: Mapping[str, NDArray[Any]]
    placements: NDArray[np.int32]
    episode_of: NDArray[np.int64]
    log_prob: NDArray[np.float32]
    priority: NDArray[np.float64] | None = None
    fusion: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.log_prob)


@dataclass(frozen=True, eq=False)
class HeadScores:
    """What one part of a policy thinks of the decisions it drew.

    Args:
        log_prob: Episodes × decisions.
        entropy: Episodes × decisions, in nats.
        max_entropy: Decisions: the entropy of an even choice; nothing where there is no choice.
        mask: Episodes × decisions: which of them were drawn at all; None for all. The others have
            no entropy and no log-probability.
    """

    name: str
    log_prob: torch.Tensor
    entropy: torch.Tensor
    max_entropy: torch.Tensor
    mask: torch.Tensor | None = None

    @cached_property
    def normalised_entropy(self) -> torch.Tensor:
        """Entropy as a share of an even choice's, over all decisions that are one."""
        return self.entropy.mean(dim=0).sum() / self.episode_max_entropy.clamp(min=1e-9)

    @cached_property
    def episode_max_entropy(self) -> torch.Tensor:
        """The entropy of even choices, of all decisions that an episode drew on average."""
        if self.mask is None:
            return self.max_entropy.sum()
        return (self.max_entropy * self.mask).sum() / max(len(self.mask), 1)


@dataclass(frozen=True, eq=False)
class Scores:
    """What a policy thinks of episodes.

    Args:
        value: Episodes: how much more than the trainer's baseline it expects, if it has an opinion.
        log_prob_of_best: Episodes × decisions: the log-probability of what another episode did, had it been
            where these were at each of their decisions; without noise.
    """

    heads: tuple[HeadScores, ...]
    value: torch.Tensor | None = None
    log_prob_of_best: torch.Tensor | None = None

    @cached_property
    def log_prob(self) -> torch.Tensor:
        """Episodes × decisions, head after head, as in `Episodes.log_prob`."""
        import torch

        return torch.cat([head.log_prob for head in self.heads], dim=1)

    @property
    def mean_decisions(self) -> float:
        """How many decisions were drawn in an episode, on average."""
        unmasked = [head.log_prob.shape[1] for head in self.heads if head.mask is None]
        masked = [float(head.mask.sum()) for head in self.heads if head.mask is not None]
        return sum(unmasked) + sum(masked) / max(len(self.log_prob), 1)


class Policy(Protocol):
    """A way to make plans that learns; all of them are torch modules."""

    @property
    def name(self) -> str:
        """What the command line and files call it."""
        ...

    def act(
        self, problem: Problem, count: int, seed: int, *, noise: float = 0.0, greedy: bool = False
    ) -> Episodes:
        """So many episodes; the same seed gives the same ones.

        Args:
            noise: How much the logits are shaken, as a share of their own size; what was added
                is part of the actions, so that `score` sees the policy that acted.
            greedy: Take the likeliest action each time instead of drawing it.
        """
        ...

    def score(self, problem: Problem, episodes: Episodes, best: Episodes | None = None) -> Scores:
        """What the policy, as it is now, thinks of the actions that were drawn; with gradients.

        Args:
            best: One episode; a policy whose decisions depend on those before may say in `toward`
                how likely it is to do as this one did, wherever it had come to.
        """
        ...

    def select(self, episodes: Episodes, index: int) -> Episodes:
        """The episode at that place, alone and without noise, to be scored again later."""
        ...

    def to_config(self) -> dict[str, Any]:
        """What `policies.load` needs to make an equal policy, less its weights; plain JSON."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def state_dict(self) -> dict[str, torch.Tensor]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> Any: ...

    def train(self, mode: bool = True) -> Any: ...


def one_plan_per_episode(count: int) -> NDArray[np.int64]:
    """The owners of plans where each episode has one."""
    return np.arange(count, dtype=np.int64)
