"""Elites: the best plans of a problem, at which later episodes start.

A policy that refines plans can refine its own best ones: plans keep the progress, and the policy
learns which changes improve a good plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.outcome import Outcome
    from placewright.policies import Episodes

    StartPlans = dict[str, NDArray[np.int64]]

_DECAY = 0.95  # the weight of earlier trials, per batch
_INITIAL_GAIN = 0.05  # the assumed gain of the first trial, as a share of the objective
_UNIFORM_SHARE = 0.2  # the share of episodes in any slot, uniformly
_SAME_TOLERANCE = 1e-4  # plans whose objectives differ by a smaller share count as one


class Elites:
    """The best plans so far, with distinct objectives."""

    def __init__(self, slots: int, size: int = 4) -> None:
        self.size = size
        self._trials, self._gains = np.ones(slots), _INITIAL_GAIN * 0.5 ** np.arange(slots)
        self._plans: list[tuple[tuple[float, float], StartPlans]] = []

    @property
    def slot_probabilities(self) -> NDArray[np.float64]:
        """The probability of each slot: by the recent gain of the best plan there.

        Initially coarse slots are assumed to gain most.
        """
        mean_gain = self._gains / self._trials
        probabilities: NDArray[np.float64] = mean_gain / mean_gain.sum() * (
            1 - _UNIFORM_SHARE
        ) + _UNIFORM_SHARE / len(mean_gain)
        return probabilities

    @property
    def placements(self) -> NDArray[np.int64]:
        """Plans × units: the devices, the best plan first."""
        return np.stack([plan["device"] for _, plan in self._plans])

    def add(self, episodes: Episodes, outcome: Outcome) -> None:
        """Add episodes, and keep the best plans."""
        from placewright.policies.go.decisions import SLOT
        from placewright.policies.go.policy import decisions_at

        slot = episodes.actions[SLOT]
        if self._plans and (slot >= 0).all():
            (best_overflow, best_seconds), _ = self._plans[0]
            gain = np.where(
                outcome.overflow <= best_overflow, np.log(best_seconds / outcome.seconds), 0.0
            ).clip(0.0)
            self._trials = _DECAY * self._trials + np.bincount(slot, minlength=len(self._trials))
            self._gains = _DECAY * self._gains + np.bincount(slot, gain, len(self._gains))
        end_plans = decisions_at(episodes, "end")
        for index in np.lexsort((outcome.seconds, outcome.overflow))[: self.size].tolist():
            key = float(outcome.overflow[index]), float(outcome.seconds[index])
            if all(
                abs(known_key[1] / key[1] - 1) > _SAME_TOLERANCE for known_key, _ in self._plans
            ):
                self._plans.append((key, {task: plans[index] for task, plans in end_plans.items()}))
        self._plans = sorted(self._plans, key=lambda plan: plan[0])[: self.size]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON."""
        return {"keys": [list(key) for key, _ in self._plans]}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps, as arrays."""
        tasks = self._plans[0][1] if self._plans else {}
        plans = {
            f"plan.{task}": np.stack([plan[task] for _, plan in self._plans]) for task in tasks
        }
        return {"trials": self._trials, "gains": self._gains, **plans}

    def restore(self, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what `state` and `arrays` returned."""
        self._trials, self._gains = arrays["trials"], arrays["gains"]
        tasks = [name.removeprefix("plan.") for name in arrays if name.startswith("plan.")]
        self._plans = [
            (
                (float(overflow), float(seconds)),
                {task: arrays[f"plan.{task}"][index] for task in tasks},
            )
            for index, (overflow, seconds) in enumerate(state["keys"])
        ]

    def start_plans(self, initial_plans: StartPlans, rng: np.random.Generator) -> StartPlans:
        """The initial states of episodes: half the best plan, a quarter another elite.

        Args:
            initial_plans: The initial states without elites; a quarter of them is kept.
        """
        if not self._plans:
            return initial_plans
        count = len(initial_plans["device"])
        other_elite = self._plans[int(rng.integers(len(self._plans)))][1]
        start_plans = {task: rows.copy() for task, rows in initial_plans.items()}
        for task, rows in start_plans.items():
            rows[: count // 2] = self._plans[0][1][task]
            rows[count // 2 : count - count // 4] = other_elite[task]
        return start_plans
