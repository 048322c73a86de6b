"""Layer order: each op's position when layers follow one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


def layer_positions(problem: Problem) -> NDArray[np.int64] | None:
    """Each op's place: that of its module's first op; None where the graph knows of no modules.

    An op without a module stands with the last of what it reads. A layer is then in one place with
    all its steps in time and its backward pass, where the graph's own order has one moment after
    the other; cut into stretches this is what an expert does with an unrolled network.
    """
    a, ops = problem.arrays, problem.graph.ops
    first_of_module: dict[str, int] = {}
    for op in np.flatnonzero(a.scheduled).tolist():
        if ops[op].module:
            first_of_module.setdefault(ops[op].module, op)
    if len(first_of_module) < 2:
        return None
    sources = a.producer[a.inputs]
    position = np.zeros(a.ops, dtype=np.int64)
    for op in range(a.ops):
        op_sources = sources[a.first_input[op] : a.first_input[op + 1]]
        position[op] = first_of_module.get(
            ops[op].module, position[op_sources].max() if len(op_sources) else op
        )
    return position
