"""Choices: items that each take one of several modes in, seconds that no such choice beats out.

Every mode of an item loads some rows: devices, channels, chains of ops (the seconds they are busy)
and memories (bytes). Bounds by work and by memory are such choices, made as well as can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

Seconds = NDArray[np.float64]

_MOST = 4000  # item × mode pairs given to the linear programme: a tenth of a second


@dataclass(frozen=True, eq=False)
class Choices:
    """Items × modes × rows of loads, and what each row holds.

    Args:
        load: Items × modes × rows; infinite in every row where an item may not take a mode.
        width: Rows: how many seconds a row holds for each second that passes; 0 for memories.
        room: Rows: how much a row holds however little time passes; bytes for memories.
    """

    load: Seconds
    width: Seconds
    room: Seconds

    def bound(self, prices: Seconds) -> float:
        """Seconds that these prices prove.

        Proof. Give every row a price, none below 0, so that the prices of a second in each row,
        times the rows' widths, add up to 1. In seconds T a row holds width × T + room, so the
        loads of all items, weighted by price, are at most T + (room · prices). They are also at
        least the sum over items of the cheapest mode of each. So T is at least that sum less
        room · prices, for any prices whatever: only how near it comes depends on them.

        Rounding: the sum below is of at most items × rows products, each of which and whose
        partial sums are off by a share of an epsilon at most; that much of the sum of their
        absolute values is taken off.
        """
        prices = np.maximum(prices, 0.0)
        scale = float(prices @ self.width)
        if not scale > 0 or not np.isfinite(prices).all():
            return 0.0
        prices = prices / scale
        bills = self.load.dot(prices) if (prices > 0).all() else _bills(self.load, prices)
        cheapest = float(bills.min(axis=1).sum())
        given = float(self.room @ prices)
        terms = self.load.shape[0] * self.load.shape[2] + 2 * self.load.shape[2] + 4
        slack = terms * float(np.finfo(np.float64).eps) * (abs(cheapest) + 2 * abs(given))
        return max(0.0, cheapest - given - slack) if np.isfinite(cheapest) else 0.0

    def best(self) -> tuple[float, Seconds]:
        """The highest bound that the linear programme's prices prove, and these prices.

        The bound is 0 where no choice fits into the memories.
        """
        return max(((self.bound(prices), prices) for prices in self._prices()), key=lambda b: b[0])

    def _prices(self) -> Iterator[Seconds]:
        """Equal prices in time, and the dual values of the relaxed choice.

        The programme sees alike items as one, and where they are too many, similar ones as one of
        their mean: its prices are then a little off, but what they prove is checked on all items.
        """
        yield (self.width > 0) / max(float(self.width.sum()), 1e-300)
        if len(self.width) > 1:
            prices = self._dual()
            if prices is not None:
                prices = np.maximum(prices, 0.0)
                yield prices / max(float(prices @ self.width), 1e-300)

    def _dual(self) -> Seconds | None:
        from scipy.optimize import linprog

        program = self._program(_MOST)
        if program is None:
            return None
        found = linprog(
            program.goal,
            A_ub=program.most,
            b_ub=program.room,
            A_eq=program.equal,
            b_eq=program.count,
            bounds=(0, None),
            method="highs",
        )
        return (
            -found.ineqlin.marginals * program.unit / program.scale if found.status == 0 else None
        )

    def whole(self, single: NDArray[np.bool_], near: float, nodes: int, most: int) -> float:
        """The bound if items that are `single` take one mode each: a programme in whole numbers.

        Args:
            single: Items that cannot be divided.
            near: A bound that is near, for scaling.
            nodes: Of the search tree, at most: a count, so that the bound is always the same.
            most: Pairs of items and modes, alike items counted once, at most; above it 0.

        Proof: `Choices.bound`'s, with fewer choices: so many items of each kind take each mode.
        HiGHS's dual bound is a bound on the programme except for its tolerances: reduced costs are
        taken for right within 1e-7, each of which can lift the bound by that times the range of
        its variable, and branches within 1e-6 of the best are cut off. Time is scaled to about 1,
        and the sum of all these is taken off. (Its tolerance of rows only lowers the bound.)
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        program = self._program(most, exact=True, unit=near)
        if program is None or not near > 0:
            return 0.0
        high = np.append(program.count[program.item], np.inf)
        found = milp(
            program.goal,
            integrality=np.append(single[program.kind][program.item], False),
            bounds=Bounds(0.0, high),
            constraints=[
                LinearConstraint(program.most, -np.inf, program.room),
                LinearConstraint(program.equal, program.count, program.count),
            ],
            options={"node_limit": nodes, "presolve": False},
        )
        if found.mip_dual_bound is None or not np.isfinite(found.mip_dual_bound):
            return 0.0
        slack = 2e-6 + 1e-7 * float(high[:-1].sum() + 10)
        return max(0.0, float(found.mip_dual_bound) - slack) * near

    def _program(self, most: int, exact: bool = False, unit: float = 0.0) -> _Program | None:
        """The relaxed choice, scaled; alike items counted once, None if exact and too many."""
        from scipy.sparse import coo_array

        _, modes, rows = self.load.shape
        may = _may(self.load)
        kind, count, load = _alike(
            np.where(may[..., None], self.load, 0.0), may, most // modes, exact
        )
        may = may[kind]
        if exact and may.sum() > most:
            return None
        # HiGHS has absolute tolerances: every row is scaled so that all items load it with about 1.
        scale = (load.max(axis=1) * count[:, None]).sum(axis=0)
        used = scale > 0
        scale = np.where(used, scale, 1.0)
        item, mode = np.nonzero(may)
        columns = len(item)
        entries = load[item, mode] / scale  # columns × rows
        column, row = np.nonzero(entries)
        time = np.where(used, self.width, 0.0)
        unit = unit or float(scale[time > 0].max(initial=0.0)) or 1.0  # T is counted in these
        upper = coo_array(
            (
                np.concatenate([entries[column, row], -time * unit / scale]),
                (
                    np.concatenate([row, np.arange(rows)]),
                    np.concatenate([column, np.full(rows, columns)]),
                ),
            ),
            shape=(rows, columns + 1),
        )
        equal = coo_array(
            (np.ones(columns), (item, np.arange(columns))), shape=(len(load), columns + 1)
        )
        goal = (np.arange(columns + 1) == columns).astype(np.float64)
        room = self.room / scale
        return _Program(goal, upper.tocsr(), room, equal.tocsr(), count, item, kind, scale, unit)


