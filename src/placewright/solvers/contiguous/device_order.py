"""Device order: the order in which a split uses devices, equal ones interchangeable."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placewright.transforms.bundles import accelerators_first

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import CoarseGraph

UsedCounts = tuple[int, ...]
"""The number of devices of each class that are in use."""


class StageDevice(NamedTuple):
    """A device, or one equal to it, and the links to its neighbours (-1 for none)."""

    device: int
    link_in: int  # class of the link from the device before it
    link_back: int  # from the device after it
    link_out: int  # to the device after it


@dataclass(frozen=True, eq=False)
class DeviceOrder:
    """Classes of devices; the first device of a class is used first.

    Args:
        classes: The devices of each class, all equal unless this is a sequence.
        is_sequence: Whether it is one class of unequal devices, any of which may be skipped.
        link_class: Devices × devices: the class of each link.
        throughput: The most work per second of each device, in seconds on the fastest device for
            that work.
    """

    classes: tuple[tuple[int, ...], ...]
    is_sequence: bool
    link_class: NDArray[np.int32]
    throughput: NDArray[np.float64]

    @cached_property
    def states(self) -> list[UsedCounts]:
        """Every number of devices that may be in use, fewer devices first."""
        counts = itertools.product(*(range(len(members) + 1) for members in self.classes))
        return sorted(counts, key=lambda used: (sum(used), used))

    def last_devices(self, used: UsedCounts) -> Iterator[tuple[int, int, UsedCounts]]:
        """The classes in use, the last used device of each, and the state without it."""
        for kind, count in enumerate(used):
            if count:
                yield kind, self.classes[kind][count - 1], self.decrement(used, kind)

    def decrement(self, used: UsedCounts, kind: int) -> UsedCounts:
        return (*used[:kind], used[kind] - 1, *used[kind + 1 :])

    def throughput_split(self, used: UsedCounts) -> tuple[float, float]:
        """The work per second of the devices in use, and of the others."""
        class_counts = list(zip(self.classes, used, strict=True))
        used_rate = sum(
            self.throughput[list(members[:count])].sum() for members, count in class_counts
        )
        unused_rate = sum(
            self.throughput[list(members[count:])].sum() for members, count in class_counts
        )
        return float(used_rate), float(unused_rate)

    def stage_device(self, used: UsedCounts, kind: int) -> StageDevice:
        """The last used device of a class, with its links.

        The state does not know in which order classes were used. A neighbour is taken from the same
        class if there is one, since links inside a class are the fast ones.
        """
        members, last = self.classes[kind], used[kind] - 1
        others = [
            other[max(count - 1, 0)]
            for index, (other, count) in enumerate(zip(self.classes, used, strict=True))
            if index != kind
        ]
        adjacent = [members[index] for index in (last - 1, last + 1) if 0 <= index < len(members)]
        fallback = (*others, *adjacent, members[last])[0]
        before = members[last - 1] if last > 0 else fallback
        after = members[last + 1] if last + 1 < len(members) else fallback
        device = members[last]
        return StageDevice(
            device if self.is_sequence else members[0],
            int(self.link_class[before, device]),
            int(self.link_class[after, device]),
            int(self.link_class[device, after]),
        )


def device_orders(coarse: CoarseGraph, max_states: int) -> list[DeviceOrder]:
    """One order of classes, or several sequences if it has more than `max_states` states."""
    a = coarse.problem.arrays
    fastest = coarse.fastest_seconds[:, None]
    throughput = np.zeros(coarse.seconds.shape)
    np.divide(fastest, coarse.seconds, out=throughput, where=coarse.allowed & (coarse.seconds > 0))
    max_throughput = throughput.max(axis=0, initial=0.0)
    classes_by_key: dict[tuple[object, ...], list[int]] = {}
    order = accelerators_first(coarse.problem).tolist()
    for device in order:
        key = (
            a.compute[:, device].tobytes(),
            a.allowed[:, device].tobytes(),
            int(a.capacity[device]),
            bool(a.is_host[device]),
            tuple(sorted(a.link_class[device].tolist())),
            tuple(sorted(a.link_class[:, device].tolist())),
            len(np.unique(a.channel[device])),
            len(np.unique(a.channel[:, device])),
        )
        classes_by_key.setdefault(key, []).append(device)
    classes = tuple(tuple(members) for members in classes_by_key.values())
    by_class = DeviceOrder(
        classes, is_sequence=False, link_class=a.link_class, throughput=max_throughput
    )
    if np.prod([len(members) + 1.0 for members in classes]) <= max_states:
        return [by_class]
    total = coarse.seconds.sum(axis=0)
    by_speed = sorted(order, key=lambda device: (a.is_host[device], total[device]))
    sequences = dict.fromkeys(map(tuple, (order, by_speed, by_speed[::-1])))
    return [
        DeviceOrder(
            (sequence,), is_sequence=True, link_class=a.link_class, throughput=max_throughput
        )
        for sequence in sequences
    ]
