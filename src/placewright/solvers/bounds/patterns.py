"""The pattern bound: column generation over the sets of units that one device can carry.

A *pattern* is a set of units that one device of a group can carry in T seconds, with its
transfers. If every unit has a value, and the best patterns of all devices together are worth less
than all units, no plan takes T seconds. Good values are found by column generation (Gilmore and
Gomory 1961).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.solvers.bounds.aggregates import Aggregates
    from placewright.solvers.bounds.packing import Packing

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]

_MAX_NODES = (
    400  # nodes of the search tree for one best pattern: a count, so that the bound never changes
)
_GAPS = (1e-2, 1e-3, 1e-4)  # between the best pattern found and the best there may be
_ROUNDS = 60  # rounds of new patterns for one T
_PROGRAM_COST = 20_000  # the fixed cost of a program, in the unit of its squared size
_BUDGET_DIVISOR = 3  # one T may take this part of the remaining budget
_SMOOTHING = 0.5  # share of the best values so far in the next values
_MIN_STEP = 1e-4  # the smallest step of T, as a share
_SLACK = 1e-9  # of the value, for rounding


def pattern_bound(
    aggregates: Aggregates, packing: Packing, lower_bound: float, budget: int
) -> float:
    """The largest T tried for which the patterns have too little value, or 0.

    Args:
        packing: The units that must share a device in a plan of T seconds.
        lower_bound: Another bound, where the search starts.
        budget: The limit for the sum of the squared sizes of the programs solved.

    Proof. Let a plan take T seconds or less. The units on each of its devices are a pattern of the
    device's group, as in the proof of `MinimumCuts`: work and transfers within T without overlap;
    else work within T, and the transfers within T on each channel of the device. Units that must be
    together are together. Each unit is in one of these patterns. So for any values of the units,
    all of them are worth at most the sum, over devices, of the best pattern of its group. If that
    sum is less, there is no such plan; nor one of fewer seconds. Memory is not considered.
    """
    if not lower_bound > 0 or (aggregates.groups == 1 and aggregates.device_count[0] == 1):
        return 0.0
    search = _PatternSearch(aggregates, packing, budget)
    best, step, has_failed = lower_bound, 0.01, False
    while search.budget > 0 and step > _MIN_STEP:
        if search.refutes(best * (1 + step)):
            best *= 1 + step
            step *= 1 if has_failed else 2
        else:
            has_failed, step = True, step / 4
    return aggregates.round_down(best) if best > lower_bound else 0.0


@dataclass
class _PatternSearch:
    aggregates: Aggregates
    packing: Packing
    budget: int
    values: Seconds | None = None  # units: the last values that refuted a T
    patterns: list[tuple[int, Ints]] = field(
        default_factory=list
    )  # (group, units) of good patterns

    def refutes(self, seconds: float) -> bool:
        """Whether no plan takes at most `seconds`."""
        aggregates = self.aggregates
        pool = _PatternPool.of(
            aggregates, self.packing.colocated_sets(seconds, aggregates.seconds), seconds
        )
        if not (pool.load <= 1).any(axis=1).all():
            return True  # a unit fits nowhere
        # Patterns known from other T that are still feasible.
        known_patterns = [
            (group_id, pool.feasible_parts(group_id, np.unique(pool.part_of[units])))
            for group_id, units in self.patterns
        ]
        columns = [(group_id, parts) for group_id, parts in known_patterns if len(parts)]
        columns += [
            (group_id, np.array([part])) for part, group_id in np.argwhere(pool.load <= 1).tolist()
        ]
        fastest = aggregates.seconds.min(axis=1)
        values = _normalise(pool.sum_values(fastest if self.values is None else self.values))
        best_values, lowest_worth = values, np.inf
        budget_floor = self.budget - self.budget // _BUDGET_DIVISOR
        for _ in range(_ROUNDS):
            for gap in _GAPS:  # as small as needed to know whether the patterns suffice
                upper_worth = lower_worth = 0.0
                new_patterns = []
                for group, count in enumerate(aggregates.device_count.tolist()):
                    upper_value, parts, cost = pool.best_pattern(group, values, gap)
                    self.budget -= cost
                    upper_worth += count * upper_value
                    lower_worth += count * float(values[parts].sum())
                    new_patterns.append((group, parts))
                if upper_worth < 1 - _SLACK or lower_worth >= 1 or self.budget <= 0:
                    break
            if upper_worth < 1 - _SLACK:
                self.values = values[pool.part_of] / np.bincount(pool.part_of)[pool.part_of]
                return True
            if self.budget <= budget_floor:
                return False
            if upper_worth < lowest_worth:
                best_values, lowest_worth = values, upper_worth
            columns += new_patterns
            self.patterns += [
                (group, np.flatnonzero(np.isin(pool.part_of, parts)))
                for group, parts in new_patterns
            ]
            cover_share, dual_values = _cover_share(
                columns, len(pool.load), aggregates.device_count
            )
            if cover_share >= 1 - 1e-9:
                return False  # a fractional choice of these patterns carries everything
            # Values that jump find few good patterns: stay near the best ones.
            values = _normalise(
                _SMOOTHING * best_values + (1 - _SMOOTHING) * _normalise(dual_values)
            )
        return False


def _normalise(values: Seconds) -> Seconds:
    """Values that add up to 1, as the proof requires; equal ones if none is above 0."""
    values = np.maximum(values, 0.0)
    largest = float(values.max())
    if not largest > 0:
        return np.full(len(values), 1 / len(values))
    values = values / largest  # first, so that the sum of tiny values is exact enough
    normalised: Seconds = values / values.sum()
    return normalised


def _cover_share(
    columns: list[tuple[int, Ints]], units: int, device_count: Ints
) -> tuple[float, Seconds]:
    """The largest share of every unit that the devices carry with these patterns; units' values."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    sizes = [len(parts) for _, parts in columns]
    row = np.concatenate([parts for _, parts in columns])
    column = np.repeat(np.arange(len(columns)), sizes)
    share_column = len(columns)
    cover_rows = coo_array(
        (
            np.concatenate([-np.ones(len(row)), np.ones(units)]),
            (
                np.concatenate([row, np.arange(units)]),
                np.append(column, np.full(units, share_column)),
            ),
        ),
        shape=(units, share_column + 1),
    )
    groups = np.array([group for group, _ in columns])
    use_rows = coo_array(
        (np.ones(share_column), (groups, np.arange(share_column))),
        shape=(len(device_count), share_column + 1),
    )
    from scipy.sparse import vstack

    solution = linprog(
        -(np.arange(share_column + 1) == share_column).astype(np.float64),
        A_ub=vstack([cover_rows, use_rows]).tocsr(),
        b_ub=np.concatenate([np.zeros(units), device_count]),
        bounds=(0, None),
        method="highs",
    )
    if solution.status != 0:
        return np.inf, np.zeros(units)
    return -float(solution.fun), -solution.ineqlin.marginals[:units]


