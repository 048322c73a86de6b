"""A graph and its placement in, the ops that may write in place out, and what must run before them.

The simulator lets an op write into what it reads (`Op.aliases`), and an update into its weight. Run
for real, that is right only if everything that reads the old value has read it by then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.graph import VIEW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Graph, Tensor


@dataclass(frozen=True)
class Writes:
    """Who writes in place.

    Args:
        in_place: Positions of the ops that change what they read; others make changed copies.
        before: Of an op that changes memory, the ops that must have run before it.
        left: States whose new value is made as a copy, which must be put into the state at the end
            of the step: (state, new value).
    """

    in_place: frozenset[int]
    before: Mapping[int, tuple[int, ...]]
    left: tuple[tuple[Tensor, Tensor], ...]


def find_writes(graph: Graph, device: Sequence[int], changes: Mapping[Tensor, Tensor]) -> Writes:
    """The writes of a graph whose ops are on these devices.

    Args:
        changes: Each changed state, and its new value.
    """
    walk = _Walk(graph, device)
    written = {root for roots in walk.writes.values() for root in roots}
    lawful = written - walk.broken
    while True:  # an op that writes into two memories does so in both or in none
        mixed = {
            root
            for roots in walk.writes.values()
            if not set(roots) <= lawful
            for root in roots
            if root in lawful
        }
        if not mixed:
            break
        lawful -= mixed
    in_place = frozenset(at for at, roots in walk.writes.items() if set(roots) <= lawful)
    left = tuple(
        (state, new)
        for state, new in changes.items()
        if walk.memory[new] != state or state not in lawful
    )
    return Writes(in_place, {at: walk.before[at] for at in in_place if walk.before[at]}, left)


class _Walk:
    """Goes through a graph in its own order and keeps account of who changes which memory when.

    A tensor's memory is that of the tensor it aliases, in the end. Each write makes a new version
    of it; whoever reads an older version after that finds it gone.
    """

    def __init__(self, graph: Graph, device: Sequence[int]) -> None:
        self.memory: dict[Tensor, Tensor] = {}
        self.version: dict[Tensor, int] = {}
        self.newest: Counter[Tensor] = Counter()
        self.read_by: dict[Tensor, list[int]] = {}
        self.writes: dict[int, list[Tensor]] = {}
        self.before: dict[int, tuple[int, ...]] = {}
        self.broken: set[Tensor] = set()
        for position, op in enumerate(graph.ops):
            roots = [self.memory[op.inputs[source]] for _, source in op.aliases]
            joins = op.kind == VIEW and len(op.inputs) > 1  # what it puts in is there already
            if op.kind == "optimizer":
                roots = [self.memory[op.inputs[0]]]
            elif op.kind == VIEW and not joins:
                roots = []
            for at, tensor in enumerate(op.inputs):
                root = self.memory[tensor]
                if self.version[tensor] < self.newest[root] and not (joins and at == 0):
                    self.broken.add(root)
                self.read_by.setdefault(root, []).append(position)
            if roots:
                self.writes[position] = roots
                earlier = (at for root in roots for at in self.read_by.get(root, ()))
                self.before[position] = tuple(sorted(set(earlier) - {position}))
                self.broken |= {root for root in roots if device[root[0]] != device[position]}
            if roots and not joins:
                self.newest.update(roots)
            sources = {output: op.inputs[source] for output, source in op.aliases}
            for output in range(len(op.outputs)):
                own = (position, output)
                self.memory[own] = self.memory[sources[output]] if output in sources else own
                self.version[own] = self.newest[self.memory[own]]
                if op.kind == VIEW and output in sources and not joins:
                    self.version[own] = self.version[sources[output]]
        for tensor in graph.outputs or ():
            if self.version[tensor] < self.newest[self.memory[tensor]]:
                self.broken.add(self.memory[tensor])
