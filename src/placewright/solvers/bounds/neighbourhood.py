"""The neighbourhood bound: the least work or transfers that a unit brings to any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.solvers.bounds.aggregates import Aggregates
    from placewright.solvers.bounds.cuts import MinimumCuts

Flags = NDArray[np.bool_]


def neighbourhood_bound(
    aggregates: Aggregates, group_cuts: Sequence[MinimumCuts], arc_budget: int
) -> float:
    """The largest, over units, of the least load of a device that has this unit.

    Args:
        group_cuts: Of each group.
        arc_budget: How many arcs, over all cuts, may be looked at.

    Proof: a unit is in one of the groups it is allowed in, so by the proof of `Cuts` the least over
    these is a bound; and so is the largest of such bounds over units.
    """
    isolated_load = np.min(
        [cuts.isolated_load for cuts in group_cuts], axis=0
    )  # no unit proves more than this
    best = 0.0
    while arc_budget > 0 and isolated_load[unit := int(np.argmax(isolated_load))] > best:
        lowest = np.inf
        for cuts in group_cuts:
            value = cuts.isolated_load[unit]
            if best < value < np.inf:
                value, colocated = cuts.minimum_cut(unit)
                # What is on the unit's side of the cut has the same cut, so it proves no more.
                isolated_load[colocated] = np.minimum(isolated_load[colocated], value)
                arc_budget -= cuts.arc_count
            lowest = min(lowest, value)
        best = max(best, lowest)
        isolated_load[unit] = 0.0
    return aggregates.round_down(best)


def forbidden_groups(
    aggregates: Aggregates, group_cuts: Sequence[MinimumCuts], seconds: float, arc_budget: int
) -> Flags:
    """Units × groups: where a unit cannot be in any plan of at most so many seconds.

    Proof: where the least load of a device with this unit is more than T, the unit is not there.
    Then it is not on any other unit's device in that group either, which may raise the load of
    those, and the argument repeats. We stop wherever it suits us.
    """
    is_forbidden = ~np.isfinite(aggregates.seconds)
    limit = seconds * (1 + 1e-9)
    for group, cuts in enumerate(group_cuts):
        has_changed = True
        while has_changed and arc_budget > 0:
            has_changed = False
            # A unit that fits alone fits; so does one that fits with others.
            is_undecided = ~is_forbidden[:, group] & (cuts.isolated_load > limit)
            for unit in np.argsort(-cuts.isolated_load, kind="stable").tolist():
                if not is_undecided[unit] or arc_budget <= 0:
                    continue
                value, colocated = cuts.minimum_cut(unit, np.flatnonzero(is_forbidden[:, group]))
                arc_budget -= cuts.arc_count
                if value > limit:
                    is_forbidden[unit, group] = has_changed = True
                else:
                    is_undecided[colocated] = False
    return is_forbidden
