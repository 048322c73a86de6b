"""Elites: episodes and what they were worth in, the plans that later episodes begin with out.

A policy that refines plans may refine its own best ones: progress is kept in plans, and what the
policy learns is which change of a good plan makes it better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.policies import Episodes
    from placewright.training.environment import Judged

    Begun = dict[str, NDArray[np.int64]]

_FADING = 0.95  # how much of what was tried before counts
_HOPE = 0.05  # the gain of a first try, as a share of the objective
_ANY = 0.2  # the share of episodes that draw anywhere
_SAME = 1e-4  # plans whose objectives differ by less, as a share, count as one


class Elites:
    """The best plans so far, no two of the same objective."""

    def __init__(self, slots: int, size: int = 4) -> None:
        self.size = size
        self._tried, self._gained = np.ones(slots), _HOPE * 0.5 ** np.arange(slots)
        self._kept: list[tuple[tuple[float, float], Begun]] = []

    @property
    def slots(self) -> NDArray[np.float64]:
        """How likely an episode draws in each slot: by what the best plan gained there of late.

        At first coarse slots are hoped to gain most.
        """
        share = self._gained / self._tried
        likely: NDArray[np.float64] = share / share.sum() * (1 - _ANY) + _ANY / len(share)
        return likely

    @property
    def devices(self) -> NDArray[np.int64]:
        """Plans × units: where they have what, the best first."""
        return np.stack([plan["device"] for _, plan in self._kept])

    def add(self, episodes: Episodes, judged: Judged) -> None:
        """Keep the best of these."""
        from placewright.policies.go.decisions import SLOT
        from placewright.policies.go.policy import begun_of

        slot = episodes.actions[SLOT]
        if self._kept and (slot >= 0).all():
            (over, best), _ = self._kept[0]
            better = np.where(judged.over <= over, np.log(best / judged.seconds), 0.0).clip(0.0)
            self._tried = _FADING * self._tried + np.bincount(slot, minlength=len(self._tried))
            self._gained = _FADING * self._gained + np.bincount(slot, better, len(self._gained))
        ends = begun_of(episodes, "end")
        for at in np.lexsort((judged.seconds, judged.over))[: self.size].tolist():
            key = float(judged.over[at]), float(judged.seconds[at])
            if all(abs(known[1] / key[1] - 1) > _SAME for known, _ in self._kept):
                self._kept.append((key, {task: row[at] for task, row in ends.items()}))
        self._kept = sorted(self._kept, key=lambda each: each[0])[: self.size]

    def begun(self, first: Begun, rng: np.random.Generator) -> Begun:
        """What episodes begin with: half the best, a quarter another elite, a quarter first plans.

        Args:
            first: What they would begin with else; some of it is kept.
        """
        if not self._kept:
            return first
        count = len(first["device"])
        another = self._kept[int(rng.integers(len(self._kept)))][1]
        begun = {task: rows.copy() for task, rows in first.items()}
        for task, rows in begun.items():
            rows[: count // 2] = self._kept[0][1][task]
            rows[count // 2 : count - count // 4] = another[task]
        return begun
