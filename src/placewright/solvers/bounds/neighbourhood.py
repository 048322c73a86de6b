"""Surroundings: the least a unit brings with it, in work or in transfers, wherever it is put."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.solvers.bounds.aggregates import Layout
    from placewright.solvers.bounds.cuts import Cuts

Flags = NDArray[np.bool_]


def surroundings(layout: Layout, cuts: Sequence[Cuts], arcs: int) -> float:
    """The largest, over units, of the least load of a device that has this unit.

    Args:
        cuts: Of each group.
        arcs: How many arcs, over all cuts, may be looked at.

    Proof: a unit is in one of the groups it is allowed in, so by the proof of `Cuts` the least over
    these is a bound; and so is the largest of such bounds over units.
    """
    alone = np.min([each.alone for each in cuts], axis=0)  # no unit proves more than this
    best = 0.0
    while arcs > 0 and alone[unit := int(np.argmax(alone))] > best:
        least = np.inf
        for each in cuts:
            value = each.alone[unit]
            if best < value < np.inf:
                value, together = each.least(unit)
                # What is on the unit's side of the cut has the same cut, so it proves no more.
                alone[together] = np.minimum(alone[together], value)
                arcs -= each.arcs
            least = min(least, value)
        best = max(best, least)
        alone[unit] = 0.0
    return layout.rounded_down(best)


def barred(layout: Layout, cuts: Sequence[Cuts], seconds: float, arcs: int) -> Flags:
    """Units × groups: where a unit cannot be in any plan of at most so many seconds.

    Proof: where the least load of a device with this unit is more than T, the unit is not there.
    Then it is not on any other unit's device in that group either, which may raise the load of
    those, and the argument repeats. We stop wherever it suits us.
    """
    out = ~np.isfinite(layout.seconds)
    limit = seconds * (1 + 1e-9)
    for group, each in enumerate(cuts):
        more = True
        while more and arcs > 0:
            more = False
            # A unit that fits alone fits; so does one that fits with others.
            doubt = ~out[:, group] & (each.alone > limit)
            for unit in np.argsort(-each.alone, kind="stable").tolist():
                if not doubt[unit] or arcs <= 0:
                    continue
                value, together = each.least(unit, np.flatnonzero(out[:, group]))
                arcs -= each.arcs
                if value > limit:
                    out[unit, group] = more = True
                else:
                    doubt[together] = False
    return out