@dataclass(frozen=True, eq=False)
class _PatternPool:
    """Parts (units that must be together) and their tensors, in shares of T."""

    aggregates: Aggregates
    part_of: Ints  # units: the part of each
    load: Seconds  # parts × groups
    source: Ints  # tensors: the part that makes them
    reader: Ints  # pairs: a part that reads
    read_tensor: Ints  # pairs: the tensor
    send_share: Seconds  # tensors × groups: the smallest share to send them
    receive_share: Seconds  # tensors × groups: or to receive them

    @classmethod
    def of(cls, aggregates: Aggregates, part_of: Ints, seconds: float) -> _PatternPool:
        load = np.zeros((int(part_of.max()) + 1, aggregates.groups))
        np.add.at(load, part_of, aggregates.seconds)
        source, reader = part_of[aggregates.pair_source], part_of[aggregates.pair_unit]
        is_sent = source != reader
        tensors, first_pair, tensor_of = np.unique(
            aggregates.pair_tensor[is_sent], return_index=True, return_inverse=True
        )
        directions = [
            [
                aggregates.min_send_seconds(group, leaving)[tensors]
                for group in range(aggregates.groups)
            ]
            for leaving in (True, False)
        ]
        send_share, receive_share = (
            np.stack(seconds_by_group, axis=1) / seconds for seconds_by_group in directions
        )
        # Tensors of one part that the same parts read are one tensor.
        pairs = np.unique(np.stack([tensor_of, reader[is_sent]], axis=1), axis=0)
        producers = source[is_sent][first_pair]
        keys: dict[tuple[int, ...], int] = {}
        rows = np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1)
        merged_tensor = np.array(
            [
                keys.setdefault((int(producers[index]), *reader_row.tolist()), len(keys))
                for index, reader_row in enumerate(rows if len(tensors) else [])
            ],
            dtype=np.int64,
        )
        total = np.zeros((2, len(keys), aggregates.groups))
        np.add.at(total[0], merged_tensor, send_share)
        np.add.at(total[1], merged_tensor, receive_share)
        merged_keys = list(keys)
        return cls(
            aggregates,
            part_of,
            load / seconds,
            np.array([merged_key[0] for merged_key in merged_keys], dtype=np.int64),
            np.array(
                [reader for merged_key in merged_keys for reader in merged_key[1:]], dtype=np.int64
            ),
            np.repeat(
                np.arange(len(merged_keys)), [len(merged_key) - 1 for merged_key in merged_keys]
            ),
            total[0],
            total[1],
        )

    def sum_values(self, values: Seconds) -> Seconds:
        """Parts: the values of their units."""
        return np.bincount(self.part_of, weights=values, minlength=len(self.load)).astype(
            np.float64
        )

    def feasible_parts(self, group: int, parts: Ints) -> Ints:
        """These parts if they are a pattern of the group, none if they are not."""
        is_inside = np.zeros(len(self.load), dtype=bool)
        is_inside[parts] = True
        is_read_outside = np.zeros(len(self.source), dtype=bool)
        np.logical_or.at(is_read_outside, self.read_tensor, ~is_inside[self.reader])
        is_read_inside = np.zeros(len(self.source), dtype=bool)
        np.logical_or.at(is_read_inside, self.read_tensor, is_inside[self.reader])
        send_seconds = float(self.send_share[is_read_outside & is_inside[self.source], group].sum())
        receive_seconds = float(
            self.receive_share[is_read_inside & ~is_inside[self.source], group].sum()
        )
        work = float(self.load[parts, group].sum())
        transfer_cost, channels = self._transfer_cost(group)
        fits_time = (
            work + transfer_cost * (send_seconds + receive_seconds) <= 1
            if transfer_cost
            else work <= 1
        )
        return (
            parts
            if fits_time and (channels == 0 or send_seconds + receive_seconds <= channels)
            else parts[:0]
        )

    def _transfer_cost(self, group: int) -> tuple[float, int]:
        """Whether transfers take the device's time, and else how many channels share them."""
        if self.aggregates.blocking_transfers:
            return (0.0 if self.aggregates.is_host[group] else 1.0), 0
        return 0.0, self.aggregates.max_channels(group)

    def best_pattern(self, group: int, values: Seconds, max_gap: float) -> tuple[float, Ints, int]:
        """An upper bound on the value of the group's patterns; a good pattern; its cost to find.

        A part is in or out of the pattern; a tensor is sent if its producer is in and a reader is
        out, received if a reader is in and the producer out; the sums must be within T. As in
        `Relaxation.integer_bound`, HiGHS's dual bound may be off by its tolerances: 1e-6 for
        branches cut off, and 1e-7 for each reduced cost times the range of its variable, which is
        1. Values add up to 1. Twice this is added.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array, vstack

        is_allowed = self.load[:, group] <= 1
        transfer_cost, channels = self._transfer_cost(group)
        if not (transfer_cost or channels):
            return self._knapsack(group, values, is_allowed)
        units, tensors = len(self.load), len(self.source)
        size = units + 2 * tensors
        pairs = len(self.read_tensor)
        row, ones = np.arange(pairs), np.ones(pairs)
        source = self.source[self.read_tensor]
        send_rows = coo_array(
            (
                np.concatenate([ones, -ones, ones]),
                (np.tile(row, 3), np.concatenate([units + self.read_tensor, source, self.reader])),
            ),
            shape=(pairs, size),
        )
        receive_rows = coo_array(
            (
                np.concatenate([ones, ones, -ones]),
                (
                    np.tile(row, 3),
                    np.concatenate([units + tensors + self.read_tensor, source, self.reader]),
                ),
            ),
            shape=(pairs, size),
        )
        work = np.zeros(size)
        work[:units] = np.where(is_allowed, self.load[:, group], 0.0)
        transfer_load = np.concatenate(
            [np.zeros(units), self.send_share[:, group], self.receive_share[:, group]]
        )
        load_rows = [work + transfer_load] if transfer_cost else [work, transfer_load / channels]
        solution = milp(
            np.concatenate([-values, np.zeros(2 * tensors)]),
            integrality=np.concatenate([np.ones(units), np.zeros(2 * tensors)]),
            bounds=Bounds(
                0.0, np.concatenate([is_allowed, np.ones(2 * tensors)]).astype(np.float64)
            ),
            constraints=[
                LinearConstraint(vstack([send_rows, receive_rows]).tocsr(), 0, np.inf),
                *(LinearConstraint(load_row[None], -np.inf, 1) for load_row in load_rows),
            ],
            options={"node_limit": _MAX_NODES, "mip_rel_gap": max_gap, "presolve": False},
        )
        cost = _PROGRAM_COST + size * (size + 3 * int(solution.mip_node_count or 0))
        parts = (
            np.flatnonzero(solution.x[:units] > 0.5) if solution.x is not None else np.zeros(0, int)
        )
        upper_value = 1.0 if solution.mip_dual_bound is None else -float(solution.mip_dual_bound)
        return min(1.0, upper_value + 2e-6 + 2e-7 * size), self.feasible_parts(group, parts), cost

    def _knapsack(self, group: int, values: Seconds, is_allowed: Flags) -> tuple[float, Ints, int]:
        """The best parts, the last of them cut, that one device carries without transfers."""
        load = np.where(is_allowed, self.load[:, group], np.inf)
        order = np.flatnonzero(is_allowed & (values > 0))
        order = order[np.argsort(-values[order] / np.maximum(load[order], 1e-300), kind="stable")]
        load_before = np.cumsum(load[order]) - load[order]
        share = np.clip((1 - load_before) / np.maximum(load[order], 1e-300), 0.0, 1.0)
        complete = order[np.cumsum(load[order]) <= 1]
        return float((values[order] * share).sum()) * (1 + 1e-9), complete, len(values)
