"""Walks: plans in, better plans out, by small changes that are kept or taken back as in annealing.

The loop is compiled (`cpp/walk.cpp`); here is what it is told, and how a search follows it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.plan import NO_STAGING
from placewright.simulator._kernel import WalkSettings
from placewright.simulator.evaluation import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.simulator._kernel import ScoutNet
    from placewright.solvers.search import Search
    from placewright.transforms import Grouping

Values = Any  # an array, as the compiled walk gives it

_STRETCH = 300_000  # ops × plans judged between two looks at the stop rule
_CLOSED_FORM = 60_000  # the same for the period, in plans: a change costs what it touches
_PENALTY = 10.0  # a hundredth of the smallest device's memory over costs a tenth of the step time


@dataclass(frozen=True, eq=False)
class Rows:
    """Plans side by side: plans × ops and plans × devices."""

    device: NDArray[np.int32]
    priority: NDArray[np.float64] | None = None
    staging: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, problem: Problem, plans: Sequence[Plan], order: bool, stream: bool) -> Rows:
        """Plans as rows.

        Args:
            order: With priorities; a plan that has none gets the graph's order.
            stream: With staging rooms; a plan that has none may get one.
        """
        a = problem.arrays
        graph_order = np.arange(a.ops, dtype=np.float64)
        nothing = np.full(a.devices, NO_STAGING, dtype=np.int64)
        return cls(
            np.stack([plan.device for plan in plans]).astype(np.int32),
            np.stack([graph_order if p.priority is None else p.priority for p in plans])
            if order
            else None,
            np.stack([nothing if p.staging is None else p.staging for p in plans])
            if stream
            else None,
        )


@dataclass(frozen=True)
class Changes:
    """How often each kind of change is tried, relative to the others."""

    move: float = 4.0  # a block to another device, with its weights
    move_work: float = 0.0  # a block's ops alone: its weights stay where they are
    move_stores: float = 0.0  # a block's weights alone
    swap: float = 2.0  # two blocks change places, or one takes after the other
    stretch: float = 2.0  # a few blocks in a row to the device before or behind them
    reorder: float = 0.0  # an op earlier or later
    reorder_block: float = 0.0  # a block earlier or later
    stage: float = 0.0  # more or less staging room

    @classmethod
    def fit(cls, order: bool, stream: bool) -> Changes:
        """Placement always; order and weights apart from their readers where asked for."""
        return cls(
            move_work=2.0 if stream else 0.0,
            move_stores=2.0 if stream else 0.0,
            stage=0.5 if stream else 0.0,
            reorder=2.0 if order else 0.0,
            reorder_block=1.0 if order else 0.0,
        )


@dataclass(frozen=True)
class Cooling:
    """The temperature at the start and the end of a walk, as a share of the cost.

    A change that makes the plan worse by the temperature's share is kept one time in e.
    """

    hot: float = 0.03
    cold: float = 1e-4


@dataclass(frozen=True)
class Guide:
    """What a proposer thinks of the moves of a walk.

    Args:
        likely: Plans × ops in, plans × ops × devices out: how likely each device is to be the right
            one for an op, the rest of the plan being as it is; None if it cannot say.
        share: Of the moves, that are drawn by it; the others are drawn as ever.
        every: Evaluations of a walk after which it is asked again, as the plans have changed.
    """

    likely: Callable[[Rows], NDArray[np.float64] | None]
    share: float = 0.5
    every: int = 1_000


class Walker:
    """Walks through the plans of one problem, over blocks of several sizes.

    Args:
        levels: Groupings whose groups are moved as one, from fine to coarse.
    """

    def __init__(self, search: Search, levels: Sequence[Grouping]) -> None:
        self.search, self.levels = search, levels
        a = search.problem.arrays
        self._kernel = kernel(a)
        self._blocks = self._kernel.blocks(*_blocks(search.problem, levels))
        self._kept_back = np.zeros(a.devices, dtype=np.int64)
        self.key = min(
            (found.key for found in search.parts.values() if found.plan.fusion is None),
            default=(np.inf, np.inf),
        )
        """Of the best plan so far that a walk could go on from: one without fused ops."""

    def walk(
        self,
        start: Rows,
        evaluations: int,
        cooling: Cooling,
        changes: Changes,
        slope: float = 1.0,
        guide: Guide | None = None,
        scout: ScoutNet | None = None,
    ) -> Rows:
        """Walk from each plan for so many evaluations, or until the search is over.

        Args:
            slope: How much more often each level is used than the one before it (finer).
            guide: Draws some of the moves.
            scout: Looks at several moves for one that is judged; for step times alone.

        Returns:
            The best plan of each walk by (bytes over, objective).
        """
        search, problem = self.search, self.search.problem
        a, period = problem.arrays, problem.objective == "period"
        settings = self._settings(changes, slope)
        if scout is not None:
            settings.scout = scout
        chains, done = len(start.device), 0
        stretch = _CLOSED_FORM if period else max(8, _STRETCH // a.ops)
        seeds = search.rng.integers(0, 2**63, size=chains)
        at, best, best_keys = start, start, [(np.inf, np.inf)] * chains
        likely, ask = None, 0
        settings.guided = 0.0 if guide is None else guide.share
        while done < evaluations and not search.over:
            count = int(min(stretch, evaluations - done, search.stop.left(search) // chains))
            if count < 1:
                break
            if guide is not None and done >= ask:
                likely, ask = self._by_unit(guide.likely(at)), done + guide.every
            settings.evaluations = count
            settings.hot = _between(cooling, done / evaluations)
            settings.cold = _between(cooling, (done + count) / evaluations)
            settings.kept_back = self._kept_back.tolist()
            found, last, overflow, value = self._kernel.walk(
                self._blocks, settings, at.device, at.priority, at.staging, seeds.tolist(), likely
            )
            done, at, seeds = done + count, Rows(*last), seeds + 1
            search.walked(count * chains)
            keys = list(zip(overflow.tolist(), value.tolist(), strict=True))
            better = [chain for chain in range(chains) if keys[chain] < best_keys[chain]]
            best = _with(best, Rows(*found), better)
            for chain in better:
                best_keys[chain] = keys[chain]
                if keys[chain] < self.key:
                    self._show(best, chain)
        return best

    def moves(
        self, start: Rows, count: int, seed: int, slope: float = 1.0
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Moves of one plan as a walk draws them, to train a scout on.

        Returns:
            Moves × features; by what share of it each changes the cost.
        """
        settings = self._settings(Changes(), slope)
        return self._kernel.sample_moves(
            self._blocks, settings, start.device, start.priority, count, seed
        )

    def _settings(self, changes: Changes, slope: float) -> WalkSettings:
        problem = self.search.problem
        settings = WalkSettings()
        settings.penalty, settings.doublings = _PENALTY, 4
        settings.in_order = problem.discipline == "in order"
        settings.period, settings.overlap = problem.objective == "period", problem.overlap
        settings.change_share = [getattr(changes, field.name) for field in fields(changes)]
        settings.level_share = [slope**level for level in range(len(self.levels))]
        settings.capacity = problem.arrays.capacity.tolist()
        return settings

    def _by_unit(self, likely: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Plans × units × devices: the mean of a unit's ops that take a turn, zeros without one."""
        if likely is None:
            return None
        a = self.search.problem.arrays
        turns = np.bincount(a.unit[a.turn], minlength=int(a.unit.max()) + 1)
        sums = [
            [np.bincount(a.unit[a.turn], column[a.turn], len(turns)) for column in plan.T]
            for plan in likely
        ]
        by_unit = np.array(sums).transpose(0, 2, 1) / np.maximum(turns, 1)[:, None]
        return np.ascontiguousarray(by_unit)

    def _show(self, rows: Rows, chain: int) -> None:
        """Let the search see a plan. Of the period, only now is its whole memory known."""
        search = self.search
        verdict = search.walked(
            0,
            rows.device[chain],
            None if rows.priority is None else rows.priority[chain],
            None if rows.staging is None else rows.staging[chain],
        )
        if verdict is None:
            return
        self.key = min(self.key, verdict.key(0))
        if search.problem.objective == "period":
            capacity = search.problem.arrays.capacity
            over = np.maximum(verdict.peak[0] - capacity, 0)
            self._kept_back += np.minimum(over, capacity // 8)


def _with(rows: Rows, other: Rows, which: list[int]) -> Rows:
    """Rows, with some of them replaced by the other's."""

    def merged(mine: Values, theirs: Values) -> Values:
        result = mine.copy()
        result[which] = theirs[which]
        return result

    return Rows(
        merged(rows.device, other.device),
        None if other.priority is None else merged(rows.priority, other.priority),
        None if other.staging is None else merged(rows.staging, other.staging),
    )


def _between(cooling: Cooling, share: float) -> float:
    if cooling.hot == 0:
        return 0.0
    return float(cooling.hot * (cooling.cold / cooling.hot) ** share)


def _blocks(problem: Problem, levels: Sequence[Grouping]) -> tuple[NDArray[np.int32], ...]:
    """The units of each block end to end, and where blocks and levels begin."""
    a = problem.arrays
    heads = np.flatnonzero(a.head == np.arange(a.ops))
    first, units, begin = [np.zeros(1, dtype=np.int64)], [], [0]
    for grouping in levels:
        group = grouping.group[heads]
        size = np.bincount(group)
        # Blocks stand by the middle of their units, so that neighbours are near in the graph.
        middle = np.bincount(group, weights=np.arange(len(heads))) / np.maximum(size, 1)
        place = np.argsort(np.argsort(middle, kind="stable"), kind="stable")
        order = np.argsort(place[group], kind="stable")
        units.append(order)
        first.append(first[-1][-1] + np.cumsum(np.bincount(place[group])))
        begin.append(begin[-1] + len(size))
    parts = np.concatenate(first), np.concatenate(units), np.array(begin)
    return tuple(part.astype(np.int32) for part in parts)
