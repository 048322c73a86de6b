"""Cost models: seconds of each op on each device and of each tensor over each link."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ProblemError
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph
from placewright.units import MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.cluster import Cluster
    from placewright.device import Device, Link
    from placewright.graph import Tensor

Seconds = NDArray[np.float64]
FREE_KINDS = frozenset({WEIGHT, STATE, INPUT, VIEW})
"""Kinds that take no time on any device."""
NOT_MEASURED = -1.0
"""The spread of seconds that were derived from those of other ops."""


class CostModel(Protocol):
    """Anything that says how long ops and transfers take."""

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        """Seconds of each op on each device, launch overhead included."""
        ...

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        """Seconds of each tensor (in graph order) over each of these links, link by link."""
        ...

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        """The parts of a fused group's time (rule 9)."""
        ...


@dataclass(frozen=True, eq=False)
class FusedParts:
    """The parts of a fused group's time, op by op (rule 9).

    A group takes head + max(work, bytes / rate) on a device, and no more than its members one by
    one: its head is one launch overhead, or its longest member where that is shorter; its work is
    that of its members, added up; its bytes are what its members move, but for tensors made and
    read inside it.

    Args:
        unfused: Ops × devices: seconds of each op by itself.
        work: Ops × devices: seconds that an op adds to any group.
        bytes_moved: Ops: bytes read from and written to memory, where the model counts them.
        free: Ops: those that only pass on what they read, as views do.
        memory_bandwidth: Devices: bytes moved per second.
        launch_overhead: Devices: seconds of a launch.
    """

    unfused: Seconds
    work: Seconds
    bytes_moved: NDArray[np.int64]
    free: NDArray[np.bool_]
    memory_bandwidth: Seconds
    launch_overhead: Seconds

    def seconds(self, graph: Graph, groups: Sequence[Sequence[int]]) -> Seconds:
        """Seconds of each group of ops, fused into one, on each device."""
        group_seconds = np.empty((len(groups), len(self.memory_bandwidth)))
        for row, group in enumerate(groups):
            unfused, work, longest = (np.zeros(len(self.memory_bandwidth)) for _ in range(3))
            for op in sorted(group):  # one by one: kernels add in this order too
                unfused += self.unfused[op]
                work += self.work[op]
                longest = np.maximum(longest, self.unfused[op])
            overhead = np.minimum(longest, self.launch_overhead)
            memory_seconds = float(self._bytes_left(graph, sorted(group))) / self.memory_bandwidth
            group_seconds[row] = np.minimum(overhead + np.maximum(work, memory_seconds), unfused)
        return group_seconds

    def _bytes_left(self, graph: Graph, group: Sequence[int]) -> int:
        """Bytes that a group, in graph order, still moves.

        A read is saved if the tensor was made inside, also through views. A write is saved
        if the tensor is read inside and neither it nor a view of it is needed outside, and if it is
        not the memory of a tensor from outside. One op never saves more than it moved.
        """
        members = set(group)
        internal: set[int] = set()  # ops whose outputs are data made inside
        external: set[Tensor] = set()  # tensors that are the memory of one from outside
        for at in group:
            sources = graph.ops[at].inputs
            if not self.free[at] or (sources and all(source in internal for source, _ in sources)):
                internal.add(at)
            for output, viewed in dict(graph.ops[at].aliases).items():
                if sources[viewed][0] not in members or sources[viewed] in external:
                    external.add((at, output))
        escaping_views: set[int] = set()  # views that are needed outside

        def is_written(tensor: Tensor) -> bool:
            readers = graph.readers.get(tensor, ())
            return graph.escapes(tensor, members) or any(
                reader in escaping_views for reader in readers
            )

        total = 0
        for at in reversed(group):
            op = graph.ops[at]
            own_outputs = [(at, output) for output in range(len(op.outputs))]
            if self.free[at]:
                if any(is_written(tensor) for tensor in own_outputs):
                    escaping_views.add(at)
                continue
            op_bytes = int(self.bytes_moved[at])
            op_bytes -= sum(
                graph.ops[s].outputs[output] for s, output in op.inputs if s in internal
            )
            op_bytes -= sum(
                op.outputs[tensor[1]]
                for tensor in own_outputs
                if tensor in graph.readers and tensor not in external and not is_written(tensor)
            )
            total += max(op_bytes, 0)
        return total


def tensor_bytes(graph: Graph) -> NDArray[np.int64]:
    """Bytes of every tensor, op by op."""
    return np.array([size for op in graph.ops for size in op.outputs], dtype=np.int64)


def _link_seconds(graph: Graph, links: Sequence[Link]) -> Seconds:
    """Latency + bytes / bandwidth (rule 5)."""
    sizes = tensor_bytes(graph).astype(np.float64)
    is_resident = np.repeat(
        [op.kind in (WEIGHT, STATE) for op in graph.ops], [len(op.outputs) for op in graph.ops]
    ).astype(bool)
    with np.errstate(over="ignore"):  # what takes for ever is refused in a sentence later
        seconds = [
            np.where(
                is_resident | (link.handoff_latency is None),
                link.latency,
                link.handoff_latency or 0.0,
            )
            + sizes
            / np.where(
                is_resident | (link.pageable_bandwidth is None),
                link.bandwidth,
                link.pageable_bandwidth or 1.0,
            )
            for link in links
        ]
    return np.array(seconds, dtype=np.float64).reshape(len(links), len(sizes))


