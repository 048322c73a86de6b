"""Fuses ops: the fused groups of many plans, from their placements and op urgencies.

Groups are grown edge by edge. An edge is taken if both ops are on one device, `fusible.py` allows
the group, and no other path leads from its producer's group to its reader's, so that the contracted
graph stays acyclic. The compiled `_fuser` keeps the groups in a topological order (Pearce and Kelly
2006) and searches for another path from both ends. A long search is given up and the edge is not
taken; groups have 64 ops at most.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import PlanError
from placewright.transforms._fuser import Fuser
from placewright.transforms.fusible import fusion_roles

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays

_fusers: weakref.WeakKeyDictionary[Arrays, Fuser] = weakref.WeakKeyDictionary()


def fuse(
    problem: Problem, placement: ArrayLike, urgency: ArrayLike, threads: int = 1
) -> NDArray[np.int32]:
    """Fused groups, the most urgent ops first (the fusion action of GO, Zhou et al. 2020).

    Ops are visited from the most urgent to the least, those of one urgency in graph order; each is
    fused with its producers and then its readers, as far as each may. Ops of urgency 0 or less are
    never fused.

    Args:
        placement: Plans × ops, or ops.
        urgency: The same shape; levels or any finite numbers.
        threads: Threads that share the plans, outside the interpreter's lock.

    Returns:
        The same shape: the first op of each op's group, or -1 for ops that stay alone.
    """
    placements = _plan_rows(problem, placement, np.int32, "device")
    urgencies = _plan_rows(problem, urgency, np.float64, "urgency")
    if np.isnan(urgencies).any():
        raise PlanError("an urgency is not a number: expected one number per op")
    if len(urgencies) == 1 and len(placements) > 1:
        urgencies = np.ascontiguousarray(np.broadcast_to(urgencies, placements.shape))
    if urgencies.shape != placements.shape:
        raise PlanError(f"urgencies of shape {urgencies.shape}: expected {placements.shape}")
    group = _fuser(problem).fuse(placements, urgencies, threads)
    return group.reshape(np.shape(placement))


def fuse_greedily(problem: Problem, placement: ArrayLike, threads: int = 1) -> NDArray[np.int32]:
    """Fused groups as a compiler makes them, without regard to the step: the default.

    From the last op to the first, each goes into all of its readers if each may take it, so that
    its tensor need not be stored (XLA's instruction fusion, without computing ops twice).

    Args:
        placement: Plans × ops, or ops.

    Returns:
        The same shape: the first op of each op's group, or -1 for ops that stay alone.
    """
    placements = _plan_rows(problem, placement, np.int32, "device")
    return _fuser(problem).fuse(placements, None, threads).reshape(np.shape(placement))


def dissolve_groups(fusion: NDArray[np.integer], op_mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The groups without those of the marked ops; the others still make no cycle."""
    touched = np.unique(fusion[op_mask])
    return np.where(np.isin(fusion, touched), -1, fusion).astype(np.int32)


def _plan_rows(problem: Problem, values: ArrayLike, dtype: type[Any], label: str) -> NDArray[Any]:
    rows = np.ascontiguousarray(np.atleast_2d(np.asarray(values)), dtype=dtype)
    if rows.ndim != 2 or rows.shape[1] != problem.arrays.ops:
        raise PlanError(
            f"the {label} of a plan has {rows.shape[-1]} ops: the graph has {problem.arrays.ops}"
        )
    return rows


def _fuser(problem: Problem) -> Fuser:
    """The compiled fuser of a problem, cached for as long as its arrays live."""
    a = problem.arrays
    if a not in _fusers:
        source = a.producer[a.inputs].astype(np.int64)
        scheduled = a.scheduled[a.reader] & a.scheduled[source]
        edges = np.unique(
            source[scheduled] * a.ops + a.reader[scheduled]
        )  # by producer, then reader
        tails, heads = edges // a.ops, edges % a.ops
        backwards = np.lexsort((tails, heads))
        _fusers[a] = Fuser(
            fusion_roles(problem),
            _offsets(heads, a.ops),
            tails[backwards].astype(np.int32),
            _offsets(tails, a.ops),
            heads.astype(np.int32),
        )
    return _fusers[a]


def _offsets(keys: NDArray[np.int64], ops: int) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=ops))]).astype(np.int32)