@dataclass(frozen=True, eq=False)
class _Program:
    """Minimise goal · x, where most · x ≤ room and equal · x = count; x is modes taken, then T."""

    goal: Seconds
    most: Any
    room: Seconds
    equal: Any
    count: Seconds  # kinds of items: how many there are of each
    item: NDArray[np.int64]  # columns: its kind
    kind: NDArray[np.int64]  # kinds: one item of it
    scale: Seconds  # rows: what they were divided by
    unit: float  # seconds in one of T


def _may(load: Seconds) -> NDArray[np.bool_]:
    """Items × modes: whether the item may take the mode."""
    return np.asarray(np.isfinite(load).all(axis=2), dtype=np.bool_)


def _bills(load: Seconds, prices: Seconds) -> Seconds:
    """Items × modes: load · prices, infinite where the mode is forbidden, whatever the price."""
    may = _may(load)
    found: Seconds = np.where(may, np.where(may[..., None], load, 0.0).dot(prices), np.inf)
    return found


def _alike(
    load: Seconds, may: NDArray[np.bool_], most: int, exact: bool = False
) -> tuple[NDArray[np.int64], Seconds, Seconds]:
    """One item of each kind, how many there are of it, and their mean load.

    There are at most `most` kinds, unless it is exact: then all of a kind are alike.
    """
    flat = np.concatenate([load.reshape(len(load), -1), may], axis=1)
    digits = 40.0
    while True:
        key = flat
        if digits < 40.0:
            with np.errstate(divide="ignore"):
                key = np.where(flat > 0, np.round(np.log2(flat) * digits), -1e9)
        _, kind, which = np.unique(key, axis=0, return_index=True, return_inverse=True)
        if exact or len(kind) <= most or digits < 0.01:
            break
        digits = digits / 4 if digits < 40.0 else 16.0
    which = which.ravel()
    count = np.bincount(which).astype(np.float64)
    total = np.zeros((len(kind), load[0].size))
    np.add.at(total, which, load.reshape(len(load), -1))
    mean = (total / count[:, None]).reshape(len(kind), *load.shape[1:])
    return kind, count, mean
