"""Flat numpy arrays of a problem, packed once: the kernels' only input.

Ops, tensors, devices, channels and units are numbered from 0. Tensors are numbered op by op, so a
smaller tensor number means an earlier producer, then an earlier output. Lists of unequal length
are stored end to end: those of item `i` are `values[first[i]:first[i + 1]]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewright.costs import CostModel, Table, tensor_bytes
from placewright.device import HOST, Link
from placewright.disjoint_sets import DisjointSets
from placewright.errors import ProblemError
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph
from placewright.units import MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.cluster import Cluster

Ints = NDArray[np.int32]
Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]
Flags = NDArray[np.bool_]

_MAX_TOTAL_BYTES = 2**62  # with staging buffers as large again, sums over devices fit 64 bits


@dataclass(frozen=True, eq=False)
class Arrays:
    """Everything the simulator needs, in seconds and bytes."""

    # Ops
    compute: Seconds  # ops × devices: how long each op takes on each device
    allowed: Flags  # ops × devices: where each op may be
    unit: Ints  # ops: ops of one unit share a device; units are numbered by their first op
    unit_head: Ints  # ops: the first op of its unit
    leader: Ints  # ops: the op whose device this one takes if a solver does not place it
    scheduled: Flags  # ops: false for weights, states and inputs, which exist before the step
    is_weight: Flags  # ops: weights and views of weights, which may be streamed
    is_resident: Flags  # ops: weights, their views and states, whose tensors are resident bytes
    resident: Bytes  # ops: bytes on the op's device for the whole step
    workspace: Bytes  # ops: bytes while the op runs
    first_tensor: Ints  # ops + 1
    first_input: Ints  # ops + 1
    inputs: Ints  # tensors each op reads, each once, in the op's own order
    # Tensors
    sizes: Bytes  # tensors
    producer: Ints  # tensors: the op that makes it
    alias: Ints  # tensors: the tensor whose memory it shares, or -1
    is_output: Flags  # tensors: graph outputs, which live to the end of the step
    first_reader: Ints  # tensors + 1
    readers: Ints  # ops that read each tensor, in graph order
    transfer: Seconds  # link classes × tensors: how long each tensor takes over such a link
    # Devices
    link_class: Ints  # devices × devices: the row of `transfer`, -1 on the diagonal
    channel: Ints  # devices × devices: the channel a transfer occupies, -1 on the diagonal
    capacity: Bytes  # devices: bytes a plan may use
    is_host: Flags  # devices
    issuer: Ints  # devices: which issuer starts its ops, or -1
    launch_overhead: Seconds  # devices: seconds that its issuer spends on starting one op

    @property
    def ops(self) -> int:
        return len(self.unit)

    @property
    def devices(self) -> int:
        return len(self.capacity)

    @property
    def channels(self) -> int:
        return int(self.channel.max(initial=-1)) + 1

    @cached_property
    def reader(self) -> NDArray[np.int64]:
        """The op that reads each entry of `inputs`."""
        return np.repeat(np.arange(self.ops), np.diff(self.first_input))

    def streamed_bytes(self, placement: NDArray[np.integer]) -> Bytes:
        """Bytes of weights that each op reads from other devices (ops): streamed, if staged."""
        source = self.producer[self.inputs]
        is_streamed = (
            self.scheduled[self.reader]
            & self.is_weight[source]
            & (placement[source] != placement[self.reader])
        )
        streamed: Bytes = np.zeros(self.ops, dtype=np.int64)
        np.add.at(streamed, self.reader[is_streamed], self.sizes[self.inputs[is_streamed]])
        return streamed

    def required_staging(self, placement: NDArray[np.integer]) -> Bytes:
        """Bytes that a staging buffer on each device must hold: its largest op's weights."""
        required: Bytes = np.zeros(self.devices, dtype=np.int64)
        np.maximum.at(required, placement, self.streamed_bytes(placement))
        return required

    @cached_property
    def has_streamable_weights(self) -> bool:
        """Whether a weight can be on another device than an op that reads it."""
        source = self.producer[self.inputs]
        is_separable = (
            self.is_weight[source]
            & self.scheduled[self.reader]
            & (self.unit[source] != self.unit[self.reader])
        )
        return bool(is_separable.any()) and self.devices > 1

    @cached_property
    def storage_root(self) -> NDArray[np.int64]:
        """The tensor that owns each tensor's memory, through chains of aliases."""
        root = np.where(self.alias >= 0, self.alias, np.arange(len(self.sizes))).astype(np.int64)
        while (parent := root[root]).tobytes() != root.tobytes():
            root = parent
        return root


