"""A graph: the ops of one network in topological order, with inputs, outputs and costs."""

from __future__ import annotations

import hashlib
import heapq
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from placewright.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

WEIGHT = "weight"  # exists before the step, on its device; its tensor is its resident bytes
STATE = "state"  # like a weight, but updated in place (a KV cache): read on its device only
INPUT = "input"  # exists before the step, on the host unless pinned elsewhere
VIEW = "view"  # costs nothing; a view of a weight counts as the weight
PHASES = ("forward", "backward", "update")
MAX_BYTES = 2**50  # of one op: a petabyte, so that sums over a million ops stay exact

Tensor = tuple[int, int]
"""An op's position in the graph and the index of one of its outputs."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a network.

    Args:
        inputs: The tensors it reads, each an (earlier op, output index) pair.
        outputs: Bytes of each tensor it makes.
        flops: Floating-point operations, two for a multiply-add.
        bytes_moved: Bytes read from and written to memory.
        resident: Bytes that stay on its device for the whole step (optimizer state, a cache).
        workspace: Bytes needed only while it runs.
        module: Its module in the model's hierarchy, e.g. `encoder.layers.3`.
        colocate: Ops that share this label share a device.
        runs_on: Kinds or models of device that can run it; empty means any.
        aliases: (output, input) pairs: that output shares the input's memory.
    """

    name: str
    kind: str = "op"
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[int, ...] = (0,)
    flops: float = 0.0
    bytes_moved: int = 0
    resident: int = 0
    workspace: int = 0
    dtype: str = "float32"
    module: str = ""
    phase: str = "forward"
    colocate: str | None = None
    runs_on: tuple[str, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.flops) and self.flops >= 0):
            raise GraphError(
                f"op {self.name!r} has flops {self.flops!r}: expected a finite number >= 0"
            )
        for size in (self.bytes_moved, self.resident, self.workspace, *self.outputs):
            if not 0 <= size <= MAX_BYTES:
                raise GraphError(
                    f"op {self.name!r} has bytes_moved {self.bytes_moved!r}, "
                    f"resident {self.resident!r}, "
                    f"workspace {self.workspace!r}, outputs {self.outputs!r}: "
                    "bytes must be 0 to 2**50"
                )
        if self.phase not in PHASES:
            raise GraphError(f"op {self.name!r} has phase {self.phase!r}: expected one of {PHASES}")
        if self.inputs and self.kind in (WEIGHT, STATE, INPUT):
            raise GraphError(
                f"op {self.name!r} of kind {self.kind!r} has inputs: it must have none"
            )
        for output, source in self.aliases:
            if not (0 <= output < len(self.outputs) and 0 <= source < len(self.inputs)):
                raise GraphError(
                    f"op {self.name!r} aliases output {output} to input {source}: it has "
                    f"{len(self.outputs)} outputs and {len(self.inputs)} inputs"
                )


