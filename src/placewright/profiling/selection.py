"""Selects a plan by measurement, or cautiously by simulation with a slower host.

Every single device is among them, so that what is chosen never loses to the best of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.errors import ConfigError, ExecutionError
from placewright.plan import Plan
from placewright.profiling.host_sensitivity import (
    HOST_SCALES,
    SLOW_HOST,
    host_matters,
    host_variants,
    scale_host,
)
from placewright.solvers import Auto, Candidate, MaxTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placewright.problem import Problem
    from placewright.runtime.meter import Measurement, Meter
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
    return _measure_candidates(problem, [_candidate(problem, plan, "") for plan in plans], meter, k)


@dataclass(frozen=True)
class MeasuredChoice:
    """Chooses the fastest plan by measurement, of the best few of a search that fit.

    It is what `solve` takes as `choose`; it raises ExecutionError where none could be run.

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
            host_candidates = [_candidate(problem, plan, "leaning") for plan in plans]
        self.ranking[:] = _measure_candidates(
            problem, search.top_plans, self.meter, self.k, host_candidates
        )
        return self.ranking[0].candidate


@dataclass(frozen=True)
class CautiousChoice:
    """Chooses, of the best few plans of a search and every single device, one to be trusted unseen.

    Beside a GPU a host is the least certain: it is slower than measured where it waits and wakes,
    and breaks what would be one CUDA graph into many. So a plan that leaves ops to it must gain
    enough: what counts is the geometric mean of what is predicted with the host as measured and
    with a slower one. Where no host is beside other devices, the best plan is taken.
    """

    def __call__(self, search: Search) -> Candidate:
        problem = search.problem
        candidates = sorted(search.top_plans, key=lambda candidate: candidate.key)
        if not host_matters(problem):
            return candidates[0]
        slow_problem = scale_host(problem, *SLOW_HOST)

        def cautious_key(candidate: Candidate) -> tuple[float, float]:
            return candidate.key[0], math.sqrt(
                candidate.key[1] * _simulated_key(slow_problem, candidate.plan)[1]
            )

        return min([*candidates, *_single_device_candidates(problem)], key=cautious_key)


def _candidate(problem: Problem, plan: Plan, source: str) -> Candidate:
    return Candidate(_simulated_key(problem, plan), source, lambda: plan)


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
        *_single_device_candidates(problem),
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


def _single_device_candidates(problem: Problem) -> list[Candidate]:
    """All on one device, for each that it fits."""
    candidates = []
    for number, device in enumerate(problem.cluster.devices):
        plan = Plan.of(problem, problem.legalize(np.full(len(problem.graph), number)))
        candidates.append(_candidate(problem, plan, f"all on {device.name}"))
    return [candidate for candidate in candidates if candidate.key[0] == 0]


def _simulated_key(problem: Problem, plan: Plan) -> tuple[float, float]:
    timeline = simulator.simulate(problem, plan)
    value = timeline.step_time if problem.objective == "step" else timeline.period
    return timeline.overflow, value
