"""Relaxation: items that each take one of several modes, and a lower bound for all choices.

Every mode of an item loads some rows: devices, channels, chains of ops (the seconds they are busy)
and memories (bytes). The bounds by work and by memory are optimal choices of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

Seconds = NDArray[np.float64]

_MAX_PAIRS = 4000  # item × mode pairs of the linear program: a tenth of a second


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Items × modes × rows of loads, and the capacity of each row.

    Args:
        load: Items × modes × rows; infinite in every row where an item may not take a mode.
        width: Rows: capacity per second of the step; 0 for memories.
        fixed_capacity: Rows: capacity that does not depend on time; bytes for memories.
    """

    load: Seconds
    width: Seconds
    fixed_capacity: Seconds

    def bound(self, prices: Seconds) -> float:
        """Seconds that these prices prove.

        Proof. Give every row a price, none below 0, so that the prices of a second in each row,
        times the rows' widths, sum to 1. In seconds T a row has the capacity width × T + fixed, so
        the loads of all items, weighted by price, are at most T + (fixed · prices). They are also
        at least the sum over items of the cheapest mode of each. So T is at least that sum less
        fixed · prices, for any prices; only the quality of the bound depends on them.

        Rounding: the sum below is of at most items × rows products, each of which and whose
        partial sums are off by a share of an epsilon at most; that much of the sum of their
        absolute values is taken off.
        """
        prices = np.maximum(prices, 0.0)
        scale = float(prices @ self.width)
        if not scale > 0 or not np.isfinite(prices).all():
            return 0.0
        prices = prices / scale
        mode_costs = self.load.dot(prices) if (prices > 0).all() else _mode_costs(self.load, prices)
        cheapest = float(mode_costs.min(axis=1).sum())
        fixed = float(self.fixed_capacity @ prices)
        term_count = self.load.shape[0] * self.load.shape[2] + 2 * self.load.shape[2] + 4
        slack = term_count * float(np.finfo(np.float64).eps) * (abs(cheapest) + 2 * abs(fixed))
        return max(0.0, cheapest - fixed - slack) if np.isfinite(cheapest) else 0.0

    def best_bound(self) -> tuple[float, Seconds]:
        """The highest bound that the linear program's prices prove, and these prices.

        The bound is 0 where no choice fits into the memories.
        """
        return max(
            ((self.bound(prices), prices) for prices in self._candidate_prices()),
            key=lambda candidate: candidate[0],
        )

    def _candidate_prices(self) -> Iterator[Seconds]:
        """Equal prices in time, and the dual values of the relaxed choice.

        The program merges equal items, and where there are too many, similar ones into their mean:
        its prices are then a little off, but the bound is checked on all items.
        """
        yield (self.width > 0) / max(float(self.width.sum()), 1e-300)
        if len(self.width) > 1:
            prices = self._dual_prices()
            if prices is not None:
                prices = np.maximum(prices, 0.0)
                yield prices / max(float(prices @ self.width), 1e-300)

    def _dual_prices(self) -> Seconds | None:
        from scipy.optimize import linprog

        program = self._linear_program(_MAX_PAIRS)
        if program is None:
            return None
        solution = linprog(
            program.objective,
            A_ub=program.upper_matrix,
            b_ub=program.upper_limit,
            A_eq=program.equal_matrix,
            b_eq=program.kind_count,
            bounds=(0, None),
            method="highs",
        )
        return (
            -solution.ineqlin.marginals * program.time_unit / program.row_scale
            if solution.status == 0
            else None
        )

    def integer_bound(
        self, is_indivisible: NDArray[np.bool_], estimate: float, max_nodes: int, max_pairs: int
    ) -> float:
        """The bound if indivisible items take one mode each: an integer program.

        Args:
            is_indivisible: Items that cannot be divided.
            estimate: A bound that is near, for scaling.
            max_nodes: The limit of the search tree: a count, so that the bound is reproducible.
            max_pairs: The limit for pairs of items and modes, equal items counted once; above it
                the bound is 0.

        Proof: that of `bound`, with fewer choices: a whole number of items of each kind takes each
        mode. HiGHS's dual bound is a bound on the program except for its tolerances: reduced costs
        are accepted within 1e-7, each of which can lift the bound by that times the range of its
        variable, and branches within 1e-6 of the best are cut off. Time is scaled to about 1, and
        the sum of all these is taken off. (Its tolerance of rows only lowers the bound.)
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        program = self._linear_program(max_pairs, exact=True, time_unit=estimate)
        if program is None or not estimate > 0:
            return 0.0
        upper_bounds = np.append(program.kind_count[program.column_kind], np.inf)
        solution = milp(
            program.objective,
            integrality=np.append(is_indivisible[program.sample_item][program.column_kind], False),
            bounds=Bounds(0.0, upper_bounds),
            constraints=[
                LinearConstraint(program.upper_matrix, -np.inf, program.upper_limit),
                LinearConstraint(program.equal_matrix, program.kind_count, program.kind_count),
            ],
            options={"node_limit": max_nodes, "presolve": False},
        )
        if solution.mip_dual_bound is None or not np.isfinite(solution.mip_dual_bound):
            return 0.0
        slack = 2e-6 + 1e-7 * float(upper_bounds[:-1].sum() + 10)
        return max(0.0, float(solution.mip_dual_bound) - slack) * estimate

    def _linear_program(
        self, max_pairs: int, exact: bool = False, time_unit: float = 0.0
    ) -> _LinearProgram | None:
        """The relaxed choice, scaled; equal items counted once, None if exact and too many."""
        from scipy.sparse import coo_array

        _, modes, rows = self.load.shape
        is_allowed = _allowed_modes(self.load)
        sample_item, count, load = _merge_similar(
            np.where(is_allowed[..., None], self.load, 0.0), is_allowed, max_pairs // modes, exact
        )
        is_allowed = is_allowed[sample_item]
        if exact and is_allowed.sum() > max_pairs:
            return None
        # HiGHS has absolute tolerances: every row is scaled so that all items load it with about 1.
        row_scale = (load.max(axis=1) * count[:, None]).sum(axis=0)
        is_loaded = row_scale > 0
        row_scale = np.where(is_loaded, row_scale, 1.0)
        column_kind, mode = np.nonzero(is_allowed)
        column_count = len(column_kind)
        entries = load[column_kind, mode] / row_scale  # columns × rows
        column, row = np.nonzero(entries)
        row_width = np.where(is_loaded, self.width, 0.0)
        time_unit = (
            time_unit or float(row_scale[row_width > 0].max(initial=0.0)) or 1.0
        )  # T is counted in these
        upper_matrix = coo_array(
            (
                np.concatenate([entries[column, row], -row_width * time_unit / row_scale]),
                (
                    np.concatenate([row, np.arange(rows)]),
                    np.concatenate([column, np.full(rows, column_count)]),
                ),
            ),
            shape=(rows, column_count + 1),
        )
        equal_matrix = coo_array(
            (np.ones(column_count), (column_kind, np.arange(column_count))),
            shape=(len(load), column_count + 1),
        )
        objective = (np.arange(column_count + 1) == column_count).astype(np.float64)
        upper_limit = self.fixed_capacity / row_scale
        return _LinearProgram(
            objective,
            upper_matrix.tocsr(),
            upper_limit,
            equal_matrix.tocsr(),
            count,
            column_kind,
            sample_item,
            row_scale,
            time_unit,
        )


@dataclass(frozen=True, eq=False)
class _LinearProgram:
    """Minimise goal · x, where upper · x ≤ capacity and equal · x = count; x is modes, then T."""

    objective: Seconds
    upper_matrix: Any
    upper_limit: Seconds
    equal_matrix: Any
    kind_count: Seconds  # kinds of items: the number of each
    column_kind: NDArray[np.int64]  # columns: its kind
    sample_item: NDArray[np.int64]  # kinds: one item of it
    row_scale: Seconds  # rows: their divisor
    time_unit: float  # seconds in one of T


def _allowed_modes(load: Seconds) -> NDArray[np.bool_]:
    """Items × modes: whether the item may take the mode."""
    return np.asarray(np.isfinite(load).all(axis=2), dtype=np.bool_)


def _mode_costs(load: Seconds, prices: Seconds) -> Seconds:
    """Items × modes: load · prices, infinite where the mode is forbidden, whatever the price."""
    is_allowed = _allowed_modes(load)
    costs: Seconds = np.where(
        is_allowed, np.where(is_allowed[..., None], load, 0.0).dot(prices), np.inf
    )
    return costs


def _merge_similar(
    load: Seconds, is_allowed: NDArray[np.bool_], max_kinds: int, exact: bool = False
) -> tuple[NDArray[np.int64], Seconds, Seconds]:
    """One item of each kind, the number of them, and their mean load.

    There are at most `max_kinds` kinds, unless it is exact: then all items of a kind are equal.
    """
    flat = np.concatenate([load.reshape(len(load), -1), is_allowed], axis=1)
    resolution = 40.0
    while True:
        key = flat
        if resolution < 40.0:
            with np.errstate(divide="ignore"):
                key = np.where(flat > 0, np.round(np.log2(flat) * resolution), -1e9)
        sample_item, kind_of = _distinct_rows(key)
        if exact or len(sample_item) <= max_kinds or resolution < 0.01:
            break
        resolution = resolution / 4 if resolution < 40.0 else 16.0
    count = np.bincount(kind_of).astype(np.float64)
    total = np.zeros((len(sample_item), load[0].size))
    np.add.at(total, kind_of, load.reshape(len(load), -1))
    mean = (total / count[:, None]).reshape(len(sample_item), *load.shape[1:])
    return sample_item, count, mean


def _distinct_rows(rows: Seconds) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first of each kind of equal rows, kinds in the order of the rows' numbers; each row's.

    This is `np.unique(rows, axis=0)`, which compares whole rows and takes ten times as long.
    """
    kind = np.zeros(len(rows), dtype=np.int64)
    kinds = 1
    for column in rows.T:
        values, value = np.unique(column, return_inverse=True)
        if len(values) > 1:
            distinct, kind = np.unique(kind * len(values) + value, return_inverse=True)
            kinds = len(distinct)
        if kinds == len(rows):
            break
    return np.unique(kind, return_index=True)[1], kind