@dataclass(frozen=True)
class Graph:
    """Ops in topological order: an input names an earlier op, so no graph can hold a cycle.

    Args:
        outputs: The tensors that live to the end of the step; by default those that nothing reads.
        samples: What one step processes, where that is known; for throughput only.
        tokens: The same in tokens.
    """

    name: str
    ops: tuple[Op, ...]
    outputs: tuple[Tensor, ...] | None = None
    samples: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ops", tuple(self.ops))
        if not self.ops:
            raise GraphError(f"graph {self.name!r} has no ops: expected at least one")
        for noun, count in (("samples", self.samples), ("tokens", self.tokens)):
            if count is not None and count < 1:
                raise GraphError(f"graph {self.name!r} has {count!r} {noun} per step: expected > 0")
        counts = [len(op.outputs) for op in self.ops]
        for position, op in enumerate(self.ops):
            for source, output in op.inputs:
                if not 0 <= source < position:
                    raise GraphError(
                        f"op {op.name!r} at position {position} reads from position {source}: "
                        "an input must come earlier in the graph"
                    )
                if not 0 <= output < counts[source]:
                    raise GraphError(
                        f"op {op.name!r} reads output {output} of {self.ops[source].name!r}, "
                        f"which has {counts[source]} outputs"
                    )
        if len(self.position) != len(self.ops):
            names: set[str] = set()
            for op in self.ops:
                if op.name in names:
                    raise GraphError(f"two ops are named {op.name!r}: names must be unique")
                names.add(op.name)
        if self.outputs is None:
            tensors_read = {tensor for op in self.ops for tensor in op.inputs}
            unread = [
                (position, output)
                for position, op in enumerate(self.ops)
                if op.kind not in (WEIGHT, STATE)
                for output in range(len(op.outputs))
                if (position, output) not in tensors_read
            ]
            object.__setattr__(self, "outputs", tuple(unread))
        for source, output in self.outputs or ():
            if not (0 <= source < len(self.ops) and 0 <= output < counts[source]):
                raise GraphError(f"graph output ({source}, {output}) names no tensor of the graph")

    def __len__(self) -> int:
        return len(self.ops)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.ops):,} ops)"

    def with_counts(self, samples: int | None = None, tokens: int | None = None) -> Graph:
        """The same graph, with what one step processes."""
        return replace(self, samples=samples or self.samples, tokens=tokens or self.tokens)

    @cached_property
    def position(self) -> dict[str, int]:
        """The position of each op, by name."""
        return {op.name: position for position, op in enumerate(self.ops)}

    @cached_property
    def output_set(self) -> frozenset[Tensor]:
        """The graph's outputs as a set."""
        return frozenset(self.outputs or ())

    @cached_property
    def readers(self) -> dict[Tensor, list[int]]:
        """The ops that read each tensor, in graph order, each once."""
        readers: dict[Tensor, list[int]] = {}
        for position, op in enumerate(self.ops):
            for tensor in dict.fromkeys(op.inputs):
                readers.setdefault(tensor, []).append(position)
        return readers

    def escapes(self, tensor: Tensor, group: set[int]) -> bool:
        """Whether a tensor made inside a group of ops is needed outside it."""
        readers = self.readers.get(tensor, ())
        return tensor in self.output_set or any(reader not in group for reader in readers)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that matters to plans: not its name, samples and tokens."""
        digest = hashlib.blake2b(digest_size=16)
        for op in self.ops:
            digest.update(
                repr(
                    (
                        (op.name, op.kind, op.inputs, op.outputs, float(op.flops), op.bytes_moved),
                        (op.resident, op.workspace, op.dtype, op.module, op.phase, op.colocate),
                        (op.runs_on, op.aliases),
                    )
                ).encode("utf-8", "surrogatepass")
            )
        digest.update(repr(self.outputs).encode())
        return digest.hexdigest()


def sort_topologically(
    name: str, ops: Sequence[Op], outputs: tuple[Tensor, ...] | None = None
) -> Graph:
    """A graph from ops in any order, whose inputs are positions in that order.

    Ops keep their given order as far as their inputs allow.

    Raises:
        GraphError: The ops form a cycle; the message spells it out.
    """
    pending = [len({source for source, _ in op.inputs}) for op in ops]
    readers: list[set[int]] = [set() for _ in ops]
    for position, op in enumerate(ops):
        for source, _ in op.inputs:
            if not 0 <= source < len(ops):
                raise GraphError(
                    f"op {op.name!r} reads from position {source}: there is no such op"
                )
            readers[source].add(position)
    ready = [position for position, count in enumerate(pending) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            pending[reader] -= 1
            if pending[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(ops):
        raise GraphError(f"graph {name!r} has a cycle: {_cycle_text(ops, pending)}")
    new_position = {old: new for new, old in enumerate(order)}
    sorted_ops = [
        replace(
            ops[old],
            inputs=tuple((new_position[source], output) for source, output in ops[old].inputs),
        )
        for old in order
    ]
    if outputs is not None:
        outputs = tuple((new_position[source], output) for source, output in outputs)
    return Graph(name, tuple(sorted_ops), outputs)


def _cycle_text(ops: Sequence[Op], pending: Sequence[int]) -> str:
    """One cycle among the ops that never became ready, as `'a' -> 'b' -> 'a'`."""
    current = next(position for position, count in enumerate(pending) if count)
    path: dict[int, int] = {}  # op → its position on the path
    while current not in path:
        path[current] = len(path)
        current = next(source for source, _ in ops[current].inputs if pending[source])
    cycle = [*list(path)[path[current] :], current][::-1]
    names = [repr(ops[position].name) for position in cycle]
    return " -> ".join(names if len(names) <= 8 else [*names[:4], "...", *names[-3:]])
