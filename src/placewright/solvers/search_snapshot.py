"""A snapshot of a search: all that it needs to go on elsewhere as if it had never stopped.

It is plain data, so that a worker can send it and a journal can keep it.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.plan_batch import PlanBatch
from placewright.solvers.best_plans import BestPlans, Candidate, plan_fingerprint
from placewright.solvers.bounds import Bound

if TYPE_CHECKING:
    from placewright.files.validation import Data
    from placewright.problem import Problem
    from placewright.solvers.search import Search

_DTYPES = {"placement": "<i4", "priority": "<f8", "staging": "<i8", "fusion": "<i4"}


@dataclass(frozen=True, eq=False)
class PhasePlan:
    """A plan, the phase that found it, and its overflow and objective.

    Args:
        row: A batch of this one plan.
    """

    phase: str
    key: tuple[float, float]
    row: PlanBatch

    @classmethod
    def of(cls, candidate: Candidate) -> PhasePlan:
        return cls(candidate.found_by, candidate.key, PlanBatch.repeat(candidate.plan))

    def candidate(self, problem: Problem) -> Candidate:
        """The same for a search."""
        return Candidate(self.key, self.phase, partial(self.row.plan, problem, 0))

    @cached_property
    def digest(self) -> str:
        """Tells plans of one problem apart."""
        digest = hashlib.blake2b(digest_size=16)
        for name in _DTYPES:
            array = getattr(self.row, name)
            digest.update(b"|" if array is None else b"|" + array.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class SearchSnapshot:
    """The state of a search.

    Args:
        random: The state of its generator.
        by_phase: The best plan of each phase, in the order in which the phases came.
        top: The best few plans, in the order in which they were found.
        found_by: The phase of the best plan.
        proven: The best bound that a solver has proven.
        own_bound: The problem's bound, if it was computed.
    """

    evaluations: int
    seconds: float
    random: Data
    by_phase: tuple[PhasePlan, ...]
    top: tuple[PhasePlan, ...]
    found_by: str
    history: tuple[tuple[int, float, float], ...]
    proven: Bound | None
    own_bound: Bound | None

    @classmethod
    def of(cls, search: Search) -> SearchSnapshot:
        return cls(
            search.evaluations,
            search.seconds,
            dict(search.rng.bit_generator.state),
            tuple(map(PhasePlan.of, search.best_by_phase.values())),
            tuple(map(PhasePlan.of, search.found_order)),
            search.found_by,
            tuple(search.history),
            search.proven_bound,
            search.own_bound,
        )

    @property
    def best(self) -> PhasePlan:
        return next(plan for plan in self.by_phase if plan.phase == self.found_by)

    @property
    def bound(self) -> Bound | None:
        """The best bound that is known."""
        bounds = [bound for bound in (self.own_bound, self.proven) if bound is not None]
        return max(bounds, key=lambda bound: bound.seconds, default=None)

    def restore(self, search: Search) -> None:
        """Put a search of the same problem into this state."""
        problem = search.problem
        search.evaluations, search.found_by = self.evaluations, self.found_by
        search.rng.bit_generator.state = self.random
        search.best_by_phase = {plan.phase: plan.candidate(problem) for plan in self.by_phase}
        best = search.best_by_phase[self.found_by]
        search.best, search.key = best.plan, best.key
        plans = BestPlans()
        for plan in self.top:
            plans.add(plan.candidate(problem), plan_fingerprint(plan.row))
        search.restore_bounds(plans, self.own_bound, self.proven)
        search.history = list(self.history)


# -- plain data --------------------------------------------------------------------------------


def snapshot_record(snapshot: SearchSnapshot, written: set[str]) -> Data:
    """A snapshot as plain data.

    Args:
        written: Digests of the plans that earlier records have, which this one only names; those
            of this record are added.
    """
    plans: dict[str, Data] = {}
    for plan in (*snapshot.by_phase, *snapshot.top):
        if plan.digest not in written:
            written.add(plan.digest)
            plans[plan.digest] = _row_record(plan.row)
    bounds = [
        None if bound is None else [bound.seconds, bound.name]
        for bound in (snapshot.proven, snapshot.own_bound)
    ]
    return {
        "evaluations": snapshot.evaluations,
        "seconds": snapshot.seconds,
        "random": snapshot.random,
        "plans": plans,
        "by_phase": [[plan.phase, list(plan.key), plan.digest] for plan in snapshot.by_phase],
        "top": [[plan.phase, list(plan.key), plan.digest] for plan in snapshot.top],
        "found_by": snapshot.found_by,
        "history": [list(improvement) for improvement in snapshot.history],
        "bounds": bounds,
    }


def read_snapshot(problem: Problem, record: Data, rows: dict[str, PlanBatch]) -> SearchSnapshot:
    """The snapshot that plain data describe.

    Args:
        rows: The plans of earlier records by digest; those of this record are added.

    Raises:
        KeyError, TypeError, ValueError: The data are malformed.
    """
    for digest, plan in record["plans"].items():
        rows[digest] = _read_row(problem, plan)
    proven, own = (
        None if bound is None else Bound(float(bound[0]), str(bound[1]))
        for bound in record["bounds"]
    )
    by_phase, top = (
        tuple(
            PhasePlan(str(phase), (float(overflow), float(value)), rows[digest])
            for phase, (overflow, value), digest in record[name]
        )
        for name in ("by_phase", "top")
    )
    return SearchSnapshot(
        int(record["evaluations"]),
        float(record["seconds"]),
        record["random"],
        by_phase,
        top,
        str(record["found_by"]),
        tuple((int(at), float(when), float(value)) for at, when, value in record["history"]),
        proven,
        own,
    )


def _row_record(row: PlanBatch) -> Data:
    arrays = {name: getattr(row, name) for name in _DTYPES}
    return {
        name: base64.b64encode(array[0].astype(_DTYPES[name]).tobytes()).decode()
        for name, array in arrays.items()
        if array is not None
    }


def _read_row(problem: Problem, record: Data) -> PlanBatch:
    arrays: dict[str, Any] = {}
    for name, dtype in _DTYPES.items():
        if name in record:
            array = np.frombuffer(base64.b64decode(record[name], validate=True), dtype=dtype)
            length = problem.arrays.devices if name == "staging" else problem.arrays.ops
            if array.shape != (length,):
                raise ValueError(f"a {name} of {len(array)} entries: expected {length}")
            arrays[name] = array.astype(array.dtype.newbyteorder("="))[None]
    return PlanBatch(**arrays)
