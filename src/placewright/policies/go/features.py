"""Features of a problem's units for GO, in named blocks: kinds, edges, times, bytes and order.

Seconds are relative to a mean unit's on its fastest device, bytes to a device's memory.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from placewright.policies.go.initial_plans import layer_index
from placewright.scheduling.ranks import mean_transfer

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays

KIND_BUCKETS = 64
"""An op's kind is a checksum of its name modulo this, so that no kind is unknown."""
UNIT_WIDTH, GRAPH_WIDTH, DEVICE_WIDTH = 28, 8, 6
"""The number of features of a unit, of a graph, and of a device."""
WINDOWS = (32, 6)
"""Windows of the order in which loads are compared: one part in 32, and in 6, of all work."""
_PHASES = {"forward": 0, "backward": 1, "update": 2}
_FREQUENCIES = (1, 2, 4, 8)  # of the waves that encode a unit's position among the layers
Array = Any  # a numpy array, or a tensor after `to_tensors`
_Block = TypeVar("_Block")


@dataclass(frozen=True, eq=False)
class EdgeFeatures:
    """Tensors that pass between units.

    Args:
        source, target: Edges: the units.
        seconds: Link classes × edges: the transfer on a link of each class.
        seconds_or_none: The same, and a last row of zeros for no transfer.
        weight: Edges: the mean transfer, and a little for each edge.
        class_masks: Link classes × devices × devices: whether a link is of that class.
        link_class: Devices × devices: the row of `seconds_or_none` of each link.
    """

    source: Array
    target: Array
    seconds: Array
    seconds_or_none: Array
    weight: Array
    class_masks: Array
    link_class: Array


@dataclass(frozen=True, eq=False)
class ComputeFeatures:
    """Work of units.

    Args:
        seconds: Units × devices.
        slowdown: Units × devices: the logarithm of the time relative to the fastest device.
        scale: Units: time on the fastest device and of mean transfers.
        fair_share: The time if all devices had an equal share of the work.
    """

    seconds: Array
    slowdown: Array
    scale: Array
    fair_share: Array


@dataclass(frozen=True, eq=False)
class WindowFeatures:
    """The order of a list schedule, and for each unit windows of it around the unit.

    Args:
        order: Units by falling rank.
        low, high: Windows × units: the positions between which a window lies.
        span: Windows × units: the work in it on the fastest devices.
    """

    order: Array
    low: Array
    high: Array
    span: Array


@dataclass(frozen=True, eq=False)
class MemoryFeatures:
    """Bytes of units, relative to a device's memory.

    Args:
        resident: Units: weights and other resident bytes.
        output: Units: the outputs, from the unit to its last reader.
        last_reader: Units: the last unit that reads an output.
        capacity: Devices.
    """

    resident: Array
    output: Array
    last_reader: Array
    capacity: Array


@dataclass(frozen=True, eq=False)
class UnitFeatures:
    """All that the network reads of a problem.

    Args:
        kind: Units: the bucket of the kind of the slowest op.
        unit: Units × `UNIT_WIDTH`.
        graph: `GRAPH_WIDTH` numbers.
        device: Devices × `DEVICE_WIDTH`.
        legal: Units × devices.
    """

    kind: Array
    unit: Array
    graph: Array
    device: Array
    legal: Array
    edges: EdgeFeatures
    compute: ComputeFeatures
    windows: WindowFeatures
    memory: MemoryFeatures


def to_tensors(block: _Block, torch_device: torch.device) -> _Block:
    """A block of features with tensors on a device instead of arrays; floats are float32."""
    import torch

    values: dict[str, Any] = {}
    for item in fields(block):  # type: ignore[arg-type]
        value = getattr(block, item.name)
        if is_dataclass(value):
            values[item.name] = to_tensors(value, torch_device)
        else:
            dtype = torch.float32 if value.dtype.kind == "f" else None
            values[item.name] = torch.as_tensor(value, dtype=dtype, device=torch_device)
    return type(block)(**values)


