"""Compiles a plan into the instructions of each device: ops, transfers, frees.

This is pure bookkeeping, done once. Tensors are known by (op, output), as in the graph.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from placewright.errors import PlanError, nearest
from placewright.graph import INPUT, STATE, VIEW, WEIGHT
from placewright.runtime.cuda.graph_memory import large_output_ops, large_transfer_ops
from placewright.runtime.in_place import find_writes
from placewright.runtime.staging_layout import StagedCopy, allocate_staging
from placewright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from placewright.graph import Graph, Tensor
    from placewright.plan import Plan
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice
    from placewright.runtime.staging_layout import Staging

ENV, RESIDENT, STAGED = 0, 1, 2
"""Where an input is: computed or received in this step, resident, or staged."""


@dataclass
class Instruction:
    """How a device runs one op.

    Args:
        inputs: Where each input is: (`ENV`, tensor), (`RESIDENT`, tensor) or (`STAGED`, copy).
        remote_inputs: Those of them that come from other devices, and that no earlier op here read.
        sends: (output, device) of the outputs that go to other devices after it has run.
        frees: Tensors that no later op on this device reads.
        waits_for: Ops on other devices that must have read the memory that this one changes.
        notifies: Devices with an op that waits until this one has read.
        in_place: Whether it writes into its inputs.
        large_output: Whether it computes, or is a view of, a large output
            (`runtime/cuda/graph_memory.py`).
        large_transfer: Whether it reads or computes a large tensor that goes from device to device,
            or shares a large tensor with such an op.
    """

    position: int
    inputs: list[tuple[int, Any]]
    remote_inputs: list[Tensor] = field(default_factory=list)
    sends: list[tuple[int, int]] = field(default_factory=list)
    frees: list[Tensor] = field(default_factory=list)
    waits_for: list[int] = field(default_factory=list)
    notifies: list[int] = field(default_factory=list)
    in_place: bool = False
    large_output: bool = False
    large_transfer: bool = False


@dataclass
class DeviceInstructions:
    """What one device does in a step.

    Args:
        sequence: Its ops, in order.
        resident: Weights and states that are stored here, and views of weights alone.
        shared: Resident tensors of other devices that are read here without a copy.
        inputs: Inputs of the step that are placed here.
        sends: (tensor, device) of inputs and resident tensors that are sent when the step begins.
        outputs: Outputs of the graph that are computed here.
        staging: How streamed weights share this device's staging buffer.
    """

    sequence: list[Instruction] = field(default_factory=list)
    resident: list[Tensor] = field(default_factory=list)
    shared: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    sends: list[tuple[Tensor, int]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    staging: Staging | None = None


@dataclass(frozen=True)
class Instructions:
    """What all devices do in a step.

    Args:
        order: The scheduled ops, in the plan's order.
        write_backs: (state, new value) of states that are overwritten at the end of the step.
    """

    per_device: tuple[DeviceInstructions, ...]
    placement: tuple[int, ...]
    order: tuple[int, ...]
    write_backs: tuple[tuple[Tensor, Tensor], ...]


def compile_graph(
    graph: Graph,
    placement: Sequence[int],
    device_count: int,
    priority: Sequence[float] | None = None,
    staging: Sequence[int] | None = None,
    changes: Mapping[Tensor, Tensor] | None = None,
    keep_tensors: Sequence[Tensor] = (),
    separate_memory: Sequence[int] = (),
    random_ops: Sequence[int] = (),
    varying_views: Collection[int] = (),
    hosts: Sequence[int] | None = None,
) -> Instructions:
    """The instructions of a placement.

    Args:
        placement: The device of each op.
        changes: Each state that changes, and its new value.
        keep_tensors: Tensors that are kept until the step ends, in addition to the outputs.
        separate_memory: Devices with their own memory: resident tensors are sent to them and from
            them. The others share the host's memory, and read resident tensors without a copy.
        random_ops: Ops that draw random numbers. Those of the host run in this order, since they
            share one generator: the numbers do not depend on the placement.
        varying_views: Views of weights that every step makes anew.
        hosts: The host of each device, whose memory no other host can read; None: one for all.

    Raises:
        PlanError: A staging buffer is too small for an op.
    """
    return _Compiler(
        graph,
        placement,
        device_count,
        priority,
        staging,
        changes or {},
        keep_tensors,
        separate_memory,
        random_ops,
        varying_views,
        hosts or [0] * device_count,
    ).build()


def compile_plan(
    program: Program,
    plan: Plan,
    real_devices: Sequence[RealDevice],
    keep_tensors: Sequence[Tensor] = (),
    hosts: Sequence[int] | None = None,
) -> Instructions:
    """The instructions of a plan for a program, matched by the names of ops.

    Args:
        hosts: The host of each device; None: one for all.

    Raises:
        PlanError: An op of one is missing in the other.
    """
    graph, row_of = program.graph, {name: index for index, name in enumerate(plan.ops)}
    missing = [op.name for op in graph.ops if op.name not in row_of]
    if missing or len(row_of) != len(graph):
        unknown = [name for name in row_of if name not in graph.position]
        example = missing[0] if missing else unknown[0]
        known_names = row_of if missing else graph.position
        raise PlanError(
            f"the plan places {len(row_of)} ops, the model as captured has {len(graph)}: "
            f"{len(missing)} of the model's are missing in the plan, {len(unknown)} of the plan's "
            f"in the model, such as {example!r} ({nearest(example, known_names)})"
        )
    if plan.fusion is not None and (plan.fusion >= 0).any():
        raise PlanError("the plan fuses ops, which this runtime cannot: plan without fusion")
    rows = [row_of[op.name] for op in graph.ops]
    return compile_graph(
        graph,
        plan.placement[rows].tolist(),
        len(plan.device_names),
        None if plan.priority is None else plan.priority[rows].tolist(),
        None if plan.staging is None else plan.staging.tolist(),
        program.changes,
        keep_tensors,
        [index for index, real_device in enumerate(real_devices) if real_device.is_gpu],
        program.random_ops,
        program.varying_views,
        hosts,
    )


class _Compiler:
    def __init__(
        self,
        graph: Graph,
        placement: Sequence[int],
        device_count: int,
        priority: Sequence[float] | None,
        staging: Sequence[int] | None,
        changes: Mapping[Tensor, Tensor],
        keep_tensors: Sequence[Tensor],
        separate_memory: Sequence[int],
        random_ops: Sequence[int],
        varying_views: Collection[int],
        hosts: Sequence[int],
    ) -> None:
        self.separate_memory, self.hosts = set(separate_memory), hosts
        self.graph, self.placement = graph, [int(at) for at in placement]
        self.staging_sizes = (
            [-1] * device_count if staging is None else [int(size) for size in staging]
        )
        self.writes = find_writes(graph, self.placement, changes)
        host_random_ops = [
            op for op in random_ops if self.placement[op] not in self.separate_memory
        ]
        self.predecessors = {op: set(ops) for op, ops in self.writes.predecessors.items()}
        for earlier, later in pairwise(host_random_ops):
            self.predecessors.setdefault(later, set()).add(earlier)
        self.resident_ops, self.large_outputs = (
            _resident_ops(graph, varying_views),
            large_output_ops(graph),
        )
        self.order = self._issue_order(priority)
        self.per_device = [DeviceInstructions() for _ in range(device_count)]
        self.kept_tensors = {
            *(graph.outputs or ()),
            *keep_tensors,
            *(new for _, new in self.writes.write_backs),
        }
        self.last_reader: dict[tuple[Tensor, int], int] = {}  # of a tensor on a device
        self.transfers: set[tuple[Tensor, int]] = set()  # (tensor, device)

    def build(self) -> Instructions:
        self._add_sources()
        for position in self.order:
            device = self.placement[position]
            for tensor in self.graph.ops[position].inputs:
                self.last_reader[tensor, device] = position
        copies: list[list[StagedCopy]] = [[] for _ in self.per_device]
        instructions: dict[int, Instruction] = {}
        for position in self.order:
            instruction = self._instruction(position, copies)
            instructions[position] = instruction
            self.per_device[self.placement[position]].sequence.append(instruction)
            for tensor in instruction.remote_inputs:
                self._add_send(instructions, tensor, self.placement[position])
            for reader in sorted(self.predecessors.get(position, ())):
                if self.placement[reader] != self.placement[position] and reader in instructions:
                    instruction.waits_for.append(reader)
                    instructions[reader].notifies.append(self.placement[position])
        reads = [
            (op, key)
            for op, instruction in instructions.items()
            for location, key in instruction.inputs
            if location == ENV
        ]
        sent_tensors = {tensor for tensor, _ in self.transfers}
        for position in large_transfer_ops(
            self.graph, self.placement, instructions, reads, sent_tensors
        ):
            instructions[position].large_transfer = True
        for device, device_instructions in enumerate(self.per_device):
            if copies[device]:
                device_instructions.staging = allocate_staging(
                    copies[device], self.staging_sizes[device]
                )
        for tensor in dict.fromkeys(self.kept_tensors):
            self.per_device[self.placement[tensor[0]]].outputs.append(tensor)
        return Instructions(
            tuple(self.per_device),
            tuple(self.placement),
            tuple(self.order),
            self.writes.write_backs,
        )

    def _issue_order(self, priority: Sequence[float] | None) -> list[int]:
        """The order of rule 2, with every write after the ops that must run before it."""
        graph = self.graph
        scheduled = [
            op
            for op in range(len(graph))
            if op not in self.resident_ops and not _is_input(graph, op)
        ]
        if priority is None:
            return scheduled
        readers: dict[int, set[int]] = {}
        indegree = dict.fromkeys(scheduled, 0)
        for position in scheduled:
            sources = {source for source, _ in graph.ops[position].inputs}
            sources |= self.predecessors.get(position, set())
            for source in sources & indegree.keys():
                readers.setdefault(source, set()).add(position)
                indegree[position] += 1
        ready = [(priority[op], op) for op in scheduled if not indegree[op]]
        heapq.heapify(ready)
        order = []
        while ready:
            _, position = heapq.heappop(ready)
            order.append(position)
            for reader in readers.get(position, ()):
                indegree[reader] -= 1
                if not indegree[reader]:
                    heapq.heappush(ready, (priority[reader], reader))
        return order

    def _add_sources(self) -> None:
        for position, op in enumerate(self.graph.ops):
            device_instructions = self.per_device[self.placement[position]]
            tensors = [(position, output) for output in range(len(op.outputs))]
            if op.kind == INPUT:
                device_instructions.inputs += tensors
            elif position in self.resident_ops:
                device_instructions.resident += tensors

    def _instruction(self, position: int, copies: list[list[StagedCopy]]) -> Instruction:
        op, device = self.graph.ops[position], self.placement[position]
        in_place, large_output = position in self.writes.in_place, position in self.large_outputs
        instruction = Instruction(position, [], in_place=in_place, large_output=large_output)
        weight_copies: list[StagedCopy] = []
        for tensor in op.inputs:
            is_remote = self.placement[tensor[0]] != device
            if tensor[0] in self.resident_ops and is_remote and self._is_streamed(tensor, device):
                copy_index = len(copies[device]) + len(weight_copies)
                weight_copies.append(StagedCopy(tensor, position, self._size(tensor)))
                instruction.inputs.append((STAGED, copy_index))
            elif not self._is_local(tensor, device):
                instruction.inputs.append((ENV, tensor))
                if is_remote and (tensor, device) not in self.transfers:
                    self.transfers.add((tensor, device))
                    instruction.remote_inputs.append(tensor)
            else:
                instruction.inputs.append((RESIDENT, tensor))
                if is_remote and tensor not in self.per_device[device].shared:
                    self.per_device[device].shared.append(tensor)
        streamed_bytes = sum(copy.size for copy in weight_copies)
        if streamed_bytes > max(self.staging_sizes[device], 0):
            raise PlanError(
                f"op {op.name!r} streams {format_bytes(streamed_bytes)} of weights into a staging "
                f"buffer of {format_bytes(max(self.staging_sizes[device], 0))}: it must hold all "
                "streamed weights of one op: enlarge the plan's staging"
            )
        copies[device] += weight_copies
        for output in range(len(op.outputs)):
            tensor = (position, output)
            if (tensor, device) not in self.last_reader and tensor not in self.kept_tensors:
                instruction.frees.append(tensor)
        for location, tensor in instruction.inputs:
            if location == ENV and self.last_reader[tensor, device] == position:
                is_local = self.placement[tensor[0]] == device
                if not (is_local and tensor in self.kept_tensors):
                    instruction.frees.append(tensor)
        return instruction

    def _is_streamed(self, tensor: Tensor, device: int) -> bool:
        return self.staging_sizes[device] >= 0 and self.graph.ops[tensor[0]].kind != STATE

    def _is_local(self, tensor: Tensor, device: int) -> bool:
        """Whether a tensor is resident, and a device can read it without a copy."""
        source = self.placement[tensor[0]]
        shares_memory = source == device or (
            self.hosts[source] == self.hosts[device] and not self.separate_memory & {source, device}
        )
        return tensor[0] in self.resident_ops and shares_memory

    def _add_send(self, instructions: dict[int, Instruction], tensor: Tensor, target: int) -> None:
        source, output = tensor
        if source in instructions:
            instructions[source].sends.append((output, target))
        else:
            self.per_device[self.placement[source]].sends.append((tensor, target))

    def _size(self, tensor: Tensor) -> int:
        return self.graph.ops[tensor[0]].outputs[tensor[1]]


def _is_input(graph: Graph, position: int) -> bool:
    return graph.ops[position].kind == INPUT


def _resident_ops(graph: Graph, varying_views: Collection[int]) -> set[int]:
    """Weights, states, and views of weights alone: they exist before every step."""
    weights: set[int] = set()
    for position, op in enumerate(graph.ops):
        is_weight_view = op.kind == VIEW and op.inputs and all(at in weights for at, _ in op.inputs)
        if op.kind == WEIGHT or (is_weight_view and position not in varying_views):
            weights.add(position)
    return weights | {at for at, op in enumerate(graph.ops) if op.kind == STATE}
