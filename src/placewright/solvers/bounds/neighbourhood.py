"""The neighbourhood bound: the least work and transfers that a unit causes on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.solvers.bounds.aggregates import Aggregates
    from placewright.solvers.bounds.minimum_cuts import MinimumCuts

Flags = NDArray[np.bool_]


def neighbourhood_bound(
    aggregates: Aggregates, group_cuts: Sequence[MinimumCuts], arc_budget: int
) -> float:
    """The maximum, over units, of the smallest load of a device that has this unit.

    Args:
        group_cuts: The cuts of each group.
        arc_budget: The number of arcs, over all cuts, that may be used.

    Proof: a unit is in one of the groups it is allowed in, so by the proof of `MinimumCuts` the
    minimum over these is a bound; and so is the maximum of such bounds over units.
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
                # Units on this side of the cut have the same cut, so they prove no more.
                isolated_load[colocated] = np.minimum(isolated_load[colocated], value)
                arc_budget -= cuts.arc_count
            lowest = min(lowest, value)
        best = max(best, lowest)
        isolated_load[unit] = 0.0
    return aggregates.round_down(best)


def forbidden_groups(
    aggregates: Aggregates, group_cuts: Sequence[MinimumCuts], seconds: float, arc_budget: int
) -> Flags:
    """Units × groups: where a unit cannot be in any plan of at most `seconds`.

    Proof: where the smallest load of a device with this unit is more than T, the unit is not there.
    Then it is not on any other unit's device in that group either, which may raise the load of
    those, and the argument repeats. We may stop at any point.
    """
    is_forbidden = ~np.isfinite(aggregates.seconds)
    limit = seconds * (1 + 1e-9)
    for group, cuts in enumerate(group_cuts):
        has_changed = True
        while has_changed and arc_budget > 0:
            has_changed = False
            # A unit that fits by itself is not excluded; nor is one that fits with others.
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
