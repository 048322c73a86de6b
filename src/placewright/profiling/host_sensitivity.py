"""Plans for a host, or for a memory, slower, faster or smaller than measured.

They are to be measured.

What a host computes beside a GPU is the least certain of all predictions: it shares memory with the
copies to the GPU, and cores with whoever else is there; and those copies are slower than alone. So
plans are also made as if the host and its links were slower or faster than measured, and what is
measured decides (`ranking`). What a GPU's memory holds beside a plan's tensors is uncertain, too:
pieces between them, and what CUDA graphs keep.
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
"""So slow that nothing is left to it that another device can do."""
HOST_SCALES = (
    (1.0, 1.0, 1.0),
    (1.0, 1.15, 1.0),
    (1.6, 1.0, 1.0),
    (PROHIBITIVE, 1.0, 1.0),
    (PROHIBITIVE, 1.0, 0.97),
)
"""The seconds of the host's ops and of a byte on its links, times measured; a share of the memory.

The last are streaming alone, which is predicted best: nothing can go wrong on the host.
"""


def host_variants(
    problem: Problem,
    solver: Solver,
    stop: Stop,
    seed: int = 0,
    scales: Sequence[tuple[float, float, float]] = HOST_SCALES,
) -> list[Plan]:
    """The plan that a solver finds for each leaning, different ones once."""
    plans = [
        solve(scale_host(problem, *scale), solver, stop, seed, select="best").plan
        for scale in scales
    ]
    return list(dict.fromkeys(plans))
