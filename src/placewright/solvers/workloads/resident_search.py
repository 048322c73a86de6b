"""Searches which weights stay on the GPU: rules first, then exchanges of a few weights.

Every choice is evaluated with plans of all calls that split the rest of the weights for it
(`host_split`), which is fast: a few plans of each call. Annealing of the calls goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.solvers.stop import Slice
from placewright.solvers.workloads.call_plans import CallPlan, CallPlans
from placewright.solvers.workloads.host_split import BUFFER_SHARES, EFFORTS, QUICK, Effort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.plan_batch import PlanBatch
    from placewright.solvers.workloads.resident_weights import ResidentWeights
    from placewright.solvers.workloads.workload_search import WorkloadSearch

    Flags = NDArray[np.bool_]

Key = tuple[float, float]
"""Overflow and objective."""

_BEST = 8  # choices by rules that are evaluated with more effort
_RECORDED = 4  # choices that are recorded
_STEPS = 400  # exchanges between two returns to the best
_TOLERANCE = 0.004  # of the objective, that the first of these exchanges may lose
_IDLE_CYCLES = 2  # returns to the best without a gain before the end
_LONGEST_RUN = 6  # consecutive weights that are exchanged at once
_STEP_EFFORTS = (Effort(1), Effort(4))


def search_resident_weights(search: WorkloadSearch, share: float) -> None:
    """Evaluate which weights stay, by rules and by exchanges, within a share of what is left."""
    weights = search.resident_weights
    if weights is None:
        return
    search.phase = "host split"
    _ResidentSearch(search, weights, share).run()


class _ResidentSearch:
    def __init__(self, search: WorkloadSearch, weights: ResidentWeights, share: float) -> None:
        self.search, self.weights = search, weights
        self.rng = np.random.default_rng(search.seed)
        limit = Slice.of(search, share)
        self.max_evaluations = search.evaluations + limit.evaluations
        self.max_seconds = search.seconds + limit.seconds
        self.best: list[tuple[Key, Flags, CallPlans]] = []
        self.in_order = np.flatnonzero(weights.movable)
        self.in_order = self.in_order[np.argsort(weights.first_read[self.in_order], kind="stable")]

    def is_over(self) -> bool:
        search = self.search
        return (
            search.evaluations >= self.max_evaluations
            or search.seconds >= self.max_seconds
            or search.is_finished()
        )

    def run(self) -> None:
        for stays in self.weights.selections():
            self._evaluate(stays, QUICK)
            if self.is_over():
                break
        for _, stays, _ in list(self.best):
            if self.is_over():
                break
            self._evaluate(stays, EFFORTS)
        idle = 0
        while self.best and idle < _IDLE_CYCLES and not self.is_over():
            before = self.best[0][0]
            self._exchange()
            idle = 0 if self.best[0][0] < before else idle + 1
        for _, _, plans in self.best[:_RECORDED]:
            self.search.record(plans)

    def _exchange(self) -> None:
        """Exchange a few weights at a time, from the best choice; at first also for a loss."""
        key, stays, _ = self.best[0]
        for step in range(_STEPS):
            if self.is_over():
                return
            neighbour = self._neighbour(stays)
            found = None if neighbour is None else self._evaluate(neighbour, _STEP_EFFORTS)
            tolerance = 1 + _TOLERANCE * (1 - 2 * step / _STEPS)
            if (
                neighbour is not None
                and found is not None
                and found <= (key[0], key[1] * max(1.0, tolerance))
            ):
                key, stays = found, neighbour

    def _neighbour(self, stays: Flags) -> Flags | None:
        """Some weights that stay exchanged with others, or a few more or fewer that stay."""
        rng, order, neighbour = self.rng, self.in_order, stays.copy()
        kind = int(rng.integers(4))
        length = int(rng.integers(1, _LONGEST_RUN + 1)) if kind == 0 else 1
        first = self._some_run(stays[order], length)
        second = self._some_run(~stays[order], length)
        if first is None or second is None:
            return None
        if kind != 1:
            neighbour[order[first]] = False
        if kind != 2:
            neighbour[order[second]] = True
        if (
            int(self.weights.bytes[neighbour & self.weights.movable].sum())
            > self.weights.free_bytes
        ):
            return None
        return neighbour

    def _some_run(self, flags: Flags, length: int) -> NDArray[np.int64] | None:
        """Up to some consecutive of those that are flagged, from a random one."""
        places = np.flatnonzero(flags)
        if not len(places):
            return None
        start = int(self.rng.integers(len(places)))
        run: NDArray[np.int64] = places[start : start + length]
        return run

    def _evaluate(self, stays: Flags, efforts: Sequence[Effort]) -> Key | None:
        """Overflow and objective of the best plans for a choice, which are kept."""
        search, weights = self.search, self.weights
        residency = weights.residency(stays)
        calls = []
        for at, split in enumerate(weights.splits):
            call: CallPlan | None = None
            for share in BUFFER_SHARES:  # a smaller one if activations take more than expected
                call = self._evaluate_call(at, split.plans(residency, efforts, (share,)), call)
                if call is None or not call.overflow:
                    break
            if call is None:
                return None
            calls.append(call)
        plans = CallPlans(search.workload, tuple(calls))
        key = plans.key
        known = [at for at, each in enumerate(self.best) if np.array_equal(each[1], stays)]
        if known and self.best[known[0]][0] <= key:
            return key
        self.best = [each for at, each in enumerate(self.best) if at not in known]
        self.best = sorted([*self.best, (key, stays, plans)], key=lambda each: each[0])[:_BEST]
        return key

    def _evaluate_call(
        self, at: int, plans: PlanBatch | None, known: CallPlan | None
    ) -> CallPlan | None:
        """The best of some plans and of one that is known."""
        if plans is None:
            return known
        problem = self.search.workload.problems[at]
        verdict = simulator.judge_batch(problem, plans)
        self.search.evaluations += len(plans)
        best = verdict.best()
        excess = tuple((verdict.peak[best] - problem.arrays.capacity).tolist())
        call = CallPlan(plans.plan(problem, best), float(verdict.value[best]), excess)
        if known is not None and (known.overflow, known.value) <= (call.overflow, call.value):
            return known
        return call
