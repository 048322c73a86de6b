"""Selects a plan by measurement.

Every single device is among them, so that what is chosen never loses to the best of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, ExecutionError
from placewright.profiling.host_sensitivity import HOST_SCALES, host_variants
from placewright.solvers import Auto, Candidate, MaxTime
from placewright.solvers.cautious_choice import (
    host_matters,
    plan_candidate,
    single_device_candidates,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.runtime.measurement_journal import Measurement
    from placewright.runtime.meter import Meter
    from placewright.solvers import Search


_SEARCH_SHARE, _MIN_SECONDS = 0.25, 1.0
"""Seconds for each further plan: a share of the search's, and a minimum."""


@dataclass(frozen=True)
class MeasuredCandidate:
    """A plan, its simulated key and its measurement."""

    candidate: Candidate
    measurement: Measurement


def rerank(
    problem: Problem, plans: Sequence[Plan], meter: Meter, k: int = 3
) -> list[MeasuredCandidate]:
    """The best k plans by the simulator and every single device, best by measurement first.

    Plans that fit the memory come before those that do not, however fast these are.

    Raises:
        ExecutionError: None of the plans that fit could be run; or of all, if none fits.
    """
    return _measure_candidates(
        problem, [plan_candidate(problem, plan, "") for plan in plans], meter, k
    )


@dataclass(frozen=True)
class MeasuredChoice:
    """Chooses the fastest plan by measurement, of the best few of a search that fit.

    It is what `solve` takes as `select`; it raises ExecutionError where none could be run.

    Args:
        k: How many plans of the search to measure, in addition to every single device.
        ranking: The measured plans, best first; empty before a search.
    """

    meter: Meter
    k: int = 3
    ranking: list[MeasuredCandidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"{self.k} plans to measure: expected 1 or more")

    def __call__(self, search: Search) -> Candidate:
        problem, host_candidates = search.problem, []
        if host_matters(
            problem
        ):  # beside a GPU: further plans that rely on the host more, and less
            stop = MaxTime(max(_MIN_SECONDS, _SEARCH_SHARE * search.seconds))
            plans = host_variants(problem, Auto(proposers=()), stop, scales=HOST_SCALES[1:])
            host_candidates = [plan_candidate(problem, plan, "leaning") for plan in plans]
        self.ranking[:] = _measure_candidates(
            problem, search.top_plans, self.meter, self.k, host_candidates
        )
        return self.ranking[0].candidate


def _measure_candidates(
    problem: Problem,
    candidates: Iterable[Candidate],
    meter: Meter,
    k: int,
    extra: Iterable[Candidate] = (),
) -> list[MeasuredCandidate]:
    selected = [
        *sorted(candidates, key=lambda candidate: candidate.key)[:k],
        *extra,
        *single_device_candidates(problem),
    ]
    distinct = {candidate.plan: candidate for candidate in selected}
    ranking = [
        MeasuredCandidate(candidate, meter.measure(plan)) for plan, candidate in distinct.items()
    ]
    ranking.sort(key=_sort_key)
    if ranking and math.isinf(ranking[0].measurement.seconds):
        best = ranking[0]
        same_fit = [
            entry
            for entry in ranking
            if (entry.candidate.key[0] > 0) == (best.candidate.key[0] > 0)
        ]
        qualifier = "" if len(same_fit) == len(ranking) else " that fit the memory"
        reason = best.measurement.failure.strip().partition("\n")[0]
        raise ExecutionError(
            f"none of the {len(same_fit)} plans{qualifier} could be run: plan without measuring, "
            f"or fix the error of the best of them: {reason}"
        )
    return ranking


def _sort_key(entry: MeasuredCandidate) -> tuple[bool, bool, float, float]:
    """Plans that fit come first, then plans that could be run: limits may be below the memory."""
    overflow, seconds = entry.candidate.key[0], entry.measurement.seconds
    return overflow > 0, math.isinf(seconds), overflow, seconds
