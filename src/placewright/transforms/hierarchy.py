"""Hierarchy of groupings: coarser and coarser groups that keep heavy tensors inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.transforms.grouping import Grouping, number_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

_SHRINK_FACTOR = 3.0  # each grouping has about this many times fewer groups than the one before
_MAX_SHARE = 2.0  # times an equal share of the work: groups do not grow beyond


def nested_groupings(problem: Problem, smallest: int = 12) -> list[Grouping]:
    """Groupings from fine to coarse, each made of whole groups of the one before.

    Undirected heavy-edge matching (Karypis and Kumar 1998), rated as in KaHIP by
    weight² / (work × work), so that small ops join their neighbours first. Groups need not be
    convex: their ops are placed together, but not run as one. The first grouping is
    by leaders (units, weights with their first reader); the last has about `smallest` groups.
    """
    a = problem.arrays
    group = number_labels(a.leader.tolist())
    seconds = np.where(a.scheduled, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
    work = np.bincount(group, weights=seconds).astype(np.float64)
    # Ops without cost count a little, so that they do not all merge into one group.
    work += max(float(work.sum()), 1e-12) / (10 * len(work))
    tails, heads, weights = _group_edges(problem, group)
    levels = [Grouping("team", group)]
    size = len(work)
    while size > smallest:
        target = max(smallest, int(size / _SHRINK_FACTOR))
        merged_group = np.arange(len(work))
        while size > target:
            merged = _match_groups(tails, heads, weights, work, target)
            count = int(merged.max()) + 1
            if count > 0.95 * size:
                break
            merged_group, size = merged[merged_group], count
            work = np.bincount(merged, weights=work).astype(np.float64)
            tails, heads, weights = _merge_parallel_edges(
                merged[tails], merged[heads], weights, count
            )
        if int(merged_group.max()) + 1 > 0.8 * len(merged_group):
            break
        group = merged_group[group].astype(np.int32)
        levels.append(Grouping(f"nest:{size}", number_labels(group.tolist())))
    return levels


_Edges = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.float64]"]


def _group_edges(problem: Problem, group: NDArray[np.int32]) -> _Edges:
    """Pairs of groups and the seconds of the tensors between them, over the slowest link."""
    a = problem.arrays
    tensor = np.repeat(np.arange(len(a.sizes)), np.diff(a.first_reader))
    seconds = a.transfer.max(axis=0) if len(a.transfer) else a.sizes * 1e-9
    source, target = group[a.producer[tensor]], group[a.readers]
    is_edge = (source != target) & a.scheduled[a.readers]
    # A tensor counts once for each group that reads it.
    first_reads = np.unique(tensor[is_edge] * a.ops + target[is_edge], return_index=True)[1]
    tail, head = (
        source[is_edge][first_reads].astype(np.int64),
        target[is_edge][first_reads].astype(np.int64),
    )
    return _merge_parallel_edges(
        tail, head, seconds[tensor[is_edge][first_reads]], int(group.max()) + 1
    )


def _merge_parallel_edges(
    tails: NDArray[np.int64], heads: NDArray[np.int64], weights: NDArray[np.float64], count: int
) -> _Edges:
    """Each pair once, whatever its direction, with the sum of its weights; no loops."""
    low, high = np.minimum(tails, heads), np.maximum(tails, heads)
    is_distinct = low != high
    keys, pair_index = np.unique(low[is_distinct] * count + high[is_distinct], return_inverse=True)
    sums = np.bincount(pair_index.ravel(), weights=weights[is_distinct], minlength=len(keys))
    return keys // count, keys % count, sums.astype(np.float64)


def _match_groups(
    tails: NDArray[np.int64],
    heads: NDArray[np.int64],
    weights: NDArray[np.float64],
    work: NDArray[np.float64],
    target: int,
) -> NDArray[np.int64]:
    """A new number for each group: matched pairs share one."""
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # the order does not matter for absurd seconds
        rating = weights**2 / (work[tails] * work[heads])
    order = np.lexsort((np.arange(len(rating)), -rating))
    max_work = _MAX_SHARE * float(work.sum()) / target
    partner = list(range(len(work)))
    is_free = [True] * len(work)
    merges_left = len(work) - target
    heavy_pairs = (work[tails] + work[heads] > max_work)[order].tolist()
    for tail, head, too_heavy in zip(
        tails[order].tolist(), heads[order].tolist(), heavy_pairs, strict=True
    ):
        if merges_left and not too_heavy and is_free[tail] and is_free[head]:
            is_free[tail] = is_free[head] = False
            partner[head] = tail
            merges_left -= 1
    return number_labels(partner).astype(np.int64)