@dataclass(frozen=True)
class Roofline:
    """The larger of arithmetic and memory traffic, plus the launch overhead (Williams et al. 2009).

    Args:
        compute: Share of the data sheet's FLOP/s that real kernels reach.
        memory: Share of the data sheet's memory bandwidth that they reach.
    """

    compute: float = 0.6
    memory: float = 0.8

    def __post_init__(self) -> None:
        for share in (self.compute, self.memory):
            if not 0 < share <= 1:
                raise ProblemError(
                    f"a roofline share is {share!r}: expected more than 0, at most 1"
                )

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        for device in cluster.devices:
            _check_figures(device)
        bytes_moved = np.array([op.bytes_moved for op in graph.ops], dtype=np.float64)
        free = np.array([op.kind in FREE_KINDS for op in graph.ops])
        seconds = self._compute_seconds(graph, cluster)
        for column, device in enumerate(cluster.devices):
            with np.errstate(over="ignore"):
                work = np.maximum(
                    seconds[:, column], bytes_moved / (device.memory_bandwidth * self.memory)
                )
            seconds[:, column] = np.where(free, 0.0, device.launch_overhead + work)
        return seconds

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        return _link_seconds(graph, links)

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        """Rule 9: one launch, and tensors made and read inside never touch memory."""
        bytes_moved = np.array([op.bytes_moved for op in graph.ops], dtype=np.int64)
        free = np.array([op.kind in FREE_KINDS for op in graph.ops])
        memory_bandwidth = np.array(
            [device.memory_bandwidth * self.memory for device in cluster.devices]
        )
        return FusedParts(
            unfused=self.op_seconds(graph, cluster),
            work=np.where(free[:, None], 0.0, self._compute_seconds(graph, cluster)),
            bytes_moved=np.where(free, 0, bytes_moved),
            free=free,
            memory_bandwidth=memory_bandwidth,
            launch_overhead=np.array([device.launch_overhead for device in cluster.devices]),
        )

    def fused_seconds(
        self, graph: Graph, cluster: Cluster, groups: Sequence[Sequence[int]]
    ) -> Seconds:
        """Seconds of each group of ops, fused into one, on each device."""
        return self.fused_parts(graph, cluster).seconds(graph, groups)

    def _compute_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        """Seconds of arithmetic."""
        flops = np.array([op.flops for op in graph.ops], dtype=np.float64)
        dtypes = sorted({op.dtype for op in graph.ops})
        dtype_number = {dtype: number for number, dtype in enumerate(dtypes)}
        dtype = np.array([dtype_number[op.dtype] for op in graph.ops])
        seconds = np.empty((len(graph), len(cluster)))
        for column, device in enumerate(cluster.devices):
            rates = np.array([device.rate(name) for name in dtypes])[dtype]
            with np.errstate(over="ignore"):  # what takes for ever is refused in a sentence later
                seconds[:, column] = flops / (rates * self.compute)
        return seconds


