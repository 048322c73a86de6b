"""Module groups: a problem in, groups by where ops stand in the model's own hierarchy out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.transforms.grouping import Grouping

if TYPE_CHECKING:
    from placewright.problem import Problem


def by_module(problem: Problem, depth: int | None = None) -> Grouping:
    """Ops of one module path, cut off after `depth` names, in one group.

    An op without a path goes with the op it reads last. Not always convex.
    """
    label: list[str] = []
    for op in problem.graph.ops:
        path = ".".join(op.module.split(".")[:depth])
        if not path and op.inputs:
            path = label[max(source for source, _ in op.inputs)]
        label.append(path)
    return Grouping.of("module" if depth is None else f"module:{depth}", problem, label)


def by_module_count(problem: Problem, count: int) -> Grouping:
    """The deepest cut of the module paths that gives at most `count` groups (or the topmost)."""
    deepest = max(op.module.count(".") + 1 for op in problem.graph.ops)
    chosen = by_module(problem, 1)
    for depth in range(2, deepest + 1):
        grouping = by_module(problem, depth)
        if len(grouping) > count:
            break
        chosen = grouping
    return chosen
