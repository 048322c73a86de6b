"""Minimum cuts: the smallest load of a device of some group that holds a given unit.

An op with heavy tensors on all sides either shares its device with its neighbours or pays for the
transfers. The best choice of neighbours is a minimum cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.solvers.bounds.aggregates import Aggregates

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]

_FLOW_SCALE = 2**28  # the largest cut in whole numbers: flows are 32-bit
_MAX_FLOW = 2**30 - 1


@dataclass(frozen=True, eq=False)
class MinimumCuts:
    """The cuts of one group: a unit is on the source's side if it is on the device.

    Proof that `minimum_cut` is a bound. Take a unit, the group of its device, and the set S of all
    units on that device. The device is busy with all of S (rule 1). Every tensor made in S and read
    outside is sent at least once, and every tensor read in S and made outside is received at least
    once (rules 4 and 6; a streamed weight once for each reader), in no less than the shortest time
    over the links that leave or enter the group.

    *Without overlap* a device that is not a host pays for both, so the period is at least
    work(S) + sent(S) + received(S). A host pays for its work only.

    *With overlap*, and for the step time: the transfers run on the channels of the device's links,
    n of them, one at a time on each (rule 5), so sent(S) + received(S) is at most n times the step
    or period, and with any weight w ≥ 0, work(S) + w × (sent(S) + received(S)) is at most
    1 + w × n times it. We take w = 1 / n.

    Both are sums over the units of S plus costs of tensors on the border of S: a cut in a graph
    with one vertex per unit and two per tensor. The minimum cut over all S that hold the unit, and
    no unit that is forbidden in the group, is a bound if the unit is in this group.

    Rounding: capacities are rounded down to whole numbers, in which the flow is exact.
    """

    isolated_load: Seconds  # units: the load of a device that has this unit only
    time_share: float  # share of the load that is seconds of the step or period
    scale: float  # integers per second
    flow_graph: Any  # scipy's sparse array: tails × heads, capacities
    source_arcs: Ints  # units: where the arc from the source to the unit is stored
    sink_arcs: Ints  # units: where the arc from the unit to the sink is stored

    @classmethod
    def of(cls, aggregates: Aggregates, group: int) -> MinimumCuts:
        from scipy.sparse import csr_array

        units = aggregates.units
        weight, time_share = _transfer_weight(aggregates, group)
        is_allowed = np.isfinite(aggregates.seconds[:, group])
        work = np.where(is_allowed, aggregates.seconds[:, group], 0.0)
        reader, source = aggregates.pair_unit, aggregates.pair_source
        tensor, first_pair, tensor_of = np.unique(
            aggregates.pair_tensor, return_index=True, return_inverse=True
        )
        source = source[first_pair]
        send_cost, receive_cost = (
            aggregates.min_send_seconds(group, leaving)[tensor] * weight
            for leaving in (True, False)
        )
        isolated_load = work + np.bincount(source, weights=send_cost, minlength=units)
        isolated_load += np.bincount(reader, weights=receive_cost[tensor_of], minlength=units)
        largest = float(isolated_load[is_allowed].max(initial=0.0))
        scale = _FLOW_SCALE / largest if largest > 0 else 0.0
        # Vertices: units, tensors as sent, tensors as received, the source, the sink.
        sent_vertex = units + np.arange(len(tensor))
        received_vertex = sent_vertex + len(tensor)
        source_vertex = units + 2 * len(tensor)
        arcs: list[tuple[Ints, Ints, Seconds | float]] = [
            (
                np.arange(units),
                np.full(units, source_vertex + 1),
                np.where(is_allowed, work, np.inf),
            ),
            (source, sent_vertex, send_cost),
            (sent_vertex[tensor_of], reader, np.inf),
            (reader, received_vertex[tensor_of], np.inf),
            (received_vertex, source, receive_cost),
            (np.full(units, source_vertex), np.arange(units), np.inf),
        ]
        tails = np.concatenate([tail for tail, _, _ in arcs])
        heads = np.concatenate([head for _, head, _ in arcs])
        arc_seconds = np.concatenate([np.broadcast_to(size, len(tail)) for tail, _, size in arcs])
        capacities = np.floor(np.minimum(arc_seconds * (scale or 1.0), _MAX_FLOW)).astype(np.int32)
        flow_graph = csr_array(
            (capacities, (tails, heads)), shape=(source_vertex + 2, source_vertex + 2)
        )
        flow_graph.sort_indices()
        flow_graph.indices, flow_graph.indptr = (
            flow_graph.indices.astype(np.int32),
            flow_graph.indptr.astype(np.int32),
        )
        source_arcs = flow_graph.indptr[source_vertex] + np.arange(units)
        flow_graph.data[source_arcs] = 0
        sink_arcs = flow_graph.indptr[1 : units + 1] - 1  # the sink is the last of all vertices
        return cls(
            np.where(is_allowed, isolated_load * time_share, np.inf),
            time_share,
            scale,
            flow_graph,
            source_arcs,
            sink_arcs,
        )

    @property
    def arc_count(self) -> int:
        return int(self.flow_graph.nnz)

    def minimum_cut(self, unit: int, forbidden: Ints | None = None) -> tuple[float, Ints]:
        """The bound if this unit is in this group, and the units that are then on its device."""
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        if not self.scale:
            return 0.0, np.array([unit])
        source_vertex = self.flow_graph.shape[0] - 2
        flow_graph = self.flow_graph.copy()
        flow_graph.data[self.source_arcs[unit]] = _MAX_FLOW
        if forbidden is not None:
            flow_graph.data[self.sink_arcs[forbidden]] = _MAX_FLOW
        max_flow = maximum_flow(flow_graph, source_vertex, source_vertex + 1)
        residual = flow_graph - max_flow.flow
        residual.data = (residual.data > 0).astype(np.int32)
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, source_vertex, return_predecessors=False)
        colocated = reached[reached < len(self.source_arcs)].astype(np.int64)
        return int(max_flow.flow_value) / self.scale * self.time_share, colocated


def find_minimum_cuts(aggregates: Aggregates) -> list[MinimumCuts]:
    return [MinimumCuts.of(aggregates, group) for group in range(aggregates.groups)]


def _transfer_weight(aggregates: Aggregates, group: int) -> tuple[float, float]:
    """The weight of a second of transfer relative to a second of work, and the share that is time.

    With overlap the device and its channels work at the same time.
    """
    if aggregates.blocking_transfers:
        return (0.0, 1.0) if aggregates.is_host[group] else (1.0, 1.0)
    channel_count = aggregates.max_channels(group)
    return (1.0 / channel_count, 0.5) if channel_count else (0.0, 1.0)
