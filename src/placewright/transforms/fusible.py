"""Fusion roles: which kinds of op may fuse, and the role of each in a fused group.

The rules are those of compilers (XLA's and Inductor's fusion passes): element-wise ops in
chains, before and after a reduction, and behind one matrix product or convolution (its epilogue).
So a group holds at most one op that is not element-wise, and no member feeds a heavy op. `fuse`
and `fuse_greedily` make such groups. A plan may be broader, like some hand-written kernels: any
kinds in these tables, but at most one heavy op. Ops with several readers are not computed twice.
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
UNKNOWN_KINDS = frozenset({"op"})
"""Kinds of a graph that does not name its ops' kinds: `fuse` takes each for a heavy op."""
FUSIBLE = LIGHT | REDUCTION | HEAVY | UNKNOWN_KINDS
"""Kinds that may be members of a fused group."""

NEVER_ROLE, LIGHT_ROLE, REDUCTION_ROLE, HEAVY_ROLE = range(4)


def fusion_roles(problem: Problem, unknown_role: int = HEAVY_ROLE) -> NDArray[np.int8]:
    """Each op's role: never fused, light, a reduction or heavy.

    Args:
        unknown_role: The role of ops of no known kind.
    """
    role_of = dict.fromkeys(LIGHT, LIGHT_ROLE) | dict.fromkeys(REDUCTION, REDUCTION_ROLE)
    role_of |= dict.fromkeys(HEAVY, HEAVY_ROLE) | dict.fromkeys(UNKNOWN_KINDS, unknown_role)
    op_roles = np.array(
        [role_of.get(op.kind, NEVER_ROLE) for op in problem.graph.ops], dtype=np.int8
    )
    op_roles[~problem.arrays.scheduled] = NEVER_ROLE
    return op_roles
