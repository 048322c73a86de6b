"""The memory bound: weights beyond the fast devices' memory are streamed or computed elsewhere.

Every bound here holds for plans that fit only: plans are compared by overflow first, and a plan
that overflows may be faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.disjoint_sets import DisjointSets
from placewright.solvers.bounds.relaxation import Relaxation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placewright.solvers.bounds.aggregates import Aggregates

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]

_MAX_LOADS = 20_000_000  # entries in the loads of all modes, above which there is no bound
_ANY_SIZE = (
    (0, np.inf),
)  # sizes of the largest weight that is sent, if they are not distinguished
_SIMILAR_SHARE = 16  # an op's weights above 1/16 of its largest one are treated as one


def memory_bound(
    aggregates: Aggregates,
    chains: Sequence[Ints],
    cases: int = 3,
    max_nodes: int = 20,
    tries: int = 4,
) -> float:
    """The shortest time in which weights are placed, and ops run with them or wait for them.

    Args:
        chains: Ops that follow one another, for the step time.
        cases: The maximum number of sizes of the largest streamed weight that are distinguished.
        max_nodes: The limit of the search tree for integer choices.
        tries: The number of times T that are tried for the memory of weights in transfer.

    Proof, for plans that fit. Let an *item* be a unit of ops with weights that it reads (each
    weight goes to one reader only; leaving out its other readers makes the bound no higher). In a
    plan an item takes a *mode*: the group of its device, and a group where its weights are; if they
    are in several, it takes each mode in proportion to bytes. A mode loads

    - the memory of the groups, with the bytes that are there. A group holds at most as many bytes
      as its devices have together (rule 8);
    - the time of the ops' group, as in `work`;
    - for weights in another group, the time to send them (rules 4 to 6: once, or once
      for each reader): of the channels between the two groups, which serve one transfer at a time
      (rule 5), or, without overlap, of the two devices unless they are hosts. Several weights taken
      as one count with the fewest seconds per byte of any of them;
    - for the step time, a second of each chain for every second of its ops, as these follow one
      another; and of an issuer, the launch overhead of each op that it starts (rule 1), which are
      at least this far apart; only the last may outlast the step.

    So each plan is a choice of modes, and `Relaxation.bound` proves the rest.

    *Cases.* A device to which a weight is sent must hold it besides its resident bytes, as staging
    or as a copy (rules 6 and 8). Let M be the size of the largest weight that is sent to the only
    device of a group. Then nothing larger is sent there, and M bytes less are left for residents.
    We take M from intervals, with the smallest of each, and the minimum bound over all intervals.

    *In transfer.* Let a plan's step take T or less. Over the step a device has capacity × T of
    bytes and time. Resident bytes take their size × T; a tensor of a weight that is sent there
    takes its size, which is less than what is resident if there is optimizer state, for as long as
    its own transfer lasts and the op that reads it runs (rules 6 and 8), in the staging buffer or
    besides it. Several weights taken as one count with the least of any of them per resident byte.
    Divided by T, all this loads the memory too. If T' is then a bound for
    plans of T or less, the smaller of T and T' is a bound for all. We find the best T by bisection.

    *Integers.* An item with one weight takes one mode only: see `Relaxation.integer_bound`.
    """
    items = MemoryItems.of(aggregates)
    rows = 3 * aggregates.groups + aggregates.groups**2 + len(chains)
    if (
        not _overfull_groups(aggregates).any()
        or len(items.unit) * aggregates.groups**2 * rows > _MAX_LOADS
    ):
        return 0.0
    program = _MemoryProgram(aggregates, items, chains)
    best = program.bound(np.inf, cases, max_nodes)
    low, high = best, 2 * best
    for _ in range(tries if aggregates.problem.objective == "step" and best > 0 else 0):
        middle = (low + high) / 2
        seconds = program.bound(middle, cases, max_nodes)
        best = max(best, min(middle, seconds))
        low, high = (middle, high) if seconds >= middle else (low, middle)
    return aggregates.round_down(best)


def memory_relaxation(
    aggregates: Aggregates, items: MemoryItems, chains: Sequence[Ints]
) -> Relaxation | None:
    """The choice of modes of `memory_bound` for plans of any time; None if it is too large."""
    rows = 3 * aggregates.groups + aggregates.groups**2 + len(chains)
    if len(items.unit) * aggregates.groups**2 * rows > _MAX_LOADS:
        return None
    return _MemoryProgram(aggregates, items, chains).relaxation(np.inf, -1, 0, np.inf)


def _overfull_groups(aggregates: Aggregates) -> NDArray[np.bool_]:
    """Groups that cannot hold all bytes that may be there."""
    capacity = aggregates.problem.arrays.capacity[aggregates.first_device] * aggregates.device_count
    is_allowed = np.isfinite(aggregates.seconds)
    return np.asarray(np.where(is_allowed, aggregates.resident[:, None], 0).sum(axis=0) > capacity)


def _size_intervals(sizes: Ints, cases: int) -> Iterator[tuple[int, float]]:
    """(smallest, above all) of the sizes of the largest weight that is sent; none is the first."""
    distinct = np.unique(sizes[sizes > 0])
    yield 0, float(distinct[0]) if len(distinct) else np.inf
    if len(distinct):
        limits = distinct[np.unique(np.linspace(0, len(distinct), cases + 1).astype(int)[:-1])]
        yield from zip(limits.tolist(), [*map(float, limits[1:]), np.inf], strict=True)


@dataclass(frozen=True, eq=False)
class MemoryItems:
    """Units, some with weights of other units that they read."""

    unit: Ints  # items: the unit whose ops they are
    fixed_bytes: Ints  # items: bytes on the ops' device
    weight_bytes: Ints  # items: bytes of weights that may be elsewhere
    seconds_per_byte: Seconds  # items × rows of transfer: fewest seconds per byte of these weights
    sent_per_byte: Seconds  # items: fewest bytes sent, per byte of these weights
    held_per_byte: Seconds  # items × rows: fewest bytes × seconds in transfer, per byte of them
    min_weight_bytes: Ints  # items: the smallest of these weights, as sent
    read_seconds: Seconds  # items × groups: the shortest op that reads one of these weights
    is_indivisible: NDArray[np.bool_]  # items: no more than one such weight, so one mode
    owner: Ints  # units: the unit of the item that they are weights of, or -1

    @classmethod
    def of(cls, aggregates: Aggregates) -> MemoryItems:
        a = aggregates.problem.arrays
        units, rows = aggregates.units, len(aggregates.transfer)
        has_ops = np.zeros(units, dtype=bool)
        has_ops[a.unit[a.scheduled]] = True
        is_free = ~has_ops & np.isfinite(aggregates.seconds).all(axis=1)
        is_weight = np.ones(units, dtype=bool)
        np.logical_and.at(is_weight, a.unit, a.is_weight)
        reader_unit = np.zeros(units, dtype=np.int64)
        reader_unit[a.unit] = a.unit[a.leader]
        # The reader's tensors of each weight's unit: seconds by row, and the smallest tensor.
        is_read = aggregates.pair_unit == reader_unit[aggregates.pair_source]
        source, tensor = aggregates.pair_source[is_read], aggregates.pair_tensor[is_read]
        seconds, held = np.zeros((units, rows)), np.zeros((units, rows))
        np.add.at(seconds, source, aggregates.transfer[:, tensor].T)
        np.add.at(held, source, (aggregates.transfer[:, tensor] * a.sizes[tensor]).T)
        sent_bytes = np.bincount(source, a.sizes[tensor], units).astype(np.float64)
        min_bytes = np.full(units, np.iinfo(np.int64).max)
        np.minimum.at(min_bytes, source, a.sizes[tensor])
        movable = (
            is_free & is_weight & (aggregates.resident > 0) & (reader_unit != np.arange(units))
        )
        movable[np.setdiff1d(np.arange(units), source)] = False
        largest = np.zeros(units, dtype=np.int64)
        np.maximum.at(largest, reader_unit[movable], aggregates.resident[movable])
        movable &= aggregates.resident * _SIMILAR_SHARE >= largest[reader_unit]
        movable_units = np.flatnonzero(movable)
        weight_bytes = np.zeros(units, dtype=np.int64)
        np.add.at(weight_bytes, reader_unit[movable_units], aggregates.resident[movable_units])

        def least_per_byte(amount: Seconds) -> Seconds:
            """Readers × columns: the least amount per resident byte of any of their weights."""
            least = np.full((units, amount.shape[1]), np.inf)
            per_byte = amount[movable_units] / aggregates.resident[movable_units, None]
            np.minimum.at(least, reader_unit[movable_units], per_byte)
            return np.where(np.isfinite(least), least, 0.0)

        min_weight_bytes = np.full(units, np.iinfo(np.int64).max)
        np.minimum.at(min_weight_bytes, reader_unit[movable_units], min_bytes[movable_units])
        read_seconds = _read_seconds(aggregates, source, tensor, reader_unit)
        items = np.flatnonzero(~movable & (has_ops | (aggregates.resident > 0)))
        return cls(
            items,
            aggregates.resident[items],
            weight_bytes[items],
            least_per_byte(seconds)[items],
            least_per_byte(sent_bytes[:, None])[items, 0],
            least_per_byte(held)[items],
            np.where(weight_bytes[items] > 0, min_weight_bytes[items], 0),
            np.where(weight_bytes[items, None] > 0, read_seconds[items], 0.0),
            np.bincount(reader_unit[movable_units], minlength=units)[items] <= 1,
            np.where(movable, reader_unit, -1),
        )


def _read_seconds(aggregates: Aggregates, source: Ints, tensor: Ints, reader_unit: Ints) -> Seconds:
    """Units × groups: the shortest of its ops that read one of these tensors from elsewhere."""
    a = aggregates.problem.arrays
    is_read = np.zeros(len(a.sizes), dtype=bool)
    is_read[tensor] = True
    target_unit = np.zeros(len(a.sizes), dtype=np.int64)
    target_unit[tensor] = reader_unit[source]
    tensor_of = np.repeat(np.arange(len(a.sizes)), np.diff(a.first_reader))
    is_reader = (
        is_read[tensor_of] & a.scheduled[a.readers] & (a.unit[a.readers] == target_unit[tensor_of])
    )
    read_seconds = np.full((aggregates.units, aggregates.groups), np.inf)
    np.minimum.at(
        read_seconds, a.unit[a.readers[is_reader]], aggregates.op_seconds[a.readers[is_reader]]
    )
    return np.where(np.isfinite(read_seconds), read_seconds, 0.0)


class _MemoryProgram:
    """The rows of the choice: groups' time and memory, channels, chains, issuers."""

    def __init__(self, aggregates: Aggregates, items: MemoryItems, chains: Sequence[Ints]) -> None:
        self.aggregates, self.items = aggregates, items
        a, groups = aggregates.problem.arrays, aggregates.groups
        self.channel_set, channel_count = _channel_sets(aggregates)
        is_step = aggregates.problem.objective == "step"
        self.chain_seconds = [self._chain_seconds(chain) for chain in chains] if is_step else []
        issuers = (
            np.unique(a.issuer[aggregates.first_device]) if is_step else np.zeros(0, dtype=np.int64)
        )
        self.issuers = [
            int(issuer) for issuer in issuers if (a.issuer == issuer).sum() > 1 and issuer >= 0
        ]
        self.rows = 3 * groups + len(channel_count) + len(self.chain_seconds) + len(self.issuers)
        self.width = np.concatenate(
            [
                aggregates.device_count,
                np.zeros(2 * groups),
                channel_count,
                np.ones(len(self.chain_seconds) + len(self.issuers)),
            ]
        ).astype(np.float64)

    def bound(self, max_seconds: float, cases: int, max_nodes: int) -> float:
        """The bound for plans that take at most `max_seconds`."""
        aggregates, items = self.aggregates, self.items
        tight_groups = np.flatnonzero(
            _overfull_groups(aggregates) & (aggregates.device_count == 1) & ~aggregates.is_host
        )
        group = int(tight_groups[0]) if len(tight_groups) else -1
        capacity = aggregates.problem.arrays.capacity[aggregates.first_device]
        lowest = np.inf
        for low, high in (
            _size_intervals(items.min_weight_bytes[items.weight_bytes > 0], cases)
            if group >= 0
            else _ANY_SIZE
        ):
            if group < 0 or low <= capacity[group]:
                relaxation = self.relaxation(max_seconds, group, low, high)
                seconds = relaxation.best_bound()[0]
                seconds = max(
                    seconds,
                    relaxation.integer_bound(
                        items.is_indivisible, seconds, max_nodes, max_pairs=10 * max_nodes
                    ),
                )
                lowest = min(lowest, seconds)
        return lowest

    def relaxation(
        self, max_seconds: float, tight: int, min_bytes: int, max_bytes: float
    ) -> Relaxation:
        """The modes of plans of at most `max_seconds` that send such weights to the tight group.

        Args:
            min_bytes: The largest weight sent there has at least this many bytes,
            max_bytes: and fewer than these.
        """
        aggregates, items, a = self.aggregates, self.items, self.aggregates.problem.arrays
        groups = aggregates.groups
        load = np.full((len(items.unit), groups * groups, self.rows), np.inf)
        for compute_group in range(groups):
            is_allowed = np.isfinite(aggregates.seconds[items.unit, compute_group])
            for storage_group in range(groups):
                is_movable = items.weight_bytes > 0
                is_possible = is_allowed & (is_movable if compute_group != storage_group else True)
                if compute_group == tight and storage_group != tight:
                    is_possible &= items.min_weight_bytes < max_bytes
                load[is_possible, compute_group * groups + storage_group] = self._mode_load(
                    is_possible, compute_group, storage_group, max_seconds
                )
        capacity = np.zeros(self.rows)
        capacity[groups : 3 * groups] = np.tile(
            a.capacity[aggregates.first_device] * aggregates.device_count, 2
        )
        if tight >= 0:
            capacity[groups + tight] -= min_bytes
        if self.issuers:
            capacity[-len(self.issuers) :] = float(a.launch_overhead.max())
        return Relaxation(load, self.width, capacity)

    def _mode_load(
        self, is_possible: NDArray[np.bool_], compute_group: int, storage_group: int, seconds: float
    ) -> Seconds:
        """Possible items × rows: the load of computing in one group with weights in another."""
        aggregates, items, a = self.aggregates, self.items, self.aggregates.problem.arrays
        groups, units = aggregates.groups, items.unit[is_possible]
        mode = np.zeros((len(units), self.rows))
        mode[:, compute_group] += aggregates.seconds[units, compute_group]
        for memory_row in (groups, 2 * groups):  # resident bytes, and also bytes in transfer
            mode[:, memory_row + compute_group] += items.fixed_bytes[is_possible]
            mode[:, memory_row + storage_group] += items.weight_bytes[is_possible]
        if compute_group != storage_group:
            link_row = aggregates.transfer_row[storage_group, compute_group]
            weight_bytes = items.weight_bytes[is_possible]
            send_seconds = weight_bytes * items.seconds_per_byte[is_possible, link_row]
            read_seconds = items.read_seconds[is_possible, compute_group]
            held_per_byte = items.held_per_byte[is_possible, link_row]
            held_per_byte = held_per_byte + items.sent_per_byte[is_possible] * read_seconds
            mode[:, 2 * groups + compute_group] += weight_bytes * (held_per_byte / seconds)
            if aggregates.blocking_transfers:
                for endpoint in (compute_group, storage_group):
                    mode[:, endpoint] += 0.0 if aggregates.is_host[endpoint] else send_seconds
            else:
                channel_set = self.channel_set[storage_group, compute_group]
                mode[:, 3 * groups + channel_set] += send_seconds
        row = self.rows - len(self.chain_seconds) - len(self.issuers)
        for chain in self.chain_seconds:
            mode[:, row] = chain[units, compute_group]
            row += 1
        device = aggregates.first_device[compute_group]
        for issuer in self.issuers:
            if a.issuer[device] == issuer:
                launch_counts = self._launch_counts(compute_group)[units]
                mode[:, row] = launch_counts * a.launch_overhead[device]
            row += 1
        return mode

    def _chain_seconds(self, ops: Ints) -> Seconds:
        """Units × groups: seconds of the chain's ops."""
        aggregates, a = self.aggregates, self.aggregates.problem.arrays
        chain_seconds = np.zeros((aggregates.units, aggregates.groups))
        seconds = aggregates.op_seconds[ops]
        np.add.at(chain_seconds, a.unit[ops], np.where(np.isfinite(seconds), seconds, 0.0))
        return chain_seconds

    def _launch_counts(self, group: int) -> Seconds:
        """Units: the number of its ops that take time in this group."""
        aggregates, a = self.aggregates, self.aggregates.problem.arrays
        is_timed = a.scheduled & (a.compute[:, aggregates.first_device[group]] > 0)
        counts: Seconds = np.bincount(a.unit[is_timed], minlength=aggregates.units).astype(
            np.float64
        )
        return counts


def _channel_sets(aggregates: Aggregates) -> tuple[Ints, Ints]:
    """Groups × groups: the set of channels between them; and the number of channels of each set.

    Two pairs of groups that share a channel share the set.
    """
    a, groups = aggregates.problem.arrays, aggregates.groups
    sets = DisjointSets(a.channels)
    first_channel = np.full((groups, groups), -1, dtype=np.int64)
    for source in range(groups):
        for target in range(groups):
            block = a.channel[np.ix_(aggregates.group_of == source, aggregates.group_of == target)]
            channels = np.unique(block[block >= 0]).tolist()
            for channel in channels:
                sets.merge(channels[0], channel)
            if channels:
                first_channel[source, target] = channels[0]
    roots = np.array([sets.find(channel) for channel in range(a.channels)], dtype=np.int64)
    distinct, count = np.unique(roots, return_counts=True)
    channel_set = np.where(
        first_channel >= 0,
        np.searchsorted(distinct, roots[first_channel] if len(roots) else first_channel),
        -1,
    )
    return channel_set.astype(np.int64), count.astype(np.int64)