@dataclass(frozen=True, eq=False)
class _Units:
    """The units of a problem, with figures that several blocks need.

    Args:
        fastest: Units: seconds on the fastest device.
        rank, path_before: Ops: the mean longest path to the end of the graph, and from its start.
        edges: Edges: source and target unit, and the tensor.
    """

    problem: Problem
    unit: NDArray[np.int64]
    leader: NDArray[np.int64]
    legal: NDArray[np.bool_]
    seconds: NDArray[np.float64]
    mean_seconds: float
    fastest: NDArray[np.float64]
    rank: NDArray[np.float64]
    path_before: NDArray[np.float64]
    edges: tuple[NDArray[np.int64], ...]

    def __len__(self) -> int:
        return len(self.leader)

    @cached_property
    def mean_transfers(self) -> NDArray[np.float64]:
        """Edges: the mean transfer over links."""
        return mean_transfer(self.problem.arrays)[self.edges[2]] / self.mean_seconds

    @cached_property
    def device_seconds(self) -> NDArray[np.float64]:
        """Devices: all work that is legal there."""
        return np.where(self.legal, self.seconds, 0).sum(axis=0)

    @cached_property
    def longest_path(self) -> float:
        return max(float((self.rank + self.path_before).max()), 1e-30)

    @cached_property
    def resident(self) -> NDArray[np.float64]:
        """Units: resident bytes."""
        return _sums(self.unit, self.problem.arrays.resident, len(self))

    @cached_property
    def output_bytes(self) -> NDArray[np.float64]:
        """Units: bytes of outputs that are no aliases."""
        a = self.problem.arrays
        tensor_bytes = np.where((a.alias < 0) & ~a.is_resident[a.producer], a.sizes, 0)
        return _sums(self.unit[a.producer], tensor_bytes, len(self))

    @cached_property
    def device_memory(self) -> float:
        """The mean memory of a device; of the accelerators, if there are any."""
        a = self.problem.arrays
        mean = a.capacity[~a.is_host].mean() if (~a.is_host).any() else a.capacity.mean()
        return max(float(mean), 1.0)

    @cached_property
    def capacity(self) -> NDArray[np.float64]:
        return np.maximum(self.problem.arrays.capacity.astype(float), 1.0)


def unit_features(
    problem: Problem,
    unit: NDArray[np.int64],
    leader: NDArray[np.int64],
    legal: NDArray[np.bool_],
    seconds: NDArray[np.float64],
    path_lengths: tuple[NDArray[np.float64], NDArray[np.float64]],
    mean_seconds: float,
) -> UnitFeatures:
    """All that the network reads of a problem whose ops are in these units."""
    fastest = np.where(legal, seconds, np.inf).min(axis=1)
    units = _Units(
        *(problem, unit, leader, legal, seconds, mean_seconds, fastest),
        *path_lengths,
        _unit_edges(problem.arrays, unit),
    )
    transfers = units.mean_transfers
    source, target, _ = units.edges
    input_seconds = _sums(target, transfers, len(units))
    output_seconds = _sums(source, transfers, len(units))
    scale = fastest / mean_seconds + input_seconds + output_seconds
    return UnitFeatures(
        kind=_kind_buckets(units),
        unit=_unit_block(units, input_seconds, output_seconds),
        graph=_graph_block(units, transfers),
        device=_device_block(units),
        legal=legal,
        edges=_edge_features(units, transfers),
        compute=_compute_features(units, scale),
        windows=_window_features(units),
        memory=_memory_features(units),
    )


