"""A problem in, where each op stands if layers lie one after the other out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


def layer_places(problem: Problem) -> NDArray[np.int64] | None:
    """Each op's place: that of its module's first op; None where the graph knows of no modules.

    An op without a module stands with the last of what it reads. A layer is then in one place with
    all its steps in time and its backward pass, where the graph's own order has one moment after
    the other; cut into stretches this is what an expert does with an unrolled network.
    """
    a, ops = problem.arrays, problem.graph.ops
    first: dict[str, int] = {}
    for op in np.flatnonzero(a.turn).tolist():
        if ops[op].module:
            first.setdefault(ops[op].module, op)
    if len(first) < 2:
        return None
    sources = a.producer[a.inputs]
    place = np.zeros(a.ops, dtype=np.int64)
    for op in range(a.ops):
        read = sources[a.first_input[op] : a.first_input[op + 1]]
        place[op] = first.get(ops[op].module, place[read].max() if len(read) else op)
    return place
