"""Episodes that workers sample ahead: the next update's, while the driver judges the argmax plan.

What is sampled ahead is used only if the next update asks for the very same: the same weights, and
the same requests. So it changes no result, and a wrong guess costs the workers' time alone.
"""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from placewright.training.replica import PolicyReplica
    from placewright.training.sampling import EpisodeRequest

    FutureRows = list[list[Future[list[Any]]]]


@dataclass(frozen=True, eq=False)
class _Guess:
    replica: PolicyReplica
    indices: list[int]
    requests: Sequence[EpisodeRequest]
    futures: FutureRows

    def is_right(
        self, replica: PolicyReplica, indices: list[int], requests: Sequence[EpisodeRequest]
    ) -> bool:
        return (
            indices == self.indices
            and len(requests) == len(self.requests)
            and all(map(_are_equal, map(vars, requests), map(vars, self.requests)))
            and replica == self.replica
        )


class EpisodePrefetch:
    """The futures of what was guessed, until they are taken; after a wrong guess there is none."""

    def __init__(self) -> None:
        self.may_guess = True
        self._guess: _Guess | None = None

    def put(
        self,
        replica: PolicyReplica,
        indices: list[int],
        requests: Sequence[EpisodeRequest],
        futures: FutureRows,
    ) -> None:
        """Keep what workers have begun to sample."""
        self._guess = _Guess(replica, indices, requests, futures)

    def wait(self) -> None:
        """Wait until workers have sampled what was guessed, so that a measurement ends there."""
        if self._guess is not None:
            wait([future for row in self._guess.futures for future in row])

    def take(
        self, replica: PolicyReplica, indices: list[int], requests: Sequence[EpisodeRequest]
    ) -> FutureRows | None:
        """The futures of exactly these episodes; None if others, or none, were begun."""
        guess, self._guess = self._guess, None
        if guess is None:
            return None
        if guess.is_right(replica, indices, requests):
            return guess.futures
        self.may_guess = False
        for row in guess.futures:
            for future in row:
                future.cancel()
        return None


def _are_equal(one: Any, other: Any) -> bool:
    """Whether settings, which may be or contain arrays, are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return one is not None and other is not None and np.array_equal(one, other)
    return bool(one == other)
