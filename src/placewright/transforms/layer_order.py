"""Layer order: each op's position when layers follow one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


def layer_positions(problem: Problem) -> NDArray[np.int64] | None:
    """Each op's position: that of its module's first op; None if the graph has no modules.

    An op without a module has the position of its last input. A layer then stands together with all
    its time steps and its backward pass, while the graph's order goes time step by time step. Cut
    into segments, this is how experts place an unrolled network.
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
