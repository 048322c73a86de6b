"""In-place writes: ops that may write in place, and the hazards that order them.

The simulator lets an op write into its input (`Op.aliases`), and an update into its weight. On real
devices that is correct only if every reader of the old value has read it by then.
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
class InPlaceWrites:
    """The ops that write in place.

    Args:
        in_place: Positions of the ops that write into their inputs; others make changed copies.
        predecessors: For each op that writes in place, the ops that must run before it.
        write_backs: (state, new value) of states whose new value is a copy, which is written into
            the state at the end of the step.
    """

    in_place: frozenset[int]
    predecessors: Mapping[int, tuple[int, ...]]
    write_backs: tuple[tuple[Tensor, Tensor], ...]


def find_writes(
    graph: Graph, placement: Sequence[int], changes: Mapping[Tensor, Tensor]
) -> InPlaceWrites:
    """The writes of a graph whose ops are on these devices.

    Args:
        changes: Each state that changes, and its new value.
    """
    scan = _HazardScan(graph, placement)
    written_roots = {root for roots in scan.writes.values() for root in roots}
    safe = written_roots - scan.conflicts
    while True:  # an op that writes into two storages does so in both or in none
        partly_safe = {
            root
            for roots in scan.writes.values()
            if not set(roots) <= safe
            for root in roots
            if root in safe
        }
        if not partly_safe:
            break
        safe -= partly_safe
    in_place = frozenset(position for position, roots in scan.writes.items() if set(roots) <= safe)
    write_backs = tuple(
        (state, new)
        for state, new in changes.items()
        if scan.storage_root[new] != state or state not in safe
    )
    return InPlaceWrites(
        in_place,
        {
            position: scan.predecessors[position]
            for position in in_place
            if scan.predecessors[position]
        },
        write_backs,
    )


class _HazardScan:
    """Scans a graph in order, and tracks versions of each storage.

    A tensor's storage is that of the tensor it aliases, transitively. Each write makes a new
    version; an op that reads an older version after that conflicts with it.
    """

    def __init__(self, graph: Graph, placement: Sequence[int]) -> None:
        self.storage_root: dict[Tensor, Tensor] = {}
        self.version: dict[Tensor, int] = {}
        self.latest_version: Counter[Tensor] = Counter()
        self.readers: dict[Tensor, list[int]] = {}
        self.writes: dict[int, list[Tensor]] = {}
        self.predecessors: dict[int, tuple[int, ...]] = {}
        self.conflicts: set[Tensor] = set()
        for position, op in enumerate(graph.ops):
            roots = [self.storage_root[op.inputs[source]] for _, source in op.aliases]
            is_join = op.kind == VIEW and len(op.inputs) > 1  # its parts are there already
            if op.kind == "optimizer":
                roots = [self.storage_root[op.inputs[0]]]
            elif op.kind == VIEW and not is_join:
                roots = []
            for at, tensor in enumerate(op.inputs):
                root = self.storage_root[tensor]
                if self.version[tensor] < self.latest_version[root] and not (is_join and at == 0):
                    self.conflicts.add(root)
                self.readers.setdefault(root, []).append(position)
            if roots:
                self.writes[position] = roots
                earlier = (at for root in roots for at in self.readers.get(root, ()))
                self.predecessors[position] = tuple(sorted(set(earlier) - {position}))
                self.conflicts |= {
                    root for root in roots if placement[root[0]] != placement[position]
                }
            if roots and not is_join:
                self.latest_version.update(roots)
            sources = {output: op.inputs[source] for output, source in op.aliases}
            for output in range(len(op.outputs)):
                output_tensor = (position, output)
                self.storage_root[output_tensor] = (
                    self.storage_root[sources[output]] if output in sources else output_tensor
                )
                self.version[output_tensor] = self.latest_version[self.storage_root[output_tensor]]
                if op.kind == VIEW and output in sources and not is_join:
                    self.version[output_tensor] = self.version[sources[output]]
        for tensor in graph.outputs or ():
            if self.version[tensor] < self.latest_version[self.storage_root[tensor]]:
                self.conflicts.add(self.storage_root[tensor])
