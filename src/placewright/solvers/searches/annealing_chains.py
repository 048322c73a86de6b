"""Annealing chains: the compiled annealing loop, its settings, and its use by a search.

The loop is compiled (`cpp/annealing/annealing.cpp`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from placewright.plan_batch import PlanBatch
from placewright.simulator._kernel import AnnealingSettings
from placewright.simulator.evaluation import kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from placewright.problem_arrays import Arrays
    from placewright.simulator._kernel import ScoutNet
    from placewright.solvers.search import Search
    from placewright.transforms import Grouping

_OPS_PER_CALL = 300_000  # ops × plans evaluated between two checks of the stop rule
_PLANS_PER_CALL = 60_000  # the same for the period, in plans: a move costs in proportion to its ops
_OVERFLOW_PENALTY = (
    10.0  # an overflow of 1 % of the smallest device's memory costs 10 % of the step time
)


@dataclass(frozen=True)
class MoveShares:
    """How often each kind of move is tried, relative to the others."""

    move: float = 4.0  # a block to another device, with its weights
    move_work: float = 0.0  # a block's ops without its weights
    move_weights: float = 0.0  # a block's weights without its ops
    swap: float = 2.0  # two blocks exchange devices, or one copies the other
    move_run: float = 2.0  # a few consecutive blocks to the device before or behind them
    reorder: float = 0.0  # an op earlier or later
    reorder_block: float = 0.0  # a block earlier or later
    stage: float = 0.0  # a larger or smaller staging buffer

    @classmethod
    def for_search(cls, with_priorities: bool, with_staging: bool) -> MoveShares:
        """Placement always; order, and weights apart from their readers, on request."""
        return cls(
            move_work=2.0 if with_staging else 0.0,
            move_weights=2.0 if with_staging else 0.0,
            stage=0.5 if with_staging else 0.0,
            reorder=2.0 if with_priorities else 0.0,
            reorder_block=1.0 if with_priorities else 0.0,
        )


@dataclass(frozen=True)
class Cooling:
    """The temperature at the start and the end of annealing, as a share of the cost.

    A move that makes the plan worse by this share is accepted with probability 1/e.
    """

    hot: float = 0.03
    cold: float = 1e-4


@dataclass(frozen=True)
class MoveGuide:
    """A proposer's probabilities for the moves of annealing.

    Args:
        device_probs: Maps plans to plans × ops × devices: the probability that a device is the
            right one for an op, given the rest of the plan; or to None if it does not know.
        share: The share of moves that are sampled by it; the others are sampled as usual.
        interval: Evaluations after which it is called again, as the plans have changed.
    """

    device_probs: Callable[[PlanBatch], NDArray[np.float64] | None]
    share: float = 0.5
    interval: int = 1_000


class AnnealingChains:
    """Annealing chains of one problem, over blocks of several sizes.

    Args:
        levels: Groupings whose groups are moved as one, from fine to coarse. Before them comes a
            level of single units, which parts the weights of one op where memory is in the way.
    """

    def __init__(self, search: Search, levels: Sequence[Grouping]) -> None:
        self.search, self.levels = search, levels
        a = search.problem.arrays
        self._kernel = kernel(a)
        groups = [a.unit, *(grouping.group for grouping in levels)]
        self._move_blocks = self._kernel.move_blocks(*_block_arrays(a, groups))
        self._memory_margin = np.zeros(a.devices, dtype=np.int64)
        self.key = min(
            (
                candidate.key
                for candidate in search.best_by_phase.values()
                if candidate.plan.fusion is None
            ),
            default=(np.inf, np.inf),
        )
        """Of the best plan so far without fused ops, from which annealing can go on."""

    def run(
        self,
        start: PlanBatch,
        evaluations: int,
        cooling: Cooling,
        move_shares: MoveShares,
        level_ratio: float = 1.0,
        guide: MoveGuide | None = None,
        scout: ScoutNet | None = None,
        simulate_memory: bool = False,
        overflow_first: bool = False,
    ) -> PlanBatch:
        """Anneal from each plan for this many evaluations, or until the search is over.

        Args:
            level_ratio: How much more often each level is used than the finer one before it.
            guide: Samples some of the moves.
            scout: Scores several moves for each one that is evaluated; for step times only.
            simulate_memory: For the period: simulate each plan for its memory, on which order and
                staging act, instead of counting resident bytes. It takes as long as a step time.
            overflow_first: Fewer bytes over are better whatever the objective. Otherwise a plan
                that is a little over may cost less than one that fits.

        Returns:
            The best plan of each chain by (overflow, objective).
        """
        search, problem = self.search, self.search.problem
        a, by_loads = problem.arrays, problem.objective == "period" and not simulate_memory
        settings = self._settings(move_shares, level_ratio)
        settings.simulate_memory, settings.overflow_first = simulate_memory, overflow_first
        if simulate_memory or overflow_first:
            settings.level_share = [1.0, *settings.level_share[1:]]
        if scout is not None:
            settings.scout = scout
        chains, done = len(start), 0
        chunk = _PLANS_PER_CALL if by_loads else max(8, _OPS_PER_CALL // a.ops)
        seeds = search.rng.integers(0, 2**63, size=chains)
        current, best, best_keys = start, start, [(np.inf, np.inf)] * chains
        device_probs, next_query = None, 0
        settings.guided_share = 0.0 if guide is None else guide.share
        while done < evaluations and not search.over:
            count = int(min(chunk, evaluations - done, search.stop.left(search) // chains))
            if count < 1:
                break
            if guide is not None and done >= next_query:
                device_probs, next_query = (
                    self._by_unit(guide.device_probs(current)),
                    done + guide.interval,
                )
            settings.evaluations = count
            settings.hot = _temperature(cooling, done / evaluations)
            settings.cold = _temperature(cooling, (done + count) / evaluations)
            settings.memory_margin = self._memory_margin.tolist()
            best_plans, last_plans, overflow, value = self._kernel.anneal(
                self._move_blocks,
                settings,
                current.placement,
                current.priority,
                current.staging,
                seeds.tolist(),
                device_probs,
            )
            done, current, seeds = done + count, PlanBatch(*last_plans), seeds + 1
            search.count_external(count * chains)
            keys = list(zip(overflow.tolist(), value.tolist(), strict=True))
            better = [chain for chain in range(chains) if keys[chain] < best_keys[chain]]
            best = best.replace_rows(PlanBatch(*best_plans), better)
            for chain in better:
                best_keys[chain] = keys[chain]
                if keys[chain] < self.key:
                    self._report_plan(best, chain)
        return best

    @property
    def memory_margin(self) -> tuple[int, ...]:
        """Bytes of each device by which resident bytes were misjudged, for the period."""
        return tuple(self._memory_margin.tolist())

    def restore(self, key: tuple[float, float], memory_margin: Sequence[int]) -> None:
        """Go on with the best key and the margin of another process."""
        self.key, self._memory_margin = key, np.array(memory_margin, dtype=np.int64)

    @property
    def memory_is_misjudged(self) -> bool:
        """Whether a plan that fits by its resident bytes turned out to be over, for the period."""
        return bool(self._memory_margin.any())

    def sample_moves(
        self, start: PlanBatch, count: int, seed: int, level_ratio: float = 1.0
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Moves of one plan as annealing samples them, to train a scout.

        Returns:
            Moves × features; the relative change of the cost by each move.
        """
        settings = self._settings(MoveShares(), level_ratio)
        return self._kernel.sample_moves(
            self._move_blocks, settings, start.placement, start.priority, count, seed
        )

    def _settings(self, move_shares: MoveShares, level_ratio: float) -> AnnealingSettings:
        problem = self.search.problem
        settings = AnnealingSettings()
        settings.penalty, settings.doublings = _OVERFLOW_PENALTY, 4
        settings.in_order = problem.discipline == "in order"
        settings.period, settings.overlap = problem.objective == "period", problem.overlap
        settings.move_share = [getattr(move_shares, field.name) for field in fields(move_shares)]
        level_shares = [level_ratio**level for level in range(len(self.levels))]
        settings.level_share = [0.0, *level_shares]
        settings.capacity = problem.arrays.capacity.tolist()
        return settings

    def _by_unit(self, device_probs: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Plans × units × devices: the mean over a unit's scheduled ops, zeros without any."""
        if device_probs is None:
            return None
        a = self.search.problem.arrays
        scheduled_ops = np.bincount(a.unit[a.scheduled], minlength=int(a.unit.max()) + 1)
        sums = [
            [
                np.bincount(a.unit[a.scheduled], column[a.scheduled], len(scheduled_ops))
                for column in plan.T
            ]
            for plan in device_probs
        ]
        by_unit = np.array(sums).transpose(0, 2, 1) / np.maximum(scheduled_ops, 1)[:, None]
        return np.ascontiguousarray(by_unit)

    def _report_plan(self, rows: PlanBatch, chain: int) -> None:
        """Report a plan to the search. For the period, only now its whole memory is known."""
        search = self.search
        verdict = search.count_external(0, rows[[chain]])
        if verdict is None:
            return
        self.key = min(self.key, verdict.key(0))
        if search.problem.objective == "period":
            capacity = search.problem.arrays.capacity
            self._memory_margin += np.minimum(verdict.excess[0], capacity // 8)


def _temperature(cooling: Cooling, share: float) -> float:
    if cooling.hot == 0:
        return 0.0
    return float(cooling.hot * (cooling.cold / cooling.hot) ** share)


def _block_arrays(
    a: Arrays, levels: Sequence[NDArray[np.integer]]
) -> tuple[NDArray[np.int32], ...]:
    """The units of each block end to end, and where blocks and levels begin."""
    unit_heads = np.flatnonzero(a.unit_head == np.arange(a.ops))
    block_start, units, level_start = [np.zeros(1, dtype=np.int64)], [], [0]
    for group_of in levels:
        group = group_of[unit_heads]
        size = np.bincount(group)
        # Blocks are sorted by the middle of their units, so that neighbours are near in the graph.
        middle = np.bincount(group, weights=np.arange(len(unit_heads))) / np.maximum(size, 1)
        position = np.argsort(np.argsort(middle, kind="stable"), kind="stable")
        order = np.argsort(position[group], kind="stable")
        units.append(order)
        block_start.append(block_start[-1][-1] + np.cumsum(np.bincount(position[group])))
        level_start.append(level_start[-1] + len(size))
    parts = np.concatenate(block_start), np.concatenate(units), np.array(level_start)
    return tuple(part.astype(np.int32) for part in parts)