def pack(
    graph: Graph,
    cluster: Cluster,
    costs: CostModel,
    allowed: Flags,
    colocation_groups: Sequence[Sequence[int]],
    capacity: Bytes,
) -> Arrays:
    """The arrays of a problem.

    Args:
        allowed: Ops × devices: where the constraints allow each op, before colocation.
        colocation_groups: Groups of ops that must share a device, besides the graph's labels.
        capacity: Bytes a plan may use on each device.
    """
    _check_total_bytes(graph, len(cluster))
    ops = graph.ops
    edges = _edges(graph)
    is_weight = _weight_flags(graph)
    scheduled = np.array([op.kind not in (WEIGHT, STATE, INPUT) for op in ops]) & ~is_weight
    unit_head = _unit_heads(graph, is_weight, colocation_groups)
    unit = np.unique(unit_head, return_inverse=True)[1].astype(np.int32)
    unit_allowed = _unit_allowed(graph, unit, allowed)
    links, link_class, channel = _link_classes(cluster)
    compute, transfer = _seconds(graph, cluster, costs, links)
    return Arrays(
        compute=compute,
        allowed=unit_allowed,
        unit=unit,
        unit_head=unit_head,
        leader=_op_leaders(unit, scheduled, edges.first_tensor, edges.first_reader, edges.readers),
        scheduled=scheduled,
        is_weight=is_weight,
        is_resident=is_weight | np.array([op.kind == STATE for op in ops]),
        resident=_resident_bytes(graph),
        workspace=_workspace_bytes(graph, costs),
        **edges._asdict(),
        sizes=tensor_bytes(graph),
        alias=_aliases(graph, edges.first_tensor),
        is_output=_output_flags(graph, edges.first_tensor),
        transfer=transfer,
        link_class=link_class,
        channel=channel,
        capacity=capacity,
        is_host=np.array([device.kind == HOST for device in cluster.devices]),
        issuer=_issuers(cluster),
        launch_overhead=np.array(
            [device.launch_overhead for device in cluster.devices], dtype=np.float64
        ),
    )


class _Edges(NamedTuple):
    """Which op makes and which ops read each tensor; fields as in `Arrays`."""

    first_tensor: Ints
    first_input: Ints
    inputs: Ints
    producer: Ints
    first_reader: Ints
    readers: Ints


def _edges(graph: Graph) -> _Edges:
    ops = graph.ops
    positions = np.arange(len(ops), dtype=np.int32)
    first_tensor = _offsets([len(op.outputs) for op in ops])
    tensors_read = [
        [int(first_tensor[source]) + output for source, output in dict.fromkeys(op.inputs)]
        for op in ops
    ]
    first_input = _offsets([len(tensors) for tensors in tensors_read])
    inputs = np.array([tensor for tensors in tensors_read for tensor in tensors], dtype=np.int32)
    # A stable sort by tensor leaves each tensor's readers in graph order.
    reader = np.repeat(positions, np.diff(first_input))
    return _Edges(
        first_tensor=first_tensor,
        first_input=first_input,
        inputs=inputs,
        producer=np.repeat(positions, np.diff(first_tensor)),
        first_reader=_offsets(np.bincount(inputs, minlength=int(first_tensor[-1]))),
        readers=reader[np.argsort(inputs, kind="stable")],
    )


def _offsets(counts: Sequence[int] | NDArray[np.integer]) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _aliases(graph: Graph, first_tensor: Ints) -> Ints:
    alias = np.full(int(first_tensor[-1]), -1, dtype=np.int32)
    for position, op in enumerate(graph.ops):
        for output, source in op.aliases:
            source_op, source_output = op.inputs[source]
            alias[first_tensor[position] + output] = first_tensor[source_op] + source_output
    return alias


def _output_flags(graph: Graph, first_tensor: Ints) -> Flags:
    is_output = np.zeros(int(first_tensor[-1]), dtype=bool)
    is_output[[int(first_tensor[source]) + output for source, output in graph.outputs or ()]] = True
    return is_output


def _resident_bytes(graph: Graph) -> Bytes:
    resident = [
        op.resident + (sum(op.outputs) if op.kind in (WEIGHT, STATE) else 0) for op in graph.ops
    ]
    return np.array(resident, dtype=np.int64)


def _workspace_bytes(graph: Graph, costs: CostModel) -> Bytes:
    if isinstance(costs, Table):
        return costs.op_workspace(graph)
    return np.array([op.workspace for op in graph.ops], dtype=np.int64)


def _seconds(
    graph: Graph, cluster: Cluster, costs: CostModel, links: Sequence[Link]
) -> tuple[Seconds, Seconds]:
    compute = np.ascontiguousarray(costs.op_seconds(graph, cluster), dtype=np.float64)
    transfer = np.ascontiguousarray(costs.transfer_seconds(graph, links), dtype=np.float64)
    for name, seconds in (("an op", compute), ("a transfer", transfer)):
        is_time = (seconds >= 0) & (seconds <= MAX_SECONDS)
        if not is_time.all():
            raise ProblemError(
                f"{name} would take {float(seconds[~is_time][0])!r} s: expected 0 to "
                f"{MAX_SECONDS:g} s; check the cluster's rates and bandwidths, and the ops' FLOPs"
            )
    return compute, transfer


