"""Plans that the simulator likes in, the best by measurement out; or one that needs no luck.

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
    LEANS,
    SLOW,
    lean,
    leaning_plans,
    leans,
)
from placewright.solvers import Auto, Found, MaxTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placewright.problem import Problem
    from placewright.runtime.meter import Measured, Meter
    from placewright.solvers import Search


_SHARE, _LEAST = 0.25, 1.0
"""Of the search's seconds, and at least so many: what is spent on each further plan."""


@dataclass(frozen=True)
class Ranked:
    """A plan, what the simulator says of it and what was measured."""

    found: Found
    measured: Measured


def rerank(problem: Problem, plans: Sequence[Plan], meter: Meter, k: int = 3) -> list[Ranked]:
    """The best k plans by the simulator and every single device, best by measurement first.

    Those that fit the memory go before those that do not, however quick.

    Raises:
        ExecutionError: None of those that are to go first could be run.
    """
    return _measured(problem, [_found(problem, plan, "") for plan in plans], meter, k)


@dataclass(frozen=True)
class Remeasured:
    """Chooses, of the best few plans of a search that fit, the one that is measured quickest.

    It is what `solve` takes as `choose`; it raises ExecutionError where none could be run.

    Args:
        k: How many plans of the search to measure, beside every single device.
        ranked: What was measured, best first; nothing before a search.
    """

    meter: Meter
    k: int = 3
    ranked: list[Ranked] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"{self.k} plans to measure: expected 1 or more")

    def __call__(self, search: Search) -> Found:
        problem, leaning = search.problem, []
        if leans(problem):  # beside a GPU: further plans that rely on the host more, and less
            stop = MaxTime(max(_LEAST, _SHARE * search.seconds))
            plans = leaning_plans(problem, Auto(), stop, factors=LEANS[1:])
            leaning = [_found(problem, plan, "leaning") for plan in plans]
        self.ranked[:] = _measured(problem, search.few, self.meter, self.k, leaning)
        return self.ranked[0].found


@dataclass(frozen=True)
class Wary:
    """Chooses, of the best few plans of a search and every single device, one to be trusted unseen.

    Beside a GPU a host is the least certain: it is slower than measured where it waits and wakes,
    and breaks what would be one CUDA graph into many. So a plan that leaves ops to it must gain
    enough: what counts is the geometric mean of what is predicted with the host as measured and
    with a slower one. Where no host is beside other devices, the best plan is taken.
    """

    def __call__(self, search: Search) -> Found:
        problem = search.problem
        few = sorted(search.few, key=lambda found: found.key)
        if not leans(problem):
            return few[0]
        slow = lean(problem, *SLOW)

        def doubted(found: Found) -> tuple[float, float]:
            return found.key[0], math.sqrt(found.key[1] * _key(slow, found.plan)[1])

        return min([*few, *_singles(problem)], key=doubted)


def _found(problem: Problem, plan: Plan, who: str) -> Found:
    return Found(_key(problem, plan), who, lambda: plan)


def _measured(
    problem: Problem, plans: Iterable[Found], meter: Meter, k: int, more: Iterable[Found] = ()
) -> list[Ranked]:
    chosen = [*sorted(plans, key=lambda found: found.key)[:k], *more, *_singles(problem)]
    different = {found.plan: found for found in chosen}
    ranked = [Ranked(found, meter.measure(plan)) for plan, found in different.items()]
    ranked.sort(key=_order)
    if ranked and math.isinf(ranked[0].measured.seconds):
        first = ranked[0]
        alike = [one for one in ranked if (one.found.key[0] > 0) == (first.found.key[0] > 0)]
        which = "" if len(alike) == len(ranked) else " that fit the memory"
        why = first.measured.failure.strip().partition("\n")[0]
        raise ExecutionError(
            f"none of the {len(alike)} plans{which} could be run: plan without measuring, or mend "
            f"what the best of them met: {why}"
        )
    return ranked


def _order(one: Ranked) -> tuple[bool, bool, float, float]:
    """What fits goes first, then what could be run; a limit need not be all that a device has."""
    over, seconds = one.found.key[0], one.measured.seconds
    return over > 0, math.isinf(seconds), over, seconds


def _singles(problem: Problem) -> list[Found]:
    """All on one device, for each that it fits."""
    found = []
    for number, device in enumerate(problem.cluster.devices):
        plan = Plan.of(problem, problem.settle(np.full(len(problem.graph), number)))
        found.append(_found(problem, plan, f"all on {device.name}"))
    return [single for single in found if single.key[0] == 0]


def _key(problem: Problem, plan: Plan) -> tuple[float, float]:
    timeline = simulator.simulate(problem, plan)
    value = timeline.step_time if problem.objective == "step" else timeline.period
    return timeline.overflow, value
