"""A fleet: devices in the order in which a split uses them, equal ones interchangeable."""

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

    from placewright.solvers.contiguous.coarse_graph import Pieces

Used = tuple[int, ...]
"""How many devices of each class are in use."""


class Seat(NamedTuple):
    """A device, or one that is its equal, and the links to its neighbours (-1 without any)."""

    device: int
    hears: int  # class of the link from the device before it
    returned: int  # from the device after it
    tells: int  # to the device after it


@dataclass(frozen=True, eq=False)
class Fleet:
    """Classes of devices; of a class the first is used first.

    Args:
        classes: The devices of each class, all equal unless the fleet is a row.
        row: Whether it is one class of unequal devices, any of which may be left out.
        link: Devices × devices: the class of each link.
        worth: For each device the most work it does in a second, where a second's work is what the
            fastest device for it does in a second.
    """

    classes: tuple[tuple[int, ...], ...]
    row: bool
    link: NDArray[np.int32]
    worth: NDArray[np.float64]

    @cached_property
    def states(self) -> list[Used]:
        """Every number of devices that may be in use, fewer devices first."""
        counts = itertools.product(*(range(len(members) + 1) for members in self.classes))
        return sorted(counts, key=lambda used: (sum(used), used))

    def steps(self, used: Used) -> Iterator[tuple[int, int, Used]]:
        """The classes of which a device is in use, the last of them, and the state without it."""
        for kind, count in enumerate(used):
            if count:
                yield kind, self.classes[kind][count - 1], self.without(used, kind)

    def without(self, used: Used, kind: int) -> Used:
        return (*used[:kind], used[kind] - 1, *used[kind + 1 :])

    def reach(self, used: Used) -> tuple[float, float]:
        """The work that the devices in use, and the others, can do in a second."""
        parts = list(zip(self.classes, used, strict=True))
        here = sum(self.worth[list(members[:count])].sum() for members, count in parts)
        rest = sum(self.worth[list(members[count:])].sum() for members, count in parts)
        return float(here), float(rest)

    def seat(self, used: Used, kind: int) -> Seat:
        """Where the last one used of a class sits.

        The state does not say in which order classes were used. A neighbour is taken from its own
        class where there is one, since links inside a class are the fast ones.
        """
        members, at = self.classes[kind], used[kind] - 1
        others = [
            other[max(count - 1, 0)]
            for place, (other, count) in enumerate(zip(self.classes, used, strict=True))
            if place != kind
        ]
        aside = [members[place] for place in (at - 1, at + 1) if 0 <= place < len(members)]
        anyone = (*others, *aside, members[at])[0]
        before = members[at - 1] if at > 0 else anyone
        after = members[at + 1] if at + 1 < len(members) else anyone
        device = members[at]
        return Seat(
            device if self.row else members[0],
            int(self.link[before, device]),
            int(self.link[after, device]),
            int(self.link[device, after]),
        )


def fleets(pieces: Pieces, most: int) -> list[Fleet]:
    """One fleet of classes, or several rows if that would have more than `most` states."""
    a = pieces.problem.arrays
    least = pieces.least[:, None]
    worth = np.zeros(pieces.seconds.shape)
    np.divide(least, pieces.seconds, out=worth, where=pieces.allowed & (pieces.seconds > 0))
    ratio = worth.max(axis=0, initial=0.0)
    alike: dict[tuple[object, ...], list[int]] = {}
    order = accelerators_first(pieces.problem).tolist()
    for device in order:
        key = (
            a.compute[:, device].tobytes(),
            a.allowed[:, device].tobytes(),
            int(a.capacity[device]),
            bool(a.host[device]),
            tuple(sorted(a.link_class[device].tolist())),
            tuple(sorted(a.link_class[:, device].tolist())),
            len(np.unique(a.channel[device])),
            len(np.unique(a.channel[:, device])),
        )
        alike.setdefault(key, []).append(device)
    classes = tuple(tuple(members) for members in alike.values())
    fleet = Fleet(classes, row=False, link=a.link_class, worth=ratio)
    if np.prod([len(members) + 1.0 for members in classes]) <= most:
        return [fleet]
    total = pieces.seconds.sum(axis=0)
    by_speed = sorted(order, key=lambda device: (a.host[device], total[device]))
    rows = dict.fromkeys(map(tuple, (order, by_speed, by_speed[::-1])))
    return [Fleet((row,), row=True, link=a.link_class, worth=ratio) for row in rows]
