"""What may fuse: the kinds of a graph's ops in, the role of each in a fused group out.

The rules are those that compilers keep to (XLA's and Inductor's fusion passes): element-wise ops in
chains, before and after a reduction, and behind one matrix product or convolution (its epilogue).
So a group holds at most one op that is not element-wise, and nothing in it feeds a heavy one. That
is what `fuse` and `greedy` make. A plan may be broader, as some hand-written kernels are: any
kinds in these tables, but at most one heavy op. Ops that several readers need are not computed
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

LIGHT = frozenset(
    {
        *("view", "elementwise", "add", "multiply", "relu", "gelu", "cast", "copy", "concat"),
        *("random", "optimizer"),
    }
)
"""Element-wise: each output element comes from few elements of the inputs."""
REDUCTION = frozenset({"norm", "softmax", "reduce", "mean", "pool", "loss"})
HEAVY = frozenset({"linear", "matmul", "convolution", "attention"})
UNKNOWN = frozenset({"op"})
"""A graph that does not say what its ops are: `fuse` takes each for a heavy one."""
FUSIBLE = LIGHT | REDUCTION | HEAVY | UNKNOWN
"""Kinds that may be members of a fused group."""

NEVER, LIGHT_ROLE, REDUCTION_ROLE, HEAVY_ROLE = range(4)


def roles(problem: Problem, unknown: int = HEAVY_ROLE) -> NDArray[np.int8]:
    """Each op's role: never fused, light, a reduction or heavy.

    Args:
        unknown: The role of ops of no known kind.
    """
    role = dict.fromkeys(LIGHT, LIGHT_ROLE) | dict.fromkeys(REDUCTION, REDUCTION_ROLE)
    role |= dict.fromkeys(HEAVY, HEAVY_ROLE) | dict.fromkeys(UNKNOWN, unknown)
    found = np.array([role.get(op.kind, NEVER) for op in problem.graph.ops], dtype=np.int8)
    found[~problem.arrays.turn] = NEVER
    return found
