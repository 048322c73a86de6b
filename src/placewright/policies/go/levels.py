"""The levels that GO decides at: modules, parts of modules, and units.

Strong plans have a module of the network on one device, with all its time steps and its backward
pass: rounded to modules they take 1.00 to 1.10 times as long on RNNLM and NMT, where as many groups
along heavy edges take twice as long. Parts of modules are for finer decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.transforms import layer_positions, nested_groupings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

MODULES, PARTS, UNITS = "module", "part", "unit"
LEVELS = (MODULES, PARTS, UNITS)
"""The levels of passes, from coarse to fine."""
_TARGET_MODULES = 150  # about as many groups where the graph has no modules
_TARGET_PARTS = 400  # about as many parts of all modules together
_MAX_PARTS = 8  # parts of a module's forward pass, and of its backward pass


def by_modules(
    problem: Problem, leader: NDArray[np.int64], legal: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Units: the module of each, split by legal devices.

    Where the graph has no modules, groups along heavy edges.
    """
    position: NDArray[Any] | None = layer_positions(problem)
    if position is None:
        levels = nested_groupings(problem)
        position = next(
            (grouping for grouping in levels if len(grouping) <= _TARGET_MODULES), levels[-1]
        ).group
    _, device_set = np.unique(legal, axis=0, return_inverse=True)
    return _combine_labels(position[leader], device_set.reshape(-1))


def by_parts(
    problem: Problem,
    leader: NDArray[np.int64],
    work: NDArray[np.float64],
    module: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Units: the part of each: a module's forward or backward pass, in segments of equal work."""
    phases = [str(problem.graph.ops[op].phase) for op in leader.tolist()]
    phase = np.unique(phases, return_inverse=True)[1].reshape(-1)
    pass_of = _combine_labels(module, phase)
    parts = int(np.clip(_TARGET_PARTS / (int(pass_of.max()) + 1), 1, _MAX_PARTS))
    weight = work + 1e-6 * max(float(work.mean()), 1e-30)
    total = np.bincount(pass_of, weight)
    work_before = np.cumsum(total) - total
    order = np.lexsort((leader, pass_of))
    cumulative = np.empty_like(weight)
    cumulative[order] = np.cumsum(weight[order])
    share = (cumulative - weight / 2 - work_before[pass_of]) / total[pass_of]
    return _combine_labels(pass_of, np.clip((share * parts).astype(np.int64), 0, parts - 1))


def _combine_labels(*labels: NDArray[Any]) -> NDArray[np.int64]:
    """One number for each combination of labels."""
    _, group = np.unique(np.stack(labels), axis=1, return_inverse=True)
    return group.reshape(-1).astype(np.int64)
