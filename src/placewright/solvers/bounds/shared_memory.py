"""The shared-memory bound: calls of a workload that have one placement of weights in one memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placewright.solvers.bounds.aggregates import Aggregates
from placewright.solvers.bounds.basic import critical_path_ops
from placewright.solvers.bounds.memory import MemoryItems, memory_relaxation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.problem import Problem
    from placewright.solvers.bounds.relaxation import Relaxation

Seconds = NDArray[np.float64]

_MAX_COLUMNS = 20_000  # of the linear program, above which there is no bound: a few seconds


def shared_memory_bound(
    problems: Sequence[Problem], counts: Sequence[float], weights: Sequence[str]
) -> float:
    """The least weighted sum of the calls' times if a weight is in one group in all calls.

    Args:
        problems: The calls, each with all weights of the workload.
        counts: How often each call is made.
        weights: Names of the weights and states that the calls share.

    Proof. Take a plan that fits in every call. By the proof of `memory_bound` each call c is a
    choice of modes for its items, in time T_c: an item takes the mode (group of its ops, group of
    its weights), or several in proportion to its weights' bytes. Give the rows of each call prices,
    none below 0, so that the prices of a second in each row of call c, times the rows' widths, sum
    to its count. As in `Relaxation.bound`, count_c × T_c is at least the cost of the modes of its
    items, less (fixed capacity · prices) of c. Add this up over the calls. Items of different calls
    that have the same weights have the same shares of them in each group g, as a weight has one
    device in all calls. So the cost of these items together is a mean, weighted by these shares, of
    what they cost if all these weights are in g, each with the cheapest group for its ops; and so
    no less than the least of these over g. Any other item costs at least its cheapest mode.

    Prices come from the linear program of these choices; the bound is recomputed from them, and
    rounded down as there.
    """
    aggregates = [Aggregates.of(problem) for problem in problems]
    first = aggregates[0]
    if any(not np.array_equal(each.group_of, first.group_of) for each in aggregates):
        return 0.0
    items = [MemoryItems.of(each) for each in aggregates]
    relaxations = [
        memory_relaxation(each, own, [critical_path_ops(each.problem)])
        for each, own in zip(aggregates, items, strict=True)
    ]
    if any(relaxation is None for relaxation in relaxations):
        return 0.0
    choice = _SharedChoice(
        [relaxation for relaxation in relaxations if relaxation is not None],
        np.asarray(counts, dtype=np.float64),
        _shared_items(aggregates, items, weights),
        first.groups,
    )
    if choice.columns > _MAX_COLUMNS:
        return 0.0
    prices = choice.dual_prices()
    if prices is None:
        return 0.0
    return min(each.round_down(choice.bound(prices)) for each in aggregates)


def _shared_items(
    aggregates: Sequence[Aggregates], items: Sequence[MemoryItems], weights: Sequence[str]
) -> list[tuple[int, ...]]:
    """For each set of weights that all calls have as an item: this item in each call."""
    names = set(weights)
    by_weights: list[dict[frozenset[str], int]] = []
    for each, own in zip(aggregates, items, strict=True):
        graph, unit = each.problem.graph, each.problem.arrays.unit
        item_of_unit = {int(head): at for at, head in enumerate(own.unit)}
        members: dict[int, set[str]] = {}
        for position, op in enumerate(graph.ops):
            if op.name not in names:
                continue
            owner = int(own.owner[unit[position]])
            if owner >= 0 and own.weight_bytes[item_of_unit[owner]] > 0:
                members.setdefault(item_of_unit[owner], set()).add(op.name)
            elif int(unit[position]) in item_of_unit:
                at = item_of_unit[int(unit[position])]
                if own.weight_bytes[at] == 0:  # nothing but what is on the ops' device
                    members.setdefault(at, set()).add(op.name)
        by_weights.append({frozenset(each_set): at for at, each_set in members.items()})
    return [
        tuple(own[key] for own in by_weights)
        for key in by_weights[0]
        if all(key in own for own in by_weights)
    ]


@dataclass(frozen=True, eq=False)
class _SharedChoice:
    """The modes of all calls' items, some of which agree on the group of their weights."""

    relaxations: Sequence[Relaxation]
    counts: Seconds
    shared: Sequence[tuple[int, ...]]  # the item in each call
    groups: int

    @property
    def columns(self) -> int:
        modes = sum(int(each.load.shape[0]) * int(each.load.shape[1]) for each in self.relaxations)
        return modes + len(self.shared) * self.groups

    def bound(self, prices: Sequence[Seconds]) -> float:
        """Seconds that these prices, one array for each call, prove."""
        total, magnitude, terms = 0.0, 0.0, 0
        by_group: list[Seconds] = []
        for at, (relaxation, price) in enumerate(zip(self.relaxations, prices, strict=True)):
            price = np.maximum(price, 0.0)
            scale = float(price @ relaxation.width)
            if not scale > 0 or not np.isfinite(price).all():
                return 0.0
            price = price * (float(self.counts[at]) / scale)
            load = relaxation.load
            is_allowed = np.asarray(np.isfinite(load).all(axis=2))
            cost = np.where(is_allowed, np.where(is_allowed[..., None], load, 0.0) @ price, np.inf)
            # Modes are numbered by the ops' group, then by the weights' group.
            group_cost = cost.reshape(len(cost), self.groups, self.groups).min(axis=1)
            is_free = np.ones(len(cost), dtype=bool)
            is_free[[item[at] for item in self.shared]] = False
            free = float(group_cost[is_free].min(axis=1).sum()) if is_free.any() else 0.0
            fixed = float(relaxation.fixed_capacity @ price)
            total += free - fixed
            magnitude += abs(free) + 2 * abs(fixed)
            terms += load.shape[0] * load.shape[2] + 2 * load.shape[2] + 4
            by_group.append(group_cost[[item[at] for item in self.shared]])
        together = float(np.sum(by_group, axis=0).min(axis=1).sum()) if self.shared else 0.0
        if not (np.isfinite(total) and np.isfinite(together)):
            return 0.0
        terms += len(self.shared) * len(self.relaxations)
        slack = terms * float(np.finfo(np.float64).eps) * (magnitude + abs(together))
        return max(0.0, total + together - slack)

    def dual_prices(self) -> list[Seconds] | None:
        """Prices of the rows of each call, from the linear program of the relaxed choice."""
        from scipy.optimize import linprog

        upper, upper_limit, scales, equal, equal_limit, objective = self._linear_program()
        solution = linprog(
            objective,
            A_ub=upper,
            b_ub=upper_limit,
            A_eq=equal,
            b_eq=equal_limit,
            bounds=(0, None),
            method="highs",
        )
        if solution.status != 0:
            return None
        prices = -solution.ineqlin.marginals / scales
        ends = np.cumsum([len(each.width) for each in self.relaxations])
        return np.split(prices, ends[:-1])

    def _linear_program(self) -> tuple[Any, ...]:
        """Minimise the weighted sum of times; columns are modes, shared groups, then times."""
        from scipy.sparse import coo_array

        upper: list[tuple[Any, Any, Any]] = []  # rows, columns, values
        equal: list[tuple[Any, Any, Any]] = []
        limits, scales, sums = [], [], []
        column, row, equation = 0, 0, 0
        mode_columns: list[dict[tuple[int, int], int]] = []
        for relaxation in self.relaxations:
            load = relaxation.load
            items, modes = np.nonzero(np.isfinite(load).all(axis=2))
            numbers = column + np.arange(len(items))
            mode_columns.append(
                {
                    (int(item), int(mode)): int(number)
                    for item, mode, number in zip(items, modes, numbers, strict=True)
                }
            )
            entries = load[items, modes]
            scale = np.where(entries.any(axis=0), entries.max(axis=0, initial=0.0), 1.0)
            scale = np.where(scale > 0, scale, 1.0)
            entry, of = np.nonzero(entries)
            upper.append((row + of, numbers[entry], (entries / scale)[entry, of]))
            equal.append((equation + items, numbers, np.ones(len(items))))
            limits.append(relaxation.fixed_capacity / scale)
            scales.append(scale)
            sums.append(np.ones(len(load)))
            column, equation = column + len(items), equation + len(load)
            row += len(relaxation.width)
        shared_start = column
        column += len(self.shared) * self.groups
        for number, item in enumerate(self.shared):
            for at, own in enumerate(item):
                for group in range(self.groups):
                    numbers_in = [
                        mode_columns[at][own, ops_group * self.groups + group]
                        for ops_group in range(self.groups)
                        if (own, ops_group * self.groups + group) in mode_columns[at]
                    ]
                    columns = [*numbers_in, shared_start + number * self.groups + group]
                    values = [1.0] * len(numbers_in) + [-1.0]
                    equal.append(([equation] * len(columns), columns, values))
                    sums.append(np.zeros(1))
                    equation += 1
        row = 0
        for at, relaxation in enumerate(self.relaxations):
            rows = row + np.arange(len(relaxation.width))
            times = np.full(len(rows), column + at)
            upper.append((rows, times, -relaxation.width / scales[at]))
            row += len(rows)
        total_columns = column + len(self.relaxations)
        objective = np.zeros(total_columns)
        objective[column:] = self.counts

        def matrix(parts: list[tuple[Any, Any, Any]], rows: int) -> Any:
            joined = [np.concatenate([np.asarray(part[at]) for part in parts]) for at in range(3)]
            return coo_array(
                (joined[2], (joined[0], joined[1])), shape=(rows, total_columns)
            ).tocsr()

        return (
            matrix(upper, row),
            np.concatenate(limits),
            np.concatenate(scales),
            matrix(equal, equation),
            np.concatenate(sums),
            objective,
        )
