"""Cell calls: the model-specific groups of ColocRL's supplement.

Mirhoseini et al. 2017 put all ops of an LSTM cell at one step into one group, likewise those of an
attention or softmax step, and those of a branch of an Inception module. Here a *cell* is a module
that a pattern names, and each of its calls is a group.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from placewright.transforms.colocate import join_with_forward, merge_to_count, reader_ops
from placewright.transforms.grouping import Grouping

if TYPE_CHECKING:
    from placewright.problem import Problem

CELLS: dict[str, tuple[str, ...]] = {
    "rnnlm": ("embedding", "layers.*", "head"),
    "nmt": ("*.embedding", "*.layers.*", "attention", "head"),
    "inception": ("stem.*", "cells.*.branches.*", "head", "auxiliary"),
}
"""The cells of the networks that the paper has rules for, by the name before the first hyphen."""

_REPEAT_NUMBER = re.compile(r"_\d+$")


def network_cells(problem: Problem) -> tuple[str, ...]:
    """The cells of the problem's network; none if the paper has no rule for it."""
    name = problem.graph.name.partition(":")[0]
    return CELLS.get(name.partition("-")[0], ()) if "-" in name else ()


def by_cell_calls(problem: Problem, cells: tuple[str, ...], count: int | None = None) -> Grouping:
    """Each call of a cell in one group, with its gradients, weights and updates.

    An op outside all cells with exactly one reader joins it, as in `by_colocation`. A cell is
    called as often as its most-read weight is read: the k-th call begins at the k-th repetition of
    the first op that every call has. What a cell computes before that (the keys of an attention)
    is a group of its own.

    Args:
        cells: Patterns of module paths, name by name: `cells.*.branches.*`; the first that matches
            the beginning of a path counts.
        count: The maximum number of groups; see `by_colocation`.
    """
    graph, scheduled = problem.graph, problem.arrays.scheduled
    sets = join_with_forward(problem)
    members: dict[str, list[int]] = {}
    for position, op in enumerate(graph.ops):
        if scheduled[position] and op.phase == "forward":
            cell = _cell_of(op.module, cells)
            if cell is not None:
                members.setdefault(cell, []).append(position)
    in_cell: set[int] = set()
    for ops in members.values():
        in_cell.update(ops)
        first_of_call: dict[int, int] = {}
        for position, call in zip(ops, _call_numbers(problem, ops), strict=True):
            sets.merge(first_of_call.setdefault(call, position), position)
    for position, op in enumerate(graph.ops):
        if scheduled[position] and op.phase == "forward" and position not in in_cell:
            readers = reader_ops(graph, position)
            if len(readers) == 1 and graph.ops[min(readers)].phase == "forward":
                sets.merge(position, min(readers))
    grouping = Grouping.of("cells", problem, [sets.find(op) for op in range(len(graph))])
    return grouping if count is None else merge_to_count(problem, grouping, count)


def _cell_of(module: str, cells: tuple[str, ...]) -> str | None:
    """The beginning of a module path that matches a pattern; None if none does."""
    names = module.split(".")
    for pattern in cells:
        parts = pattern.split(".")
        if len(names) >= len(parts) and all(map(fnmatchcase, names, parts)):
            return ".".join(names[: len(parts)])
    return None


def _call_numbers(problem: Problem, ops: list[int]) -> list[int]:
    """The call that each op of a cell belongs to; -1 for what comes before the first call."""
    graph, is_weight = problem.graph, problem.arrays.is_weight
    reads: dict[int, int] = {}
    for position in ops:
        for source in {source for source, _ in graph.ops[position].inputs}:
            if is_weight[source]:
                reads[source] = reads.get(source, 0) + 1
    calls = max(reads.values(), default=1)
    # The name of an op without its number is the same in each call.
    stems = [_REPEAT_NUMBER.sub("", graph.ops[position].name) for position in ops]
    opening = next((stem for stem in stems if stems.count(stem) % calls == 0), None)
    if opening is None:
        return [0] * len(ops)
    per_call, begun, numbers = stems.count(opening) // calls, 0, []
    for stem in stems:
        begun += stem == opening
        numbers.append((begun - 1) // per_call)
    return numbers
