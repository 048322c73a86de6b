"""Nested groups: a problem in, coarser and coarser groupings that keep heavy tensors inside out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.transforms.grouping import Grouping, numbered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

_SHRINK = 3.0  # each grouping has about so many times fewer groups than the one before
_LARGEST = 2.0  # times an equal share: the most work that a group may grow to


def nested(problem: Problem, smallest: int = 12) -> list[Grouping]:
    """Groupings from fine to coarse, each made of whole groups of the one before.

    Undirected heavy-edge matching (Karypis and Kumar 1998), rated as in KaHIP by
    weight² / (work × work), so that small ops join their neighbours first. Groups need not be
    convex: they are for placing ops together, not for running them as one. The first grouping is
    by leaders (units, weights with their first reader); the last has about `smallest` groups.
    """
    a = problem.arrays
    group = numbered(a.leader.tolist())
    seconds = np.where(a.turn, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
    work = np.bincount(group, weights=seconds).astype(np.float64)
    # Ops of no cost must not all run together into one group: each counts a little.
    work += max(float(work.sum()), 1e-12) / (10 * len(work))
    tails, heads, weights = _flows(problem, group)
    levels = [Grouping("team", group)]
    size = len(work)
    while size > smallest:
        target = max(smallest, int(size / _SHRINK))
        into = np.arange(len(work))
        while size > target:
            merged = _matched(tails, heads, weights, work, target)
            count = int(merged.max()) + 1
            if count > 0.95 * size:
                break
            into, size = merged[into], count
            work = np.bincount(merged, weights=work).astype(np.float64)
            tails, heads, weights = _joined(merged[tails], merged[heads], weights, count)
        if int(into.max()) + 1 > 0.8 * len(into):
            break
        group = into[group].astype(np.int32)
        levels.append(Grouping(f"nest:{size}", numbered(group.tolist())))
    return levels


_Edges = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.float64]"]


def _flows(problem: Problem, group: NDArray[np.int32]) -> _Edges:
    """Pairs of groups and the seconds of the tensors between them, over the slowest link."""
    a = problem.arrays
    tensor = np.repeat(np.arange(len(a.sizes)), np.diff(a.first_reader))
    seconds = a.transfer.max(axis=0) if len(a.transfer) else a.sizes * 1e-9
    source, target = group[a.producer[tensor]], group[a.readers]
    keep = (source != target) & a.turn[a.readers]
    # A tensor counts once for each group that reads it.
    once = np.unique(tensor[keep] * a.ops + target[keep], return_index=True)[1]
    tail, head = source[keep][once].astype(np.int64), target[keep][once].astype(np.int64)
    return _joined(tail, head, seconds[tensor[keep][once]], int(group.max()) + 1)


def _joined(
    tails: NDArray[np.int64], heads: NDArray[np.int64], weights: NDArray[np.float64], count: int
) -> _Edges:
    """Each pair once, whatever its direction, with the sum of its weights; no loops."""
    low, high = np.minimum(tails, heads), np.maximum(tails, heads)
    apart = low != high
    keys, at = np.unique(low[apart] * count + high[apart], return_inverse=True)
    sums = np.bincount(at.ravel(), weights=weights[apart], minlength=len(keys))
    return keys // count, keys % count, sums.astype(np.float64)


def _matched(
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    weights: NDArray[np.float64],
    work: NDArray[np.float64],
    target: int,
) -> NDArray[np.int64]:
    """A new number for each group: matched pairs share one."""
    with np.errstate(over="ignore", invalid="ignore"):  # any order will do for absurd seconds
        rating = weights**2 / (work[tails] * work[heads])
    order = np.lexsort((np.arange(len(rating)), -rating))
    largest = _LARGEST * float(work.sum()) / target
    partner = list(range(len(work)))
    free = [True] * len(work)
    left = len(work) - target
    heavy = (work[tails] + work[heads] > largest)[order].tolist()
    for tail, head, over in zip(tails[order].tolist(), heads[order].tolist(), heavy, strict=True):
        if left and not over and free[tail] and free[head]:
            free[tail] = free[head] = False
            partner[head] = tail
            left -= 1
    return numbered(partner).astype(np.int64)
