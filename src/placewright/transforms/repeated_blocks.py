"""Finds the repeated blocks of a graph and aligns them op by op."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.graph import Graph

_NUMBERED_MODULE = re.compile(r"^((?:.*?\.)?)(\d+)(?=\.|$)")


@dataclass(frozen=True, eq=False)
class RepeatedBlocks:
    """Modules that repeat: `ops[i, j]` is op j of the i-th block, so the ops of a column are equal.

    Args:
        module_prefix: The module path up to the block's number, e.g. `encoder.layers.`.
        block_numbers: The blocks' numbers in that path.
    """

    module_prefix: str
    block_numbers: tuple[int, ...]
    ops: NDArray[np.int32]

    def broadcast(self, values: NDArray[np.int32], base: NDArray[np.int32]) -> NDArray[np.int32]:
        """One block's values for the ops of every block; ops outside keep those of `base`."""
        result = base.copy()
        result[self.ops] = values
        return result


def find_repeated_blocks(graph: Graph) -> list[RepeatedBlocks]:
    """The longest runs of consecutive, equal, numbered modules, largest first.

    Blocks are equal when their ops agree in kind, cost, sizes and edges inside the block; their
    inputs from outside may differ. Numbers are searched outermost first, so that blocks do not
    overlap.
    """
    families: dict[str, dict[int, list[int]]] = {}
    for position, op in enumerate(graph.ops):
        match = _NUMBERED_MODULE.match(op.module)
        if match:
            blocks_by_number = families.setdefault(match.group(1), {})
            blocks_by_number.setdefault(int(match.group(2)), []).append(position)
    repeated: list[RepeatedBlocks] = []
    for path, members in families.items():
        run: list[int] = []
        for number in [*sorted(members), None]:
            if run and (
                number is None
                or number != run[-1] + 1
                or _block_signature(graph, members[number])
                != _block_signature(graph, members[run[-1]])
            ):
                if len(run) > 1:
                    rows = np.array([members[block] for block in run], dtype=np.int32)
                    repeated.append(RepeatedBlocks(path, tuple(run), rows))
                run = []
            if number is not None:
                run.append(number)
    return sorted(repeated, key=lambda blocks: -blocks.ops.size)


def _block_signature(graph: Graph, members: list[int]) -> tuple[object, ...]:
    """What must agree for two blocks to be equal."""
    position_in_block = {op: at for at, op in enumerate(members)}
    signature: list[object] = []
    for position in members:
        op = graph.ops[position]
        wiring = tuple((position_in_block.get(source, -1), output) for source, output in op.inputs)
        signature.append(
            (op.kind, op.flops, op.bytes_moved, op.resident, op.outputs, op.phase, wiring)
        )
    return tuple(signature)
