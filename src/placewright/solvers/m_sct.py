"""m-SCT, small communication times within memory: Jeon et al. 2020, "Baechi", SoCC.

After Hanen and Munier 1995, INRIA/IEEE ETFA.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.scheduling.ranks import mean_transfer, upward_ranks
from placewright.solvers.m_etf import schedule
from placewright.solvers.memory_retry import judge_schedule

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.solvers.search import Search

Edges = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Parents, children, and the seconds to send the parent's tensors to the child."""


@dataclass(frozen=True)
class MSCT:
    """m-ETF in which a device waits for the favourite child of the op it has just run.

    A linear program (solved with HiGHS) decides which child, if any, should share its parent's
    device. It takes about a second for 5,000 ops. Above `max_edges` edges it is not solved; then an
    op's favourite is the child with the longest path to the graph's end, if the op is also the
    parent that this child waits for longest.

    Args:
        max_edges: The number of edges up to which the linear program is solved.
        contended: Whether transfers wait for their channel in the schedule.
    """

    max_edges: int = 20_000
    contended: bool = True

    @property
    def name(self) -> str:
        return "m-sct" if self.contended else "m-sct-free"

    def run(self, search: Search) -> None:
        favourite = favourites(search.problem, self.max_edges)
        make_schedule = partial(schedule, search.problem, favourite, contended=self.contended)
        judge_schedule(search, lambda memory_margin: make_schedule(memory_margin=memory_margin))


def favourites(problem: Problem, max_edges: int = MSCT.max_edges) -> NDArray[np.int64]:
    """Each op's favourite child, or -1; no op is the favourite of two."""
    edges = _edges(problem)
    parent, child, _ = edges
    favourite = np.full(problem.arrays.ops, -1)
    if len(parent):
        separation = _relaxed_separation(problem, edges) if len(parent) <= max_edges else None
        # A share below one half is unique among an op's children and among its parents.
        is_favourite = (
            separation < 0.5 - 1e-6
            if separation is not None
            else _longest_path_edges(problem, edges)
        )
        favourite[parent[is_favourite]] = child[is_favourite]
    return favourite


def _edges(problem: Problem) -> Edges:
    """One edge for each pair of scheduled ops with tensors between them."""
    a = problem.arrays
    source = a.producer[a.inputs]
    is_edge = a.scheduled[source] & a.scheduled[a.reader]
    pairs, edge = np.unique(
        np.stack([source[is_edge], a.reader[is_edge]], axis=1), axis=0, return_inverse=True
    )
    seconds = mean_transfer(a)[a.inputs[is_edge]]
    send_seconds = np.bincount(edge.ravel(), weights=seconds, minlength=len(pairs)).astype(
        np.float64
    )
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64), send_seconds


def _relaxed_separation(problem: Problem, edges: Edges) -> NDArray[np.float64] | None:
    """How far apart parent and child of each edge should be, from 0 (together) to 1.

    Hanen and Munier's integer program, relaxed: minimise the last finish, where a child starts
    after its parent has finished and, if they are apart, has sent its tensors; each op has at most
    one child and at most one parent that it is not apart from. None if HiGHS finds no optimum.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    a = problem.arrays
    parent, child, send_seconds = edges
    ops, count = a.ops, len(parent)
    op_seconds = np.where(a.scheduled, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
    # HiGHS has absolute tolerances, so the typical op must take about 1.
    time_unit = float(op_seconds.sum() + send_seconds.sum()) / (ops + count) or 1.0
    op_seconds, send_seconds = op_seconds / time_unit, send_seconds / time_unit
    op, edge = np.arange(ops), np.arange(count)
    start, separation, makespan = op, ops + edge, ops + count  # columns of the variables
    op_ones, edge_ones = np.ones(ops), np.ones(count)
    entries = [  # (rows, columns, factors); all rows read "at most"
        (op, start, op_ones),  # start + takes <= last
        (op, np.full(ops, makespan), -op_ones),
        (ops + edge, start[parent], edge_ones),  # start + takes + sending * apart <= child's start
        (ops + edge, start[child], -edge_ones),
        (ops + edge, separation, send_seconds),
        (ops + count + parent, separation, -edge_ones),  # all children but one are apart
        (2 * ops + count + child, separation, -edge_ones),  # all parents but one are apart
    ]
    rows, columns, factors = (np.concatenate(arrays) for arrays in zip(*entries, strict=True))
    child_count, parent_count = (
        np.bincount(parent, minlength=ops),
        np.bincount(child, minlength=ops),
    )
    shape = (3 * ops + count, ops + count + 1)
    solution = linprog(
        np.arange(ops + count + 1) == makespan,
        A_ub=coo_array((factors, (rows, columns)), shape=shape).tocsr(),
        b_ub=np.concatenate([-op_seconds, -op_seconds[parent], 1 - child_count, 1 - parent_count]),
        bounds=[(0, None)] * ops + [(0, 1)] * count + [(0, None)],
        method="highs-ds",
    )
    return solution.x[ops : ops + count] if solution.status == 0 else None


def _longest_path_edges(problem: Problem, edges: Edges) -> NDArray[np.bool_]:
    """Edges on their parent's longest path to the end and their child's longest from the start."""
    parent, child, send_seconds = edges
    tail_seconds = send_seconds + upward_ranks(problem.arrays)[child]
    head_seconds = np.zeros(problem.arrays.ops)
    op_seconds = problem.arrays.compute.min(axis=1)
    for edge in np.argsort(child, kind="stable"):  # children by position: parents are done before
        arrival = head_seconds[parent[edge]] + op_seconds[parent[edge]] + send_seconds[edge]
        head_seconds[child[edge]] = max(head_seconds[child[edge]], arrival)
    arrival = head_seconds[parent] + op_seconds[parent] + send_seconds
    return _first_largest(parent, tail_seconds) & _first_largest(child, arrival)


def _first_largest(group: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Marks the first of the largest values in each group."""
    order = np.lexsort((-values, group))
    is_first = np.concatenate([[True], np.diff(group[order]) > 0])
    is_largest = np.zeros(len(group), dtype=bool)
    is_largest[order[is_first]] = True
    return is_largest