@dataclass(frozen=True, eq=False)
class Table:
    """Seconds op by op, measured or supplied.

    Args:
        ops: Names of the rows.
        columns: What each column is for: a device's name, model or kind, matched in that order.
        seconds: Rows × columns.
        transfers: Seconds of each tensor over any link, in graph order; None: bytes over bandwidth.
        measured_on: With a single column, the device of the measurement; others scale by rates.
        issue: Rows × columns: seconds that a host needs to launch the op; the op takes no less.
        spread: Rows × columns: how far measurements lie apart, as a share of their median, or
            `NOT_MEASURED` where the seconds were derived from those of other ops.
        machine: The key of the measured machine (`Machine.key`).
        workspace: Rows: bytes that an op needs besides its outputs while it runs, on the device
            where it needs most.
    """

    ops: tuple[str, ...]
    columns: tuple[str, ...]
    seconds: Seconds
    transfers: Seconds | None = None
    measured_on: Device | None = None
    issue: Seconds | None = None
    spread: Seconds | None = None
    machine: str = ""
    workspace: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        seconds = np.asarray(self.seconds, dtype=np.float64)
        if seconds.shape != (len(self.ops), len(self.columns)):
            raise ProblemError(
                f"the cost table has shape {seconds.shape}: expected {len(self.ops)} ops x "
                f"{len(self.columns)} columns"
            )
        _check_seconds("the cost table", seconds)
        object.__setattr__(self, "seconds", seconds)
        if self.transfers is not None:
            object.__setattr__(self, "transfers", np.asarray(self.transfers, dtype=np.float64))
            _check_seconds("the transfer table", self.transfers)
        for name in ("issue", "spread"):
            values = getattr(self, name)
            if values is not None:
                array = np.asarray(values, dtype=np.float64)
                if array.shape != seconds.shape:
                    raise ProblemError(
                        f"the cost table's {name} has shape {array.shape}: "
                        f"expected {seconds.shape}, as its seconds"
                    )
                object.__setattr__(self, name, array)
        if self.issue is not None:
            _check_seconds("the cost table's issue", self.issue)
        if self.workspace is not None:
            workspace = np.asarray(self.workspace, dtype=np.int64)
            if workspace.shape != (len(self.ops),) or (workspace < 0).any():
                raise ProblemError(
                    f"the cost table's workspace has shape {workspace.shape}: expected one number "
                    f">= 0 for each of {len(self.ops)} ops"
                )
            object.__setattr__(self, "workspace", workspace)

    def for_cuda_graphs(self) -> Table:
        """The same table for a runtime that launches ops without a host, as CUDA graphs do."""
        return replace(self, issue=None)

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        row = {name: at for at, name in enumerate(self.ops)}
        missing = [op.name for op in graph.ops if op.name not in row]
        if missing:
            raise ProblemError(
                f"the cost table has no row for op {missing[0]!r} ({len(missing)} ops miss): "
                "measure it"
            )
        rows = np.array([row[op.name] for op in graph.ops])
        return np.stack(
            [self._device_seconds(graph, device)[rows] for device in cluster.devices], axis=1
        )

    def op_workspace(self, graph: Graph) -> NDArray[np.int64]:
        """Bytes that each op needs while it runs, from the graph or from a measurement."""
        graph_workspace = np.array([op.workspace for op in graph.ops], dtype=np.int64)
        if self.workspace is None:
            return graph_workspace
        row = {name: at for at, name in enumerate(self.ops)}
        return np.maximum(graph_workspace, self.workspace[[row[op.name] for op in graph.ops]])

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        if self.transfers is None:
            return _link_seconds(graph, links)
        tensors = sum(len(op.outputs) for op in graph.ops)
        if len(self.transfers) != tensors:
            raise ProblemError(
                f"the transfer table has {len(self.transfers)} rows: "
                f"the graph has {tensors} tensors"
            )
        return np.tile(self.transfers, (len(links), 1))

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        """Rule 9: with measured costs only the inner launch overheads go."""
        seconds = self.op_seconds(graph, cluster)
        launch_overhead = np.array([device.launch_overhead for device in cluster.devices])
        return FusedParts(
            unfused=seconds,
            work=np.maximum(seconds - launch_overhead, 0.0),  # what takes no time has no launch
            bytes_moved=np.zeros(len(graph), dtype=np.int64),
            free=np.array([op.kind in FREE_KINDS for op in graph.ops]),
            memory_bandwidth=np.full(len(cluster), np.inf),
            launch_overhead=launch_overhead,
        )

    def fused_seconds(
        self, graph: Graph, cluster: Cluster, groups: Sequence[Sequence[int]]
    ) -> Seconds:
        """Seconds of each group of ops, fused into one, on each device."""
        return self.fused_parts(graph, cluster).seconds(graph, groups)

    def _device_seconds(self, graph: Graph, device: Device) -> Seconds:
        for label in (device.name, device.model, device.kind):
            if label in self.columns:
                column = self.columns.index(label)
                if self.issue is None:
                    return self.seconds[:, column]
                seconds: Seconds = np.maximum(self.seconds[:, column], self.issue[:, column])
                return seconds
        if self.measured_on is not None and len(self.columns) == 1:
            for rated_device in (self.measured_on, device):
                if not rated_device.rates:
                    raise ProblemError(
                        f"device {rated_device.name!r} has no rates, so the cost table cannot be "
                        "scaled to it: add them"
                    )
            dtype = {op.name: op.dtype for op in graph.ops}
            factor = [
                self.measured_on.rate(dtype[name]) / device.rate(dtype[name])
                if name in dtype
                else 1.0
                for name in self.ops
            ]
            scaled: Seconds = self.seconds[:, 0] * np.array(factor)
            return scaled
        raise ProblemError(
            f"the cost table has no column for device {device.name!r} (model {device.model!r}, "
            f"kind {device.kind!r}); its columns are {', '.join(self.columns)}"
        )


def _check_figures(device: Device) -> None:
    """Refuse a device on which some ops would take no time, so that every plan would use it."""
    missing = [
        name
        for name, is_missing in (
            ("rates", not device.rates),
            ("memory bandwidth", math.isinf(device.memory_bandwidth)),
        )
        if is_missing
    ]
    if missing:
        raise ProblemError(
            f"device {device.name!r} has no {' and no '.join(missing)}, so its ops would take no "
            "time: add rates = { float32 = 1e12 } (FLOP/s) and memory_bandwidth = 80e9 (bytes per "
            "second) with its own figures, name a preset, or give measured costs"
        )


def _check_seconds(subject: str, seconds: Seconds) -> None:
    is_time = (seconds >= 0) & (seconds <= MAX_SECONDS)
    if not is_time.all():
        raise ProblemError(
            f"{subject} holds {float(seconds[~is_time][0])!r} seconds: "
            f"expected 0 to {MAX_SECONDS:g}"
        )