def _unit_block(
    units: _Units, input_seconds: NDArray[np.float64], output_seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Units × `UNIT_WIDTH`."""
    problem, a, count = units.problem, units.problem.arrays, len(units)
    source, target, _ = units.edges
    memory, longest, mean_seconds = units.device_memory, units.longest_path, units.mean_seconds
    workspace = np.zeros(count)
    np.maximum.at(workspace, units.unit, a.workspace)
    slowest = np.where(units.legal, units.seconds, 0).max(axis=1)
    slowdown = slowest / np.maximum(units.fastest, 1e-3 * mean_seconds)
    leader, rank, path_before = units.leader, units.rank, units.path_before
    columns = [
        np.log1p(units.fastest / mean_seconds),
        np.log1p(input_seconds),
        np.log1p(output_seconds),
        np.log1p(units.resident * count / memory),
        np.log1p(units.output_bytes * count / memory),
        np.log1p(workspace * count / memory),
        np.log1p(np.bincount(target, minlength=count)),
        np.log1p(np.bincount(source, minlength=count)),
        path_before[leader] / longest,
        rank[leader] / longest,
        1 - (path_before + rank)[leader] / longest,
        np.arange(count) / count,
        *_phase_shares(problem, units.unit).T,
        (units.legal.sum(axis=1) == 1).astype(float),
        np.log1p(np.bincount(units.unit, a.scheduled, count)),
        np.log(np.maximum(slowdown, 1.0)),
        *_layer_features(problem)[:, leader],
    ]
    return np.stack(columns, axis=1)


def _graph_block(units: _Units, transfers: NDArray[np.float64]) -> NDArray[np.float64]:
    """`GRAPH_WIDTH` numbers."""
    problem, a = units.problem, units.problem.arrays
    total, capacity = units.fastest.sum(), units.capacity
    needed_bytes = units.resident.sum() + units.output_bytes.sum()
    return np.array(
        [
            np.log(len(units)) / 10,
            np.log(a.devices),
            np.log1p(transfers.sum() / max(total / units.mean_seconds, 1e-9)),
            np.log1p(
                needed_bytes / capacity[~a.is_host].sum()
                if (~a.is_host).any()
                else needed_bytes / capacity.sum()
            ),
            np.log(max(total / units.longest_path, 1e-3)),
            float(problem.discipline == "ready"),
            float(problem.objective == "period"),
            float((~a.is_host).sum() / a.devices),
        ]
    )


def _device_block(units: _Units) -> NDArray[np.float64]:
    """Devices × `DEVICE_WIDTH`."""
    a, legal, device_seconds = units.problem.arrays, units.legal, units.device_seconds
    fastest = max(float(device_seconds[device_seconds > 0].min(initial=np.inf)), 1e-30)
    speed = np.log(np.maximum(device_seconds, 1e-30) / fastest)
    speed = np.clip(np.nan_to_num(speed, neginf=0.0), 0.0, 8.0)
    needed_bytes = units.resident.sum() + units.output_bytes.sum()
    link_seconds = _mean_link_seconds(a, units.edges[2]) / units.mean_seconds
    columns = [
        speed,
        a.is_host.astype(float),
        np.log1p(units.capacity / max(needed_bytes / a.devices, 1.0)),
        np.log1p(link_seconds),
        np.full(a.devices, 1 / a.devices),
        (np.where(legal.any(axis=0), legal.mean(axis=0), 0.0)),
    ]
    return np.stack(columns, axis=1)


def _edge_features(units: _Units, transfers: NDArray[np.float64]) -> EdgeFeatures:
    a, (source, target, tensor) = units.problem.arrays, units.edges
    seconds = (
        a.transfer[:, tensor] if len(a.transfer) else np.zeros((1, len(tensor)))
    ) / units.mean_seconds
    mean_weight = float(transfers.mean()) if len(source) else 0.0
    return EdgeFeatures(
        source=source,
        target=target,
        seconds=seconds,
        seconds_or_none=np.vstack([seconds, np.zeros((1, len(tensor)))]),
        weight=transfers + 0.1 * max(mean_weight, 1e-6),
        class_masks=_link_class_masks(a),
        link_class=np.where(a.link_class < 0, len(seconds), a.link_class).astype(np.int64),
    )


def _compute_features(units: _Units, scale: NDArray[np.float64]) -> ComputeFeatures:
    mean_seconds, device_seconds = units.mean_seconds, units.device_seconds
    rates = 1 / np.maximum(device_seconds[device_seconds > 0], 1e-30)
    fair_share = 1 / max(float(rates.sum()), 1e-30)
    floor = 1e-3 * mean_seconds
    return ComputeFeatures(
        seconds=units.seconds / mean_seconds,
        slowdown=np.log(
            np.maximum(units.seconds, floor) / np.maximum(units.fastest, floor)[:, None]
        ),
        scale=np.maximum(scale, 1e-2),
        fair_share=np.array(fair_share / mean_seconds),
    )


def _window_features(units: _Units) -> WindowFeatures:
    count, total = len(units), units.fastest.sum()
    order = np.argsort(-units.rank[units.leader], kind="stable")
    work = units.fastest[order] + 1e-6 * max(total, 1e-30)
    midpoints = np.cumsum(work) - work / 2
    low, high = np.zeros((2, len(WINDOWS), count), np.int64)
    span = np.zeros((len(WINDOWS), count))
    boundaries = np.append(0.0, np.cumsum(work))
    for window, parts in enumerate(WINDOWS):
        half_width = work.sum() / parts / 2
        low[window, order] = np.searchsorted(midpoints, midpoints - half_width)
        high[window, order] = np.searchsorted(midpoints, midpoints + half_width, side="right")
        span[window] = boundaries[high[window]] - boundaries[low[window]]
    return WindowFeatures(order.astype(np.int64), low, high, span / units.mean_seconds)


def _memory_features(units: _Units) -> MemoryFeatures:
    a, memory = units.problem.arrays, units.device_memory
    source, target, _ = units.edges
    last_reader = np.arange(len(units))
    np.maximum.at(last_reader, source, target)
    last_reader[units.unit[a.producer[a.is_output]]] = len(units) - 1
    return MemoryFeatures(
        resident=units.resident / memory,
        output=units.output_bytes / memory,
        last_reader=last_reader.astype(np.int64),
        capacity=units.capacity / memory,
    )


def _kind_buckets(units: _Units) -> NDArray[np.int64]:
    """Units: the bucket of the kind of the slowest op."""
    ops = units.problem.graph.ops
    slowest = _slowest_op(units.problem.arrays, units.unit, units.leader)
    kinds = [zlib.crc32(ops[op].kind.encode()) % KIND_BUCKETS for op in slowest.tolist()]
    return np.array(kinds, dtype=np.int64)


def _sums(index: NDArray[np.int64], weights: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Of each index the sum of its weights."""
    return np.bincount(index, weights, count).astype(np.float64)


def _fastest_seconds(a: Arrays) -> NDArray[np.float64]:
    """Ops: seconds on the fastest device."""
    return np.where(a.scheduled, a.compute.min(axis=1), 0.0)


def _slowest_op(a: Arrays, unit: NDArray[np.int64], leader: NDArray[np.int64]) -> NDArray[np.int64]:
    """Units: the slowest op, or the leader where no op takes time."""
    work = _fastest_seconds(a)
    order = np.lexsort((work, unit))
    last = np.append(np.flatnonzero(np.diff(unit[order])), len(order) - 1)
    longest = order[last]
    return np.where(work[longest] > 0, longest, leader)


def _phase_shares(problem: Problem, unit: NDArray[np.int64]) -> NDArray[np.float64]:
    """Units × phases: the shares of a unit's work."""
    a = problem.arrays
    phase = np.array([_PHASES.get(str(op.phase), 0) for op in problem.graph.ops], dtype=np.int64)
    work = _fastest_seconds(a) + 1e-15
    share = np.zeros((int(unit.max()) + 1, len(_PHASES)))
    np.add.at(share, (unit, phase), work)
    shares: NDArray[np.float64] = share / share.sum(axis=1, keepdims=True)
    return shares


def _layer_features(problem: Problem) -> NDArray[np.float64]:
    """Numbers × ops: the position of each among the layers, by the work before it.

    As a share of all work, as waves so that neighbours differ, and within the part that a device
    would have if all had equal ones.
    """
    a = problem.arrays
    _, group = np.unique(layer_index(problem), return_inverse=True)
    work = np.bincount(group, _fastest_seconds(a)) + 1e-15
    progress = ((np.cumsum(work) - work / 2) / work.sum())[group]
    accelerators = int((~a.is_host).sum()) or a.devices
    encodings = [
        function(2 * np.pi * frequency * progress)
        for frequency in _FREQUENCIES
        for function in (np.sin, np.cos)
    ]
    return np.stack([progress, *encodings, progress * accelerators % 1])


def _unit_edges(a: Arrays, unit: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Edges, each once: source unit, target unit, tensor."""
    tensor = a.inputs.astype(np.int64)
    source, target = unit[a.producer[tensor]], unit[a.reader]
    crossing = np.flatnonzero(source != target)
    _, first_edge = np.unique(target[crossing] * len(a.sizes) + tensor[crossing], return_index=True)
    distinct = crossing[first_edge]
    return source[distinct], target[distinct], tensor[distinct]


def _link_class_masks(a: Arrays) -> NDArray[np.float64]:
    """Link classes × devices × devices: whether a link is of that class."""
    count = max(len(a.transfer), 1)
    masks: NDArray[np.float64] = (a.link_class[None] == np.arange(count)[:, None, None]).astype(
        float
    )
    return masks


def _mean_link_seconds(a: Arrays, tensor: NDArray[np.int64]) -> NDArray[np.float64]:
    """Devices: the mean transfer of a tensor on the links of each device."""
    seconds = np.zeros(a.devices)
    if len(tensor) and len(a.transfer):
        class_seconds = a.transfer[:, tensor].mean(axis=1)
        for device in range(a.devices):
            links = np.append(a.link_class[device], a.link_class[:, device])
            links = links[links >= 0]
            seconds[device] = class_seconds[links].mean() if len(links) else 0.0
    return seconds
