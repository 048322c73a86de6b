"""Layout: a problem in; its units and its groups of equal devices out, for bounds to look at.

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

NEVER = -1  # no two devices of this pair of groups are different


@dataclass(frozen=True, eq=False)
class Layout:
    """Units, groups, and the tensors that pass between units."""

    problem: Problem
    # Groups of devices that are equal in speed, constraints, memory, kind and launching
    group: Ints  # devices
    first: Ints  # groups: one device of each
    count: Ints  # groups: how many devices
    # Units
    seconds: Seconds  # units × groups: all its ops, infinite where it may not be
    resident: Bytes  # units
    # Sending: the least seconds from any device of one group to any other of another
    way: Ints  # groups × groups: which row of `transfer` holds, or NEVER
    transfer: Seconds  # rows × tensors
    # Tensors that another unit than their producer's reads, and each such unit
    pair_tensor: Ints  # pairs
    pair_unit: Ints  # pairs

    @classmethod
    def of(cls, problem: Problem) -> Layout:
        a = problem.arrays
        group, first, count = _groups(problem)
        units = int(a.unit.max()) + 1
        seconds = np.where(a.turn[:, None], a.compute, 0.0)[:, first]
        columns = [np.bincount(a.unit, weights=column, minlength=units) for column in seconds.T]
        allowed = np.zeros((units, len(first)), dtype=bool)
        allowed[a.unit] = a.allowed[:, first]
        resident = np.zeros(units, dtype=np.int64)
        np.add.at(resident, a.unit, a.resident)
        way, transfer = _ways(problem, group, len(first))
        reader = a.readers.astype(np.int64)
        tensor = np.repeat(np.arange(len(a.sizes)), np.diff(a.first_reader))
        leaves = a.turn[reader] & (a.unit[reader] != a.unit[a.producer[tensor]])
        pairs = np.unique(tensor[leaves] * units + a.unit[reader[leaves]])
        return cls(
            problem,
            group,
            first,
            count,
            np.where(allowed, np.stack(columns, axis=1), np.inf),
            resident,
            way,
            transfer,
            pairs // units,
            pairs % units,
        )

    @property
    def units(self) -> int:
        return len(self.resident)

    @property
    def groups(self) -> int:
        return len(self.first)

    @cached_property
    def op_seconds(self) -> Seconds:
        """Ops × groups: nothing for what takes no turn, infinite where an op may not be."""
        a = self.problem.arrays
        seconds = np.where(a.turn[:, None], a.compute, 0.0)
        return np.where(a.allowed, seconds, np.inf)[:, self.first]

    @cached_property
    def pair_source(self) -> Ints:
        """Pairs: the unit that makes the tensor."""
        a = self.problem.arrays
        return a.unit[a.producer[self.pair_tensor]].astype(np.int64)

    @cached_property
    def host(self) -> Flags:
        """Groups: whether they are hosts."""
        return self.problem.arrays.host[self.first]

    @property
    def sharing(self) -> bool:
        """Whether transfers take a device's own time: the period without overlap."""
        return self.problem.objective == "period" and not self.problem.overlap

    def sending(self, source: int, target: int) -> Seconds | None:
        """Tensors: the least seconds from one group to another device of the other, or None."""
        row = self.way[source, target]
        return None if row == NEVER else self.transfer[row]

    def least_sending(self, group: int, leaving: bool) -> Seconds:
        """Tensors: the least seconds over the links that leave (or enter) a device of the group."""
        rows = self.way[group] if leaving else self.way[:, group]
        rows = rows[rows != NEVER]
        if not len(rows):
            return np.zeros(self.transfer.shape[1])
        least: Seconds = self.transfer[np.unique(rows)].min(axis=0)
        return least

    def channels(self, group: int) -> int:
        """The most channels that the links from and to one device of the group use."""
        channel = self.problem.arrays.channel
        devices = np.flatnonzero(self.group == group)
        return max(
            len({*channel[device].tolist(), *channel[:, device].tolist()} - {-1})
            for device in devices
        )

    def rounded_down(self, seconds: float) -> float:
        """Less what rounding can add to a sum over all ops and transfers.

        A simulated time is a sum of at most as many durations as there are ops and copies of
        tensors, and each addition may lose a share of half an epsilon. So do our own sums.
        """
        a = self.problem.arrays
        terms = a.ops + len(a.inputs) + len(a.sizes) * a.devices
        return max(0.0, seconds * (1 - 4 * terms * float(np.finfo(np.float64).eps)))


def _groups(problem: Problem) -> tuple[Ints, Ints, Ints]:
    a = problem.arrays
    shared = {at for at in a.issuer.tolist() if at >= 0 and (a.issuer == at).sum() > 1}
    keys: dict[tuple[object, ...], int] = {}
    group = np.zeros(a.devices, dtype=np.int64)
    for device in range(a.devices):
        issuer = int(a.issuer[device])
        key = (
            np.where(a.turn, a.compute[:, device], 0.0).tobytes(),
            a.allowed[:, device].tobytes(),
            int(a.capacity[device]),
            bool(a.host[device]),
            issuer if issuer in shared else None,
            float(a.launch[device]),
        )
        group[device] = keys.setdefault(key, len(keys))
    _, first, count = np.unique(group, return_index=True, return_counts=True)
    return group, first.astype(np.int64), count.astype(np.int64)


def _ways(problem: Problem, group: Ints, groups: int) -> tuple[Ints, Seconds]:
    a = problem.arrays
    way = np.full((groups, groups), NEVER, dtype=np.int64)
    rows: dict[tuple[int, ...], int] = {}
    for source in range(groups):
        for target in range(groups):
            block = a.link_class[np.ix_(group == source, group == target)]
            classes = tuple(np.unique(block[block >= 0]).tolist())
            if classes:
                way[source, target] = rows.setdefault(classes, len(rows))
    least = [a.transfer[list(classes)].min(axis=0) for classes in rows]
    return way, np.stack(least) if least else np.zeros((0, len(a.sizes)))