def _check_total_bytes(graph: Graph, devices: int) -> None:
    """Raise ProblemError unless the bytes of any plan, over all devices, fit 64 bits."""
    total = sum(op.resident + op.workspace + sum(op.outputs) for op in graph.ops)
    if total * devices >= _MAX_TOTAL_BYTES:
        raise ProblemError(
            f"the graph has {total} bytes of tensors, states and workspace: expected less than "
            f"2**62 on all of {devices} devices together; check the ops' sizes"
        )


def _issuers(cluster: Cluster) -> Ints:
    """Issuers are numbered in order of first use."""
    names = dict.fromkeys(device.issuer for device in cluster.devices if device.issuer is not None)
    numbers: dict[str | None, int] = {name: at for at, name in enumerate(names)}
    return np.array([numbers.get(device.issuer, -1) for device in cluster.devices], dtype=np.int32)


def _weight_flags(graph: Graph) -> Flags:
    """Rule 6: weights, and views of weights only."""
    is_weight = np.zeros(len(graph), dtype=bool)
    for position, op in enumerate(graph.ops):
        is_weight_view = (
            op.kind == VIEW and op.inputs and all(is_weight[source] for source, _ in op.inputs)
        )
        is_weight[position] = op.kind == WEIGHT or bool(is_weight_view)
    return is_weight


def _unit_heads(graph: Graph, is_weight: Flags, colocation_groups: Sequence[Sequence[int]]) -> Ints:
    """The first op of each op's unit.

    Ops share a device by label or by constraint; views of weights join their weights, and readers
    of a state join the state.
    """
    sets = DisjointSets(len(graph))
    first_by_label: dict[str, int] = {}
    for position, op in enumerate(graph.ops):
        if op.colocate is not None:
            sets.merge(first_by_label.setdefault(op.colocate, position), position)
        for source, _ in op.inputs:
            if is_weight[position] or graph.ops[source].kind == STATE:
                sets.merge(source, position)
    for group in colocation_groups:
        for member in group:
            sets.merge(group[0], member)
    return np.array([sets.find(op) for op in range(len(graph))], dtype=np.int32)


def _unit_allowed(graph: Graph, unit: Ints, allowed: Flags) -> Flags:
    """Where the whole unit of each op may be."""
    joint = np.ones((int(unit.max()) + 1, allowed.shape[1]), dtype=bool)
    np.logical_and.at(joint, unit, allowed)
    blocked_units = np.flatnonzero(~joint.any(axis=1))
    if len(blocked_units):
        members = [graph.ops[op].name for op in np.flatnonzero(unit == blocked_units[0])]
        member_names = ", ".join(map(repr, members[:4])) + (
            f" and {len(members) - 4} more" if len(members) > 4 else ""
        )
        raise ProblemError(
            f"no device is left for {member_names}: "
            "loosen a pin, a forbidden device or a colocation"
        )
    return joint[unit]


def _op_leaders(
    unit: Ints, scheduled: Flags, first_tensor: Ints, first_reader: Ints, readers: Ints
) -> Ints:
    """A unit is led by its first scheduled op; without one, by the leader of its first reader."""
    positions = np.arange(len(unit))
    no_op = len(unit)
    leader = np.full(int(unit.max()) + 1, no_op)
    np.minimum.at(leader, unit[scheduled], positions[scheduled])
    earliest_reader = np.full(len(leader), no_op)
    tensor_unit = np.repeat(unit, np.diff(first_tensor))
    np.minimum.at(
        earliest_reader,
        np.repeat(tensor_unit, np.diff(first_reader)),
        np.where(scheduled[readers], readers, no_op),
    )
    reader_leader = np.where(
        earliest_reader < no_op, leader[unit[np.minimum(earliest_reader, no_op - 1)]], no_op
    )
    leader = np.where(leader < no_op, leader, reader_leader)
    first_op = np.unique(unit, return_index=True)[1]  # leads a unit that nothing reads
    return np.where(leader < no_op, leader, first_op)[unit].astype(np.int32)


def _link_classes(cluster: Cluster) -> tuple[list[Link], Ints, Ints]:
    """The distinct links, and each device pair's link and channel."""
    size = len(cluster)
    link_class = np.full((size, size), -1, dtype=np.int32)
    channel = np.full((size, size), -1, dtype=np.int32)
    channels = {name: at for at, name in enumerate(cluster.channels)}
    classes: dict[tuple[float | None, ...], int] = {}
    links: list[Link] = []
    for source, source_device in enumerate(cluster.devices):
        for target, target_device in enumerate(cluster.devices):
            if source == target:
                continue
            link = cluster.links[source_device.name, target_device.name]
            key = (link.bandwidth, link.latency, link.pageable_bandwidth, link.handoff_latency)
            if key not in classes:
                classes[key] = len(classes)
                links.append(link)
            link_class[source, target] = classes[key]
            channel[source, target] = channels[link.channel]
    return links, link_class, channel
