"""Groups of units that GO decides on as one: a problem and its units in, the group of each out.

Strong plans have a module of the network in one place, with all its steps in time and its backward
pass: rounded to modules they take 1.00 to 1.10 times as long on RNNLM and NMT, where as many groups
along heavy edges take twice as long. What modules are too coarse for, parts of them are for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.transforms import layer_places, nested

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

MODULES, PARTS, UNITS = "module", "part", "unit"
LEVELS = (MODULES, PARTS, UNITS)
"""What passes decide on, from coarse to fine."""
_FEW = 150  # modules where the graph knows none, about
_PARTS = 400  # parts of all modules together, about
_MOST = 8  # parts of a module's forward pass, and of its backward pass


def by_modules(
    problem: Problem, leader: NDArray[np.int64], legal: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Units: the module of each, and of those the ones that may go to the same devices.

    Where the graph knows no modules, groups along heavy edges.
    """
    place: NDArray[Any] | None = layer_places(problem)
    if place is None:
        levels = nested(problem)
        place = next((each for each in levels if len(each) <= _FEW), levels[-1]).group
    _, allowed = np.unique(legal, axis=0, return_inverse=True)
    return _numbered(place[leader], allowed.reshape(-1))


def by_parts(
    problem: Problem,
    leader: NDArray[np.int64],
    work: NDArray[np.float64],
    module: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Units: the part of each: a module's forward or backward pass, in stretches of equal work."""
    names = [str(problem.graph.ops[op].phase) for op in leader.tolist()]
    phase = np.unique(names, return_inverse=True)[1].reshape(-1)
    pass_of = _numbered(module, phase)
    parts = int(np.clip(_PARTS / (int(pass_of.max()) + 1), 1, _MOST))
    heavy = work + 1e-6 * max(float(work.mean()), 1e-30)
    total = np.bincount(pass_of, heavy)
    before = np.cumsum(total) - total
    order = np.lexsort((leader, pass_of))
    done = np.empty_like(heavy)
    done[order] = np.cumsum(heavy[order])
    share = (done - heavy / 2 - before[pass_of]) / total[pass_of]
    return _numbered(pass_of, np.clip((share * parts).astype(np.int64), 0, parts - 1))


def _numbered(*labels: NDArray[Any]) -> NDArray[np.int64]:
    """One number for each combination of labels."""
    _, group = np.unique(np.stack(labels), axis=1, return_inverse=True)
    return group.reshape(-1).astype(np.int64)
