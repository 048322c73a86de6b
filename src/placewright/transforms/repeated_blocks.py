"""Folding: a graph in, its repeated blocks out, op by op beside each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.graph import Graph

_NUMBERED = re.compile(r"^((?:.*?\.)?)(\d+)(?=\.|$)")


@dataclass(frozen=True, eq=False)
class Blocks:
    """Modules that repeat: `ops[i, j]` is op j of the i-th block, so columns are alike.

    Args:
        path: The module path up to the block's number, such as `encoder.layers.`.
        numbers: The blocks' numbers in that path.
    """

    path: str
    numbers: tuple[int, ...]
    ops: NDArray[np.int32]

    def spread(self, values: NDArray[np.int32], base: NDArray[np.int32]) -> NDArray[np.int32]:
        """Values of one block's ops given to every block; ops outside keep those of `base`."""
        spread = base.copy()
        spread[self.ops] = values
        return spread


def fold(graph: Graph) -> list[Blocks]:
    """The longest runs of consecutive, equal, numbered modules, largest first.

    Blocks are equal when their ops agree in kind, cost, sizes and, inside the block, wiring; what
    they read from outside may differ. Numbers are looked for outermost first, so that blocks do not
    overlap.
    """
    families: dict[str, dict[int, list[int]]] = {}
    for position, op in enumerate(graph.ops):
        found = _NUMBERED.match(op.module)
        if found:
            numbered = families.setdefault(found.group(1), {})
            numbered.setdefault(int(found.group(2)), []).append(position)
    folded: list[Blocks] = []
    for path, members in families.items():
        run: list[int] = []
        for number in [*sorted(members), None]:
            if run and (
                number is None
                or number != run[-1] + 1
                or _shape(graph, members[number]) != _shape(graph, members[run[-1]])
            ):
                if len(run) > 1:
                    rows = np.array([members[each] for each in run], dtype=np.int32)
                    folded.append(Blocks(path, tuple(run), rows))
                run = []
            if number is not None:
                run.append(number)
    return sorted(folded, key=lambda blocks: -blocks.ops.size)


def _shape(graph: Graph, members: list[int]) -> tuple[object, ...]:
    """What must agree for two blocks to be equal."""
    place = {op: at for at, op in enumerate(members)}
    shape: list[object] = []
    for position in members:
        op = graph.ops[position]
        wiring = tuple((place.get(source, -1), output) for source, output in op.inputs)
        shape.append((op.kind, op.flops, op.moved, op.resident, op.outputs, op.phase, wiring))
    return tuple(shape)
