"""Memory limits of a placed model: calls that cannot keep them are refused before they run.

A plan is made for a few shapes, and one graph serves all lengths: a longer prompt, or a cache that
has grown, may need more memory than the plan has left. So the peak of a call is simulated before a
graph first runs on sizes that are larger than all before, and with some growth ahead, so that it is
not done for every token.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from placewright.device import HOST
from placewright.errors import ExecutionError
from placewright.graph import INPUT, WEIGHT, Graph, Op
from placewright.plan import Plan
from placewright.problem import Constraints, Problem
from placewright.runtime.planned_calls import choose_plan
from placewright.simulator import simulate
from placewright.workload_plan import unused_staging

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from placewright.cluster import Cluster
    from placewright.runtime.dynamo.backend import PlanBackend
    from placewright.runtime.dynamo.compiled_graph import CompiledGraph

logger = logging.getLogger("placewright")

GROWTH = 1.25
"""A call is checked for sizes this many times as large, if that fits, too."""


@dataclass
class MemoryLimits:
    """Checks the calls of a model against the memory of the devices.

    Args:
        cluster: The devices, with their memory.
        limits: Bytes that may be used, by device, where that is less.
        checked: The largest sizes that are known to fit, by graph, and the bytes that were held.
    """

    cluster: Cluster
    limits: Mapping[str, int]
    checked: WeakKeyDictionary[CompiledGraph, tuple[tuple[int, ...], int]] = field(
        default_factory=WeakKeyDictionary
    )

    def check(self, graph: CompiledGraph, args: Sequence[Any]) -> None:
        """Refuse a call that does not fit.

        Raises:
            ExecutionError: A GPU has too little memory for it; the message has the limit that
                would do.
        """
        sizes = tuple(value for value in args if isinstance(value, int))
        held = sum(tensor.nbytes for tensor in _held_tensors(graph, args))
        known, known_held = self.checked.get(graph, (None, 0))
        if (
            known is not None
            and held <= known_held
            and all(size <= limit for size, limit in zip(sizes, known, strict=True))
        ):
            return
        if sizes:
            grown = [_grown(value) for value in args]
            if self._fits_surely(graph, grown):
                grown_sizes = tuple(value for value in grown if isinstance(value, int))
                self.checked[graph] = grown_sizes, held
                return
        excess = self._excess(graph, args)
        if excess and held:
            graph.backend.release_held(graph)
            held = sum(tensor.nbytes for tensor in _held_tensors(graph, args))
            excess = self._excess(graph, args)
        if excess:
            texts = ", ".join(
                f"{name} needs {needed:,} bytes, and {usable:,} may be used"
                for name, (needed, usable) in excess.items()
            )
            enough = ", ".join(
                f"{name!r}: {self._limit(name) + needed - usable}"
                for name, (needed, usable) in excess.items()
            )
            raise ExecutionError(
                f"this call does not fit: {texts}: place the model with limits={{{enough}}} or "
                "more, or for calls of this size"
            )
        self.checked[graph] = sizes, held

    def _fits_surely(self, graph: CompiledGraph, args: Sequence[Any]) -> bool:
        """Whether a call of other sizes fits; no, if the graph has no form for them."""
        try:
            return not self._excess(graph, args)
        except Exception as error:  # it was traced for one length, as a loop over tokens is
            logger.debug("a graph has no form for larger sizes: %s", error)
            return False

    def of_gpus(self, backend: PlanBackend) -> dict[int, int]:
        """The limit of each GPU, by its number; streams of one GPU share it."""
        limits: dict[int, int] = {}
        for real_device in backend.real_devices:
            if real_device.is_gpu and real_device.name in self.cluster.position:
                limit = self._limit(real_device.name)
                limits[real_device.index] = limits.get(real_device.index, 0) + limit
        return limits

    def _excess(self, graph: CompiledGraph, args: Sequence[Any]) -> dict[str, tuple[int, int]]:
        """The bytes that a call needs and may use, of each GPU that is too small for it."""
        from placewright.runtime.dynamo.compiled_graph import build_graph_program
        from placewright.runtime.dynamo.static_graph import make_static

        assert graph.program is not None
        program = graph.program
        if graph.is_symbolic:
            program = build_graph_program(make_static(graph.module, args), graph.inputs)
        planned = choose_plan(graph.backend.planned_calls, program.graph)
        whole = _with_other_weights(program.graph, graph)
        devices = dict(zip(graph.backend.plan.ops, graph.backend.plan.placement, strict=True))
        placement = [
            *planned.placement.tolist(),
            *(int(devices[op.name]) for op in whole.ops[len(planned) :]),
        ]
        inputs = {  # what a forward graph saves for its backward graph stays on its device
            op.name: planned.device_names[device]
            for op, device in zip(whole.ops, placement, strict=True)
            if op.kind == INPUT
        }
        constraints = Constraints(pins=inputs, limits=self.limits)
        problem = Problem(whole, self.cluster, constraints=constraints)
        priority = planned.priority
        if priority is not None:  # weights are no part of a step
            priority = np.append(priority, np.zeros(len(whole) - len(planned)))
        timeline = simulate(problem, Plan.of(problem, placement, priority, staging=planned.staging))
        excess = {}
        real_devices = {device.name: device for device in graph.backend.real_devices}
        held = _held_tensors(graph, args)
        plans = [planned, *(call.plan for call in graph.backend.planned_calls)]
        unused = dict(zip(planned.device_names, unused_staging(plans)[0], strict=True))
        for device, peak in zip(self.cluster.devices, timeline.peak.tolist(), strict=True):
            peak += unused.get(device.name, 0)
            if device.name in real_devices:
                torch_device = real_devices[device.name].torch_device
                peak += sum(tensor.nbytes for tensor in held if tensor.device == torch_device)
            usable = self._limit(device.name) - device.reserve
            if device.kind != HOST and peak > usable:
                excess[device.name] = int(peak), usable
        return excess

    def _limit(self, name: str) -> int:
        memory = self.cluster.devices[self.cluster.position[name]].memory
        return min(self.limits.get(name, memory), memory)


def _held_tensors(graph: CompiledGraph, args: Sequence[Any]) -> list[torch.Tensor]:
    """What lies in a GPU's memory during a call, and is neither an argument nor a weight."""
    addresses = {value.data_ptr() for value in args if hasattr(value, "data_ptr")}
    return [
        tensor
        for tensors in graph.backend.held_tensors
        for tensor in tensors()
        if tensor.device.type != "cpu" and tensor.data_ptr() not in addresses
    ]


def _grown(value: Any) -> Any:
    """An argument of a call with larger sizes: its numbers say the shapes of its tensors."""
    return int(value * GROWTH) if isinstance(value, int) and value > 1 else value


def _with_other_weights(graph: Graph, compiled: CompiledGraph) -> Graph:
    """The graph with the model's other weights, which occupy their device, too."""
    known, placed = set(graph.position), set(compiled.backend.plan.ops)
    storages: set[int] = set()
    tensors = compiled.backend.named_tensors()
    for name, tensor in tensors:
        if name in known and tensor.numel():
            storages.add(tensor.untyped_storage()._cdata)
    others = []
    for name, tensor in tensors:
        storage = tensor.untyped_storage()._cdata
        if name not in known and name in placed and storage not in storages and tensor.numel():
            dtype = str(tensor.dtype).removeprefix("torch.")
            others.append(Op(name, WEIGHT, (), (tensor.nbytes,), dtype=dtype))
            storages.add(storage)
    return Graph(graph.name, (*graph.ops, *others), graph.outputs) if others else graph
