"""Groups ops for policies by a named rule, and describes the groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError, ProblemError, nearest
from placewright.transforms import (
    Grouping,
    by_cell_calls,
    by_colocation,
    by_forward,
    by_heavy_edges,
    by_module_count,
    network_cells,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.problem import Problem


def _coarse_groups(problem: Problem, count: int) -> Grouping:
    """Convex groups by heavy edges; where units make that impossible, segments of the graph."""
    try:
        return by_heavy_edges(problem, count)
    except ProblemError:
        unit = np.unique(problem.arrays.leader, return_inverse=True)[1].astype(np.int64)
        units = int(unit.max()) + 1
        labels = unit * min(count, units) // units
        return Grouping.of(f"stretches:{count}", problem, labels.tolist())


def _single_ops(problem: Problem, count: int) -> Grouping:
    """One group per unit; convex groups where those are too many."""
    leader = problem.arrays.leader
    if len(np.unique(leader)) > count:
        return _coarse_groups(problem, count)
    return Grouping.of("op", problem, leader.tolist())


def _paper_groups(problem: Problem, count: int) -> Grouping:
    """ColocRL's groups: calls of the network's cells; where it has no rule, co-location alone."""
    cells = network_cells(problem)
    return by_cell_calls(problem, cells, count) if cells else by_colocation(problem, count)


GROUPINGS: dict[str, Callable[[Problem, int], Grouping]] = {
    "colocation": by_colocation,
    "cells": _paper_groups,
    "coarse": _coarse_groups,
    "module": by_module_count,
    "op": _single_ops,
    "forward": lambda problem, _: by_forward(problem),
}
"""Groupings by name; each is called with the largest number of groups to make."""


def group_ops(problem: Problem, rule: str, count: int) -> Grouping:
    """The problem's ops in at most `count` groups (rule `forward`: as many as there are)."""
    if rule not in GROUPINGS:
        raise ConfigError(f"no grouping is named {rule!r}: {nearest(rule, GROUPINGS)}")
    return GROUPINGS[rule](problem, count)


def legal_devices(problem: Problem, grouping: Grouping) -> NDArray[np.bool_]:
    """Groups × devices: where at least one op is legal; `Problem.legalize` does the rest."""
    a, group = problem.arrays, grouping.group
    legal = np.zeros((len(grouping), a.devices), dtype=bool)
    np.logical_or.at(legal, group[a.scheduled], a.allowed[a.scheduled])
    unscheduled = ~legal.any(axis=1)  # groups of unscheduled ops alone, e.g. unread weights
    legal[unscheduled] = a.allowed[np.unique(group, return_index=True)[1][unscheduled]]
    return legal


def group_edges(problem: Problem, grouping: Grouping) -> NDArray[np.int64]:
    """Distinct (source group, reading group) pairs of different groups, as two rows."""
    a, group = problem.arrays, grouping.group.astype(np.int64)
    source, target = group[a.producer[a.inputs]], group[a.reader]
    pairs = np.unique(np.stack([source, target])[:, source != target], axis=1)
    return pairs.astype(np.int64)


def op_kinds(problem: Problem) -> tuple[str, ...]:
    """The kinds of op that the graph has, in alphabetical order."""
    return tuple(sorted({op.kind for op in problem.graph.ops}))


def kind_counts(
    problem: Problem, grouping: Grouping, kinds: tuple[str, ...]
) -> NDArray[np.float32]:
    """Groups × kinds: how many ops of each kind a group has; unknown kinds are left out."""
    kind_index = {kind: at for at, kind in enumerate(kinds)}
    counts = np.zeros((len(grouping), len(kinds)), dtype=np.float32)
    for group, op in zip(grouping.group.tolist(), problem.graph.ops, strict=True):
        if op.kind in kind_index:
            counts[group, kind_index[op.kind]] += 1
    return counts


def largest_output_bytes(
    problem: Problem, grouping: Grouping, max_tensors: int
) -> NDArray[np.float32]:
    """Groups × `max_tensors`: the largest tensors that other groups read, logarithmic, up to 1.

    The papers use output shapes; our tensors have bytes and no shapes.
    """
    a, group = problem.arrays, grouping.group
    crossing = np.unique(a.inputs[group[a.producer[a.inputs]] != group[a.reader]])
    crossing = crossing[a.scheduled[a.producer[crossing]]]
    log_sizes = np.zeros((len(grouping), max_tensors), dtype=np.float32)
    filled = np.zeros(len(grouping), dtype=np.int64)
    for tensor in crossing[np.argsort(-a.sizes[crossing], kind="stable")].tolist():
        source_group = int(group[a.producer[tensor]])
        if filled[source_group] < max_tensors:
            log_sizes[source_group, filled[source_group]] = np.log1p(float(a.sizes[tensor]))
            filled[source_group] += 1
    return log_sizes / max(float(log_sizes.max(initial=0.0)), 1e-9)


def output_bytes(problem: Problem, grouping: Grouping) -> NDArray[np.float64]:
    """Groups: bytes of all tensors that other groups read."""
    a, group = problem.arrays, grouping.group
    crossing = np.unique(a.inputs[group[a.producer[a.inputs]] != group[a.reader]])
    crossing = crossing[a.scheduled[a.producer[crossing]]]
    total = np.bincount(
        group[a.producer[crossing]], weights=a.sizes[crossing], minlength=len(grouping)
    )
    return total.astype(np.float64)


def check_dimensions(problem: Problem, devices: int, groups: int, group_count: int) -> None:
    """Raise ProblemError unless the problem has as many devices and groups as the policy."""
    if problem.arrays.devices != devices or group_count != groups:
        raise ProblemError(
            f"the policy was made for {devices} devices and {groups} groups: the problem has "
            f"{problem.arrays.devices} and {group_count}; train a policy for it"
        )
