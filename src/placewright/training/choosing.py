"""Choosing: a trainer's policy on the way and problems held back in, the weights that do best out.

A policy that learns on goes on fitting the problems that it is shown; which of its states places
others best only others can tell.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.training.averaging import Averaged

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from placewright.problem import Problem
    from placewright.training.trainer import Trainer


class Chosen:
    """Watches a trainer; `settle` then gives its policy the weights that did best.

    Args:
        held: Problems that it is not trained on.
        every: Updates from one look at them to the next.
    """

    def __init__(self, held: Sequence[Problem], every: int = 25) -> None:
        self.held, self.every = list(held), every
        self.averaged = Averaged()
        self.looks: list[tuple[int, float]] = []
        """Plans judged in training, and the mean logarithm of held-back step times."""
        self._best: dict[str, torch.Tensor] = {}

    @property
    def judged(self) -> int:
        """Plans of problems held back that were judged."""
        return len(self.looks) * len(self.held)

    def __call__(self, trainer: Trainer) -> bool:
        """Look at the policy after an update."""
        self.averaged(trainer)
        if trainer.updates % self.every == 0:
            self._look(trainer)
        return True

    def settle(self, trainer: Trainer) -> None:
        """Give the policy the best of the weights that were looked at, and of their mean."""
        self._look(trainer)
        self.averaged.settle(trainer)
        self._look(trainer)
        trainer.policy.load_state_dict(self._best)

    def _look(self, trainer: Trainer) -> None:
        logs = [math.log(_liked(trainer, problem)) for problem in self.held]
        score = float(np.mean(logs)) if logs else 0.0
        if not self._best or score < min(before for _, before in self.looks):
            now = trainer.policy.state_dict().items()
            self._best = {name: weights.detach().clone() for name, weights in now}
        self.looks.append((trainer.evaluations, score))


def _liked(trainer: Trainer, problem: Problem) -> float:
    """What the likeliest plan takes; one that does not fit, by its bytes over times as long."""
    episodes = trainer.policy.act(problem, 1, 0, greedy=True)
    order = None if episodes.priority is None else episodes.priority[-1:]
    verdict = simulator.judge(problem, episodes.device[-1:], order)
    over = float(verdict.overflow[0]) / max(float(problem.arrays.capacity.max()), 1.0)
    return float(verdict.value[0]) * (1 + over)
