"""Module groups: groups ops by the model's module hierarchy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.transforms.grouping import Grouping

if TYPE_CHECKING:
    from placewright.problem import Problem


def by_module(problem: Problem, depth: int | None = None) -> Grouping:
    """Ops of one module path, cut off after `depth` names, in one group.

    An op without a path goes with the op it reads last. Not always convex.
    """
    labels: list[str] = []
    for op in problem.graph.ops:
        path = ".".join(op.module.split(".")[:depth])
        if not path and op.inputs:
            path = labels[max(source for source, _ in op.inputs)]
        labels.append(path)
    return Grouping.of("module" if depth is None else f"module:{depth}", problem, labels)


def by_module_count(problem: Problem, count: int) -> Grouping:
    """The deepest cut of the module paths that gives at most `count` groups (or the topmost)."""
    max_depth = max(op.module.count(".") + 1 for op in problem.graph.ops)
    deepest_fit = by_module(problem, 1)
    for depth in range(2, max_depth + 1):
        grouping = by_module(problem, depth)
        if len(grouping) > count:
            break
        deepest_fit = grouping
    return deepest_fit
