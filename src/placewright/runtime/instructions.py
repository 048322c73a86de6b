"""A graph and a plan in, what each device does out: its turns in order, what it sends and frees.

This is pure bookkeeping, done once. Tensors are known by (op, output), as in the graph.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.errors import PlanError, nearest
from placewright.graph import INPUT, STATE, VIEW, WEIGHT
from placewright.runtime.cuda.graph_exclusions import bulky_ops, handed_out
from placewright.runtime.in_place import find_writes
from placewright.runtime.staging import Copy, lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Graph, Tensor
    from placewright.plan import Plan
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import Place
    from placewright.runtime.staging import Staging

ENV, HOME, ROOM = 0, 1, 2
"""Where an op finds what it reads: made or received in this step, stored, or streamed."""


@dataclass
class Turn:
    """One op's turn on its device.

    Args:
        inputs: Where each tensor it reads is: (`ENV`, tensor), (`HOME`, tensor) or (`ROOM`, copy).
        needs: Those of them that come from other devices, and that no op here has read before.
        sends: Which of its outputs go to which devices, once it has run.
        frees: Tensors that nobody on this device reads after it.
        after: Ops on other devices that must have read what this one changes.
        tells: Devices with an op that waits for this one to have read something.
        in_place: Whether it changes what it reads.
        handed: Whether it makes, or is a view of, a large output (`runtime/cuda/graph_exclusions.py`).
        bulky: Whether it reads or makes something large that goes from device to device, or that
            such an op makes or reads.
    """

    position: int
    inputs: list[tuple[int, Any]]
    needs: list[Tensor] = field(default_factory=list)
    sends: list[tuple[int, int]] = field(default_factory=list)
    frees: list[Tensor] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    tells: list[int] = field(default_factory=list)
    in_place: bool = False
    handed: bool = False
    bulky: bool = False


@dataclass
class Part:
    """What one device does in a step.

    Args:
        stored: Weights and states that live here, and views of nothing but weights.
        borrowed: Stored tensors of other devices that are read here where they lie.
        inputs: Inputs of the step that are here when it begins.
        sends: Inputs and stored tensors that go from here to which devices when it begins.
        outputs: Outputs of the graph that are made here.
        staging: How streamed weights take turns in this device's staging room.
    """

    turns: list[Turn] = field(default_factory=list)
    stored: list[Tensor] = field(default_factory=list)
    borrowed: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    sends: list[tuple[Tensor, int]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    staging: Staging | None = None


@dataclass(frozen=True)
class Script:
    """What all devices do in a step.

    Args:
        order: The ops that take a turn, in the plan's order.
        left: States to be overwritten at the end of the step: (state, new value).
    """

    parts: tuple[Part, ...]
    device: tuple[int, ...]
    order: tuple[int, ...]
    left: tuple[tuple[Tensor, Tensor], ...]


def write_script(
    graph: Graph,
    device: Sequence[int],
    devices: int,
    priority: Sequence[float] | None = None,
    staging: Sequence[int] | None = None,
    changes: Mapping[Tensor, Tensor] | None = None,
    keep: Sequence[Tensor] = (),
    apart: Sequence[int] = (),
) -> Script:
    """The script of a plan.

    Args:
        device: Of each op.
        devices: How many there are.
        changes: Each changed state, and its new value.
        keep: Tensors to be kept to the end of the step, beside the graph's outputs.
        apart: Devices with a memory of their own: stored tensors of others must be sent to them,
            and theirs to others. The rest share one memory, and read where things lie.

    Raises:
        PlanError: A staging room is too small for an op.
    """
    return _Writer(graph, device, devices, priority, staging, changes or {}, keep, apart).write()


def script_of(
    program: Program, plan: Plan, places: Sequence[Place], keep: Sequence[Tensor] = ()
) -> Script:
    """The script of a plan for a program, matched by the names of ops.

    Raises:
        PlanError: An op of one is missing in the other.
    """
    graph, row = program.graph, {name: at for at, name in enumerate(plan.ops)}
    missing = [op.name for op in graph.ops if op.name not in row]
    if missing or len(row) != len(graph):
        strange = [name for name in row if name not in graph.position]
        example = missing[0] if missing else strange[0]
        known = row if missing else graph.position
        raise PlanError(
            f"the plan places {len(row)} ops, the model as captured has {len(graph)}: "
            f"{len(missing)} of the model's are missing in the plan, {len(strange)} of the plan's "
            f"in the model, such as {example!r} ({nearest(example, known)})"
        )
    if plan.fusion is not None and (plan.fusion >= 0).any():
        raise PlanError("the plan fuses ops: this runtime runs them one by one, so plan without")
    rows = [row[op.name] for op in graph.ops]
    return write_script(
        graph,
        plan.device[rows].tolist(),
        len(plan.devices),
        None if plan.priority is None else plan.priority[rows].tolist(),
        None if plan.staging is None else plan.staging.tolist(),
        program.changes,
        keep,
        [at for at, place in enumerate(places) if place.kind == "cuda"],
    )


class _Writer:
    def __init__(
        self,
        graph: Graph,
        device: Sequence[int],
        devices: int,
        priority: Sequence[float] | None,
        staging: Sequence[int] | None,
        changes: Mapping[Tensor, Tensor],
        keep: Sequence[Tensor],
        apart: Sequence[int],
    ) -> None:
        self.apart = set(apart)
        self.graph, self.device = graph, [int(at) for at in device]
        self.rooms = [-1] * devices if staging is None else [int(room) for room in staging]
        self.writes = find_writes(graph, self.device, changes)
        self.static, self.handed = _static(graph), handed_out(graph)
        self.order = self._ordered(priority)
        self.parts = [Part() for _ in range(devices)]
        self.kept = {*(graph.outputs or ()), *keep, *(new for _, new in self.writes.left)}
        self.last: dict[tuple[Tensor, int], int] = {}  # the last op that reads a tensor there
        self.sent: set[tuple[Tensor, int]] = set()  # what goes to which device

    def write(self) -> Script:
        self._add_sources()
        for position in self.order:
            place = self.device[position]
            for tensor in self.graph.ops[position].inputs:
                self.last[tensor, place] = position
        copies: list[list[Copy]] = [[] for _ in self.parts]
        turns: dict[int, Turn] = {}
        for position in self.order:
            turn = self._turn(position, copies)
            turns[position] = turn
            self.parts[self.device[position]].turns.append(turn)
            for tensor in turn.needs:
                self._send(turns, tensor, self.device[position])
            for reader in self.writes.before.get(position, ()):
                if self.device[reader] != self.device[position] and reader in turns:
                    turn.after.append(reader)
                    turns[reader].tells.append(self.device[position])
        read = [
            (at, key) for at, turn in turns.items() for where, key in turn.inputs if where == ENV
        ]
        sent = {tensor for tensor, _ in self.sent}
        for position in bulky_ops(self.graph, self.device, turns, read, sent):
            turns[position].bulky = True
        for place, part in enumerate(self.parts):
            if copies[place]:
                part.staging = lay_out(copies[place], self.rooms[place])
        for tensor in dict.fromkeys(self.kept):
            self.parts[self.device[tensor[0]]].outputs.append(tensor)
        return Script(tuple(self.parts), tuple(self.device), tuple(self.order), self.writes.left)

    def _ordered(self, priority: Sequence[float] | None) -> list[int]:
        """Rule 2, with every write after what must have run before it."""
        graph = self.graph
        takes = [at for at in range(len(graph)) if at not in self.static and not _given(graph, at)]
        if priority is None:
            return takes
        readers: dict[int, set[int]] = {}
        waiting = dict.fromkeys(takes, 0)
        for position in takes:
            sources = {source for source, _ in graph.ops[position].inputs}
            sources |= set(self.writes.before.get(position, ()))
            for source in sources & waiting.keys():
                readers.setdefault(source, set()).add(position)
                waiting[position] += 1
        heads = [(priority[at], at) for at in takes if not waiting[at]]
        heapq.heapify(heads)
        order = []
        while heads:
            _, position = heapq.heappop(heads)
            order.append(position)
            for reader in readers.get(position, ()):
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(heads, (priority[reader], reader))
        return order

    def _add_sources(self) -> None:
        for position, op in enumerate(self.graph.ops):
            part = self.parts[self.device[position]]
            made = [(position, output) for output in range(len(op.outputs))]
            if op.kind == INPUT:
                part.inputs += made
            elif position in self.static:
                part.stored += made

    def _turn(self, position: int, copies: list[list[Copy]]) -> Turn:
        op, place = self.graph.ops[position], self.device[position]
        in_place, handed = position in self.writes.in_place, position in self.handed
        turn = Turn(position, [], in_place=in_place, handed=handed)
        streams: list[Copy] = []
        for tensor in op.inputs:
            away = self.device[tensor[0]] != place
            if tensor[0] in self.static and away and self._streams(tensor, place):
                number = len(copies[place]) + len(streams)
                streams.append(Copy(tensor, position, self._size(tensor)))
                turn.inputs.append((ROOM, number))
            elif not self._stays(tensor, place):
                turn.inputs.append((ENV, tensor))
                if away and (tensor, place) not in self.sent:
                    self.sent.add((tensor, place))
                    turn.needs.append(tensor)
            else:
                turn.inputs.append((HOME, tensor))
                if away and tensor not in self.parts[place].borrowed:
                    self.parts[place].borrowed.append(tensor)
        need = sum(copy.size for copy in streams)
        if need > max(self.rooms[place], 0):
            raise PlanError(
                f"op {op.name!r} streams {need} bytes of weights into a staging room of "
                f"{self.rooms[place]}: the room must hold all of one op's streamed weights"
            )
        copies[place] += streams
        for output in range(len(op.outputs)):
            tensor = (position, output)
            if (tensor, place) not in self.last and tensor not in self.kept:
                turn.frees.append(tensor)
        for where, tensor in turn.inputs:
            if where == ENV and self.last[tensor, place] == position:
                at_home = self.device[tensor[0]] == place
                if not (at_home and tensor in self.kept):
                    turn.frees.append(tensor)
        return turn

    def _streams(self, tensor: Tensor, place: int) -> bool:
        return self.rooms[place] >= 0 and self.graph.ops[tensor[0]].kind != STATE

    def _stays(self, tensor: Tensor, place: int) -> bool:
        """Whether a tensor is stored, and can be read on a device where it lies."""
        source = self.device[tensor[0]]
        near = source == place or not self.apart & {source, place}
        return tensor[0] in self.static and near

    def _send(self, turns: dict[int, Turn], tensor: Tensor, target: int) -> None:
        source, output = tensor
        if source in turns:
            turns[source].sends.append((output, target))
        else:
            self.parts[self.device[source]].sends.append((tensor, target))

    def _size(self, tensor: Tensor) -> int:
        return self.graph.ops[tensor[0]].outputs[tensor[1]]


def _given(graph: Graph, position: int) -> bool:
    return graph.ops[position].kind == INPUT


def _static(graph: Graph) -> set[int]:
    """Weights, states, and views of nothing but weights: what is there before every step."""
    weights: set[int] = set()
    for position, op in enumerate(graph.ops):
        viewed = op.kind == VIEW and op.inputs and all(at in weights for at, _ in op.inputs)
        if op.kind == WEIGHT or viewed:
            weights.add(position)
    return weights | {at for at, op in enumerate(graph.ops) if op.kind == STATE}
