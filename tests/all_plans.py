"""Every placement and every order of a tiny problem, for oracles by brute force."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright import Problem


def all_placements(problem: Problem) -> NDArray[np.int32]:
    """Every placement that keeps the constraints."""
    a = problem.arrays
    heads = np.unique(a.unit_head)
    choices = [np.flatnonzero(a.allowed[head]) for head in heads]
    combinations = np.array(list(itertools.product(*choices)), dtype=np.int32)
    return combinations.reshape(-1, len(heads))[:, np.searchsorted(heads, a.unit_head)]


def all_orders(problem: Problem) -> NDArray[np.float64]:
    """Every topological order of the ops that take a turn, as priorities."""
    a = problem.arrays
    turns = np.flatnonzero(a.scheduled).tolist()
    reads = [
        {int(op) for op in a.producer[a.inputs[a.first_input[op] : a.first_input[op + 1]]]}
        & set(turns)
        for op in range(a.ops)
    ]
    orders: list[list[int]] = [[]]
    for _ in turns:
        orders = [
            [*order, op]
            for order in orders
            for op in turns
            if op not in order and reads[op] <= set(order)
        ]
    priority = np.zeros((len(orders), a.ops))
    for row, order in zip(priority, orders, strict=True):
        row[order] = np.arange(len(order))
    return priority
