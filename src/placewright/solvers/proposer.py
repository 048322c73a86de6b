"""Proposers: a problem in, plans worth judging and moves worth trying out, for `auto`.

What a proposer thinks costs seconds that a search could spend judging, so it has an allowance: a
share of the budget. With a budget of time, what proposers took is measured. With a budget of plans
it is only estimated, by the number of ops, so that what is tried does not depend on the clock.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from placewright.errors import PlanError
from placewright.plan import NO_STAGING, Plan
from placewright.solvers.searches.annealing_chains import Guide, Rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.simulator._kernel import ScoutNet
    from placewright.solvers.search import Search

SHARE = 0.2  # of the budget, that proposers may take
_JUDGE_SECONDS = 1.5e-7  # for each op, that judging a plan takes
_PLANS = 8  # that a proposer is asked for
_SLOW = 1e-3  # seconds for each op, that one which does not say is taken to need


@runtime_checkable
class Proposer(Protocol):
    """Anything that proposes plans and moves, such as a trained policy.

    It may have `network(problem)`, a scout that looks at moves inside the compiled walk
    (`scouting.py`). It may say what it takes: `plan_seconds` and `move_seconds`, seconds for each
    op to propose some plans and to say which moves of one plan it likes; else it is taken to be
    slow.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        """So many plans at most; the same seed gives the same plans."""
        ...

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None:
        """Ops × devices: how likely each device is the right one for an op, the rest of the plan
        being as it is; rows sum to 1. None if it does not know."""
        ...


class Allowance:
    """The seconds that proposers may take of one search's budget."""

    def __init__(self, search: Search, share: float = SHARE) -> None:
        self.search, self.share = search, share
        self.took = 0.0
        """Seconds measured so far."""
        self._expected = 0.0

    def covers(self, seconds: float) -> bool:
        """Whether so many more seconds, by a proposer's own estimate, are allowed."""
        search = self.search
        stop, ops = search.stop, search.problem.arrays.ops
        judged = (search.evaluations + stop.left(search)) * ops * _JUDGE_SECONDS
        if self._expected + seconds > self.share * judged:
            return False
        budget = search.seconds + stop.seconds_left(search)
        if math.isinf(budget):
            return True
        # One that took longer than it said will do so again.
        longer = max(1.0, self.took / self._expected) if self._expected else 1.0
        return self.took + seconds * longer <= self.share * budget

    @contextmanager
    def spent(self, seconds: float) -> Iterator[None]:
        """Measure what is done within, which was expected to take so long."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._expected += seconds
            self.took += time.perf_counter() - began


class Asked:
    """A proposer within its allowance: it is asked only what the budget has room for."""

    def __init__(self, proposer: Proposer, allowance: Allowance) -> None:
        self.proposer, self.allowance = proposer, allowance
        self.search = allowance.search
        ops = self.search.problem.arrays.ops
        self._plan = float(getattr(proposer, "plan_seconds", _SLOW)) * ops
        self._moves = float(getattr(proposer, "move_seconds", _SLOW)) * ops
        self.silent = False
        """Whether it has said that it knows nothing of moves."""

    def plans(self) -> list[Plan]:
        """What it proposes, if there is time for it."""
        if not self.allowance.covers(self._plan):
            return []
        seed = int(self.search.rng.integers(2**31))
        with self.allowance.spent(self._plan):
            return list(self.proposer.propose(self.search.problem, _PLANS, seed))

    def guide(self, every: int) -> Guide | None:
        """Its moves, for a walk; None if there is no time to ask it even once."""
        if self.silent or not self.allowance.covers(self._moves):
            return None
        return Guide(self.likely, every=every)

    def network(self) -> ScoutNet | None:
        """Its scout, if it has one for this problem."""
        find = getattr(self.proposer, "network", None)
        found: ScoutNet | None = None if find is None else find(self.search.problem)
        return found

    def likely(self, rows: Rows) -> NDArray[np.float64] | None:
        """Plans × ops × devices of what it thinks, or None."""
        if self.silent or not self.allowance.covers(len(rows.device) * self._moves):
            return None
        problem, found = self.search.problem, []
        a = problem.arrays
        with self.allowance.spent(len(rows.device) * self._moves):
            for at in range(len(rows.device)):
                likely = self.proposer.move_probabilities(problem, _plan(problem, rows, at))
                if likely is None:
                    self.silent = True
                    return None
                found.append(_checked(likely, self.proposer.name, (a.ops, a.devices)))
        return np.stack(found)


def _plan(problem: Problem, rows: Rows, at: int) -> Plan:
    device = rows.device[at]
    return Plan.of(
        problem,
        device,
        None if rows.priority is None else rows.priority[at],
        staging=None if rows.staging is None else _rooms(problem, device, rows.staging[at]),
    )


def _rooms(
    problem: Problem, device: NDArray[np.int32], room: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Staging rooms as a walk judges them: what the largest op needs at least (rule 6)."""
    a = problem.arrays
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    streamed = a.turn[reader] & a.weight[source] & (device[source] != device[reader])
    need = np.zeros(a.ops, dtype=np.int64)
    np.add.at(need, reader[streamed], a.sizes[a.inputs[streamed]])
    most = np.zeros(a.devices, dtype=np.int64)
    np.maximum.at(most, device, need)
    judged = np.where((room >= 0) & (most > 0), np.maximum(room, most), NO_STAGING)
    return None if (judged == NO_STAGING).all() else judged


def _checked(
    likely: NDArray[np.floating], name: str, shape: tuple[int, int]
) -> NDArray[np.float64]:
    given = np.asarray(likely, dtype=np.float64)
    if given.shape != shape:
        raise PlanError(f"proposer {name!r} gives moves of shape {given.shape}: expected {shape}")
    if not (given >= 0).all() or not np.allclose(given.sum(axis=1), 1.0, atol=1e-3):
        raise PlanError(
            f"proposer {name!r} gives moves that are no probabilities: "
            "expected rows of numbers >= 0 that sum to 1"
        )
    return given
