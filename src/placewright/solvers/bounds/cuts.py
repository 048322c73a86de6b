"""Cuts: the least load of a device of some group that has a given unit.

An op with heavy tensors on all sides either takes its neighbours to its own device or pays for the
tensors. Which neighbours to take is a minimum cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.solvers.bounds.aggregates import Layout

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]

_WHOLE = 2**28  # the largest cut in whole numbers: flows are 32-bit
_MOST = 2**30 - 1


@dataclass(frozen=True, eq=False)
class Cuts:
    """The cuts of one group: a unit is on the source's side if it is on the device.

    Proof that `least` is a bound. Take a unit, the group of its device, and the set S of all units
    on that device. The device is busy with all of S (rule 1). Every tensor made in S and read
    outside is sent at least once, and every tensor read in S and made outside is received at least
    once (rules 4 and 6; a streamed weight once for each reader), in no less than the least time
    over the links that leave or enter the group.

    *Without overlap* a device that is no host pays for both, so the period is at least
    work(S) + sent(S) + received(S). A host pays for its work only.

    *With overlap*, and for the step time: the transfers run on the channels of the device's links,
    n of them, one at a time on each (rule 5), so sent(S) + received(S) is at most n times the step
    or period, and with any weight w ≥ 0, work(S) + w × (sent(S) + received(S)) is at most
    1 + w × n times it. We take w = 1 / n.

    Both are sums over the units of S plus costs of tensors on the border of S: a cut in a graph
    with a vertex a unit and two a tensor. The minimum cut over all S that hold the unit, and none
    that are barred from the group, is a bound if the unit is in this group.

    Rounding: capacities are rounded down to whole numbers, in which the flow is exact.
    """

    alone: Seconds  # units: the load of a device that has this unit and no other
    share: float  # of the load that is seconds of the step or period
    scale: float  # whole numbers in a second
    graph: Any  # scipy's sparse array: tails × heads, capacities
    enter: Ints  # units: where the arc from the source to the unit is stored
    leave: Ints  # units: where the arc from the unit to the sink is stored

    @classmethod
    def of(cls, layout: Layout, group: int) -> Cuts:
        from scipy.sparse import csr_array

        units = layout.units
        weight, share = _weight(layout, group)
        may = np.isfinite(layout.seconds[:, group])
        work = np.where(may, layout.seconds[:, group], 0.0)
        reader, source = layout.pair_unit, layout.pair_source
        tensor, first, at = np.unique(layout.pair_tensor, return_index=True, return_inverse=True)
        source = source[first]
        sent, received = (
            layout.least_sending(group, out)[tensor] * weight for out in (True, False)
        )
        alone = work + np.bincount(source, weights=sent, minlength=units)
        alone += np.bincount(reader, weights=received[at], minlength=units)
        largest = float(alone[may].max(initial=0.0))
        scale = _WHOLE / largest if largest > 0 else 0.0
        # Vertices: units, tensors as sent, tensors as received, the source, the sink.
        sends = units + np.arange(len(tensor))
        gets = sends + len(tensor)
        start = units + 2 * len(tensor)
        arcs: list[tuple[Ints, Ints, Seconds | float]] = [
            (np.arange(units), np.full(units, start + 1), np.where(may, work, np.inf)),
            (source, sends, sent),
            (sends[at], reader, np.inf),
            (reader, gets[at], np.inf),
            (gets, source, received),
            (np.full(units, start), np.arange(units), np.inf),
        ]
        tails = np.concatenate([tail for tail, _, _ in arcs])
        heads = np.concatenate([head for _, head, _ in arcs])
        sizes = np.concatenate([np.broadcast_to(size, len(tail)) for tail, _, size in arcs])
        whole = np.floor(np.minimum(sizes * (scale or 1.0), _MOST)).astype(np.int32)
        graph = csr_array((whole, (tails, heads)), shape=(start + 2, start + 2))
        graph.sort_indices()
        graph.indices, graph.indptr = graph.indices.astype(np.int32), graph.indptr.astype(np.int32)
        enter = graph.indptr[start] + np.arange(units)
        graph.data[enter] = 0
        leave = graph.indptr[1 : units + 1] - 1  # the sink is the last of all vertices
        return cls(np.where(may, alone * share, np.inf), share, scale, graph, enter, leave)

    @property
    def arcs(self) -> int:
        return int(self.graph.nnz)

    def least(self, unit: int, barred: Ints | None = None) -> tuple[float, Ints]:
        """The bound if this unit is in this group, and the units that are then on its device."""
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        if not self.scale:
            return 0.0, np.array([unit])
        start = self.graph.shape[0] - 2
        graph = self.graph.copy()
        graph.data[self.enter[unit]] = _MOST
        if barred is not None:
            graph.data[self.leave[barred]] = _MOST
        found = maximum_flow(graph, start, start + 1)
        left = graph - found.flow
        left.data = (left.data > 0).astype(np.int32)
        left.eliminate_zeros()
        reached = breadth_first_order(left, start, return_predecessors=False)
        together = reached[reached < len(self.enter)].astype(np.int64)
        return int(found.flow_value) / self.scale * self.share, together


def every_cut(layout: Layout) -> list[Cuts]:
    return [Cuts.of(layout, group) for group in range(layout.groups)]


def _weight(layout: Layout, group: int) -> tuple[float, float]:
    """The weight of a second of transfer beside a second of work, and what share of both is time.

    With overlap as much of both as the device and its channels can do at once.
    """
    if layout.sharing:
        return (0.0, 1.0) if layout.host[group] else (1.0, 1.0)
    used = layout.channels(group)
    return (1.0 / used, 0.5) if used else (0.0, 1.0)
