"""Plans for a host that is slower or faster than measured, or for less memory of a GPU.

The time of ops on a host next to a GPU is the least certain prediction: the host shares memory
bandwidth with copies to the GPU, and cores with other processes; and those copies are slower than
alone. So plans are also made as if the host and its links were slower or faster than measured, and
measuring them decides (`selection`). The memory of a GPU is uncertain, too: fragmentation, and what
CUDA graphs keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.solvers import solve
from placewright.solvers.cautious_choice import scale_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers import Solver, Stop

PROHIBITIVE = 1e3
"""A factor so large that the host gets no op that another device can run."""
HOST_SCALES = (
    (1.0, 1.0, 1.0),
    (1.0, 1.15, 1.0),
    (1.6, 1.0, 1.0),
    (PROHIBITIVE, 1.0, 1.0),
    (PROHIBITIVE, 1.0, 0.97),
)
"""Factors of the host's op times and of its links' transfer times, and a share of the memory.

The last two only stream weights, which is predicted best.
"""


def host_variants(
    problem: Problem,
    solver: Solver,
    stop: Stop,
    seed: int = 0,
    scales: Sequence[tuple[float, float, float]] = HOST_SCALES,
) -> list[Plan]:
    """The plan that a solver finds for each scale, without duplicates."""
    plans = [
        solve(scale_host(problem, *scale), solver, stop, seed, False, select="best").plan
        for scale in scales
    ]
    return list(dict.fromkeys(plans))
