"""Aggregates: the units and the groups of equal devices that bounds are computed on.

No bound can tell equal devices apart, so they are counted together; ops that must share a device
are one unit. Both make every bound smaller to compute and none of them weaker.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.problem import Problem

Ints = NDArray[np.int64]
Bytes = NDArray[np.int64]
Flags = NDArray[np.bool_]
Seconds = NDArray[np.float64]

NO_LINK = -1  # no two devices of this pair of groups are different


@dataclass(frozen=True, eq=False)
class Aggregates:
    """Units, groups, and the tensors between units."""

    problem: Problem
    # Groups of devices that are equal in speed, constraints, memory, kind and launching
    group_of: Ints  # devices
    first_device: Ints  # groups: one device of each
    device_count: Ints  # groups: how many devices
    # Units
    seconds: Seconds  # units × groups: all its ops, infinite where it may not be
    resident: Bytes  # units
    # Sending: the fewest seconds from any device of one group to any other of another
    transfer_row: Ints  # groups × groups: the row of `transfer`, or NO_LINK
    transfer: Seconds  # rows × tensors
    # Tensors that another unit than their producer's reads, and each such unit
    pair_tensor: Ints  # pairs
    pair_unit: Ints  # pairs

    @classmethod
    def of(cls, problem: Problem) -> Aggregates:
        a = problem.arrays
        group_of, first_device, device_count = _device_groups(problem)
        units = int(a.unit.max()) + 1
        seconds = np.where(a.scheduled[:, None], a.compute, 0.0)[:, first_device]
        columns = [np.bincount(a.unit, weights=column, minlength=units) for column in seconds.T]
        allowed = np.zeros((units, len(first_device)), dtype=bool)
        allowed[a.unit] = a.allowed[:, first_device]
        resident = np.zeros(units, dtype=np.int64)
        np.add.at(resident, a.unit, a.resident)
        transfer_row, transfer = _group_links(problem, group_of, len(first_device))
        reader = a.readers.astype(np.int64)
        tensor = np.repeat(np.arange(len(a.sizes)), np.diff(a.first_reader))
        is_sent = a.scheduled[reader] & (a.unit[reader] != a.unit[a.producer[tensor]])
        pairs = np.unique(tensor[is_sent] * units + a.unit[reader[is_sent]])
        return cls(
            problem,
            group_of,
            first_device,
            device_count,
            np.where(allowed, np.stack(columns, axis=1), np.inf),
            resident,
            transfer_row,
            transfer,
            pairs // units,
            pairs % units,
        )

    @property
    def units(self) -> int:
        return len(self.resident)

    @property
    def groups(self) -> int:
        return len(self.first_device)

    @cached_property
    def op_seconds(self) -> Seconds:
        """Ops × groups: 0 for unscheduled ops, infinite where an op may not be."""
        a = self.problem.arrays
        seconds = np.where(a.scheduled[:, None], a.compute, 0.0)
        return np.where(a.allowed, seconds, np.inf)[:, self.first_device]

    @cached_property
    def pair_source(self) -> Ints:
        """Pairs: the unit that makes the tensor."""
        a = self.problem.arrays
        return a.unit[a.producer[self.pair_tensor]].astype(np.int64)

    @cached_property
    def is_host(self) -> Flags:
        """Groups: whether they are hosts."""
        return self.problem.arrays.is_host[self.first_device]

    @property
    def blocking_transfers(self) -> bool:
        """Whether transfers keep a device busy: the period without overlap."""
        return self.problem.objective == "period" and not self.problem.overlap

    def send_seconds(self, source: int, target: int) -> Seconds | None:
        """Tensors: the fewest seconds from one group to another device of the other, or None."""
        row = self.transfer_row[source, target]
        return None if row == NO_LINK else self.transfer[row]

    def min_send_seconds(self, group: int, leaving: bool) -> Seconds:
        """Tensors: the fewest seconds over links that leave (or enter) a device of the group."""
        rows = self.transfer_row[group] if leaving else self.transfer_row[:, group]
        rows = rows[rows != NO_LINK]
        if not len(rows):
            return np.zeros(self.transfer.shape[1])
        min_seconds: Seconds = self.transfer[np.unique(rows)].min(axis=0)
        return min_seconds

    def max_channels(self, group: int) -> int:
        """The maximum number of channels of the links from and to one device of the group."""
        channel = self.problem.arrays.channel
        devices = np.flatnonzero(self.group_of == group)
        return max(
            len({*channel[device].tolist(), *channel[:, device].tolist()} - {-1})
            for device in devices
        )

    def round_down(self, seconds: float) -> float:
        """Less what rounding can add to a sum over all ops and transfers.

        A simulated time is a sum of at most as many durations as there are ops and copies of
        tensors, and each addition may lose a share of half an epsilon. So do our own sums.
        """
        a = self.problem.arrays
        term_count = a.ops + len(a.inputs) + len(a.sizes) * a.devices
        return max(0.0, seconds * (1 - 4 * term_count * float(np.finfo(np.float64).eps)))


def _device_groups(problem: Problem) -> tuple[Ints, Ints, Ints]:
    a = problem.arrays
    shared_issuers = {
        issuer_id
        for issuer_id in a.issuer.tolist()
        if issuer_id >= 0 and (a.issuer == issuer_id).sum() > 1
    }
    keys: dict[tuple[object, ...], int] = {}
    group_of = np.zeros(a.devices, dtype=np.int64)
    for device in range(a.devices):
        issuer = int(a.issuer[device])
        key = (
            np.where(a.scheduled, a.compute[:, device], 0.0).tobytes(),
            a.allowed[:, device].tobytes(),
            int(a.capacity[device]),
            bool(a.is_host[device]),
            issuer if issuer in shared_issuers else None,
            float(a.launch_overhead[device]),
        )
        group_of[device] = keys.setdefault(key, len(keys))
    _, first_device, device_count = np.unique(group_of, return_index=True, return_counts=True)
    return group_of, first_device.astype(np.int64), device_count.astype(np.int64)


def _group_links(problem: Problem, group_of: Ints, group_count: int) -> tuple[Ints, Seconds]:
    a = problem.arrays
    transfer_row = np.full((group_count, group_count), NO_LINK, dtype=np.int64)
    rows: dict[tuple[int, ...], int] = {}
    for source in range(group_count):
        for target in range(group_count):
            block = a.link_class[np.ix_(group_of == source, group_of == target)]
            classes = tuple(np.unique(block[block >= 0]).tolist())
            if classes:
                transfer_row[source, target] = rows.setdefault(classes, len(rows))
    min_transfer = [a.transfer[list(classes)].min(axis=0) for classes in rows]
    return transfer_row, np.stack(min_transfer) if min_transfer else np.zeros((0, len(a.sizes)))
