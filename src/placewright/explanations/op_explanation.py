"""One op explained: a problem, a plan and an op in, what it does in the step out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright import simulator
from placewright.explanations.moves import (
    Move,
    goes_along,
    moves_of,
)
from placewright.transforms import contract

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.timeline import Timeline

_HALVINGS = 20  # of the step time: to a millionth of it


@dataclass(frozen=True)
class Sent:
    """A tensor, or a streamed weight, on its way.

    Args:
        op: The op that made it, or the weight.
        streamed: Whether it is a streamed weight.
        start, end: From when until when; a copy that was interrupted is one, with its pauses.
    """

    op: int
    source: int
    target: int
    start: float
    end: float
    bytes: int
    streamed: bool


@dataclass(frozen=True)
class OneOp:
    """What an op does in the step of a plan.

    Args:
        op: Its position in the graph.
        device: Where it is.
        start, end: When it runs, with its fused group if it is in one; what takes no turn is at 0.
        on_path: Whether it runs, or what it makes is sent, on the critical path, or neither.
        slack: Seconds that it may take longer before the objective grows; infinite if it may
            take as long as the whole step; None for what takes no turn.
        along: The other ops that move with it.
        fused_with: The other ops of its fused group.
        arriving, leaving: What it reads from other devices, and what it makes that is sent.
        moves: What becomes of the objective on every other device, the best first.
    """

    op: int
    device: int
    start: float
    end: float
    on_path: Literal["runs", "sent", "no"]
    slack: float | None
    along: tuple[int, ...]
    fused_with: tuple[int, ...]
    arriving: tuple[Sent, ...]
    leaving: tuple[Sent, ...]
    moves: tuple[Move, ...]


def explain_op(problem: Problem, plan: Plan, op: int) -> OneOp:
    """What an op does in the step, how critical it is, and what moving it does."""
    timeline = simulator.simulate(problem, plan)
    moved = timeline.transfers.tensor
    path = simulator.critical_path(problem, timeline)
    members = [op]
    if plan.fusion is not None and plan.fusion[op] >= 0:
        members = np.flatnonzero(plan.fusion == plan.fusion[op]).tolist()
    name = problem.graph.ops[members[0]].name  # a group is called after its first member
    kinds = {piece.kind for piece in path.pieces if path.names[piece.op] == name}
    on_path: Literal["runs", "sent", "no"] = "no"
    if "compute" in kinds:
        on_path = "runs"
    elif kinds & {"send", "stream"}:
        on_path = "sent"
    a = problem.arrays
    along = goes_along(problem, plan, op)
    along[op] = False
    return OneOp(
        op=op,
        device=int(plan.device[op]),
        start=float(timeline.start[op]),
        end=float(timeline.end[op]),
        on_path=on_path,
        slack=_slack(problem, plan, op) if a.turn[op] else None,
        along=tuple(np.flatnonzero(along).tolist()),
        fused_with=tuple(each for each in members if each != op),
        arriving=_arriving(problem, timeline, op, members[0]),
        leaving=_sent(problem, timeline, problem.arrays.producer[moved] == op),
        moves=tuple(moves_of(problem, plan, op)),
    )


def _arriving(problem: Problem, timeline: Timeline, op: int, group: int) -> tuple[Sent, ...]:
    """What an op reads from other devices; weights are streamed to its group's first member."""
    a, moved = problem.arrays, timeline.transfers
    read = np.isin(moved.tensor, a.inputs[a.first_input[op] : a.first_input[op + 1]])
    here = moved.target == timeline.plan.device[op]
    return _sent(problem, timeline, read & here & np.isin(moved.reader, (-1, group)))


def _sent(problem: Problem, timeline: Timeline, rows: NDArray[np.bool_]) -> tuple[Sent, ...]:
    """These rows of the transfers, each copy once, by time."""
    a, moved = problem.arrays, timeline.transfers
    found: dict[tuple[int, int, int], Sent] = {}
    for row in np.flatnonzero(rows).tolist():  # by start
        tensor, target, reader = (
            int(moved.tensor[row]),
            int(moved.target[row]),
            int(moved.reader[row]),
        )
        first = found.get((tensor, target, reader))
        found[tensor, target, reader] = Sent(
            op=int(a.producer[tensor]),
            source=int(moved.source[row]),
            target=target,
            start=float(moved.start[row]) if first is None else first.start,
            end=float(moved.end[row]),
            bytes=int(a.sizes[tensor]),
            streamed=reader >= 0,
        )
    return tuple(found.values())


def _slack(problem: Problem, plan: Plan, op: int) -> float:
    """By how much an op's time may grow, found by letting it take longer and longer.

    So everything counts that the rules know: who waits for whom, devices, channels, staging rooms.
    """
    if plan.fusion is not None:
        small = contract(problem, plan)
        problem, plan, op = small.problem, small.plan, int(small.op[op])
    place = int(plan.device[op])

    def value(longer: float) -> float:
        compute = problem.arrays.compute.copy()
        compute[op, place] += longer
        asked = problem.with_arrays(compute=compute)
        verdict = simulator.judge(asked, plan.device, plan.priority, plan.staging)
        return float(verdict.value[0])

    now = value(0.0)
    grown = now * (1 + 1e-12)
    low, high = 0.0, now
    if value(high) <= grown:
        return float("inf")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if value(middle) <= grown:
            low = middle
        else:
            high = middle
    return low
