"""Explains one op: what it does in the step, how critical it is, and what moving it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright import simulator
from placewright.explanations.moves import (
    OpMove,
    move_mask,
    op_moves,
)
from placewright.transforms import contract

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.timeline import Timeline

_HALVINGS = 20  # of the step time: to a millionth of it


@dataclass(frozen=True)
class TensorTransfer:
    """The transfer of a tensor or of a streamed weight.

    Args:
        op: The op that made it, or the weight.
        is_streamed: Whether it is a streamed weight.
        start, end: From when until when; a copy that was interrupted is one, with its pauses.
    """

    op: int
    source: int
    target: int
    start: float
    end: float
    bytes: int
    is_streamed: bool


@dataclass(frozen=True)
class OpExplanation:
    """What an op does in the step of a plan.

    Args:
        op: Its position in the graph.
        device: Where it is.
        start, end: When it runs, with its fused group if it is in one; what takes no turn is at 0.
        on_path: Whether it runs, or what it makes is sent, on the critical path, or neither.
        slack: Seconds that it may take longer before the objective grows; infinite if it may
            take as long as the whole step; None for what takes no turn.
        followers: The other ops that move with it.
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
    followers: tuple[int, ...]
    fused_with: tuple[int, ...]
    incoming: tuple[TensorTransfer, ...]
    outgoing: tuple[TensorTransfer, ...]
    moves: tuple[OpMove, ...]


def explain_op(problem: Problem, plan: Plan, op: int) -> OpExplanation:
    """What an op does in the step, how critical it is, and what moving it does."""
    timeline = simulator.simulate(problem, plan)
    sent_tensors = timeline.transfers.tensor
    path = simulator.find_critical_path(problem, timeline)
    members = [op]
    if plan.fusion is not None and plan.fusion[op] >= 0:
        members = np.flatnonzero(plan.fusion == plan.fusion[op]).tolist()
    name = problem.graph.ops[members[0]].name  # a group is called after its first member
    kinds = {segment.kind for segment in path.segments if path.op_names[segment.op] == name}
    on_path: Literal["runs", "sent", "no"] = "no"
    if "compute" in kinds:
        on_path = "runs"
    elif kinds & {"send", "stream"}:
        on_path = "sent"
    a = problem.arrays
    mask = move_mask(problem, plan, op)
    mask[op] = False
    return OpExplanation(
        op=op,
        device=int(plan.placement[op]),
        start=float(timeline.start[op]),
        end=float(timeline.end[op]),
        on_path=on_path,
        slack=_slack(problem, plan, op) if a.scheduled[op] else None,
        followers=tuple(np.flatnonzero(mask).tolist()),
        fused_with=tuple(member for member in members if member != op),
        incoming=_incoming_transfers(problem, timeline, op, members[0]),
        outgoing=_op_transfers(problem, timeline, problem.arrays.producer[sent_tensors] == op),
        moves=tuple(op_moves(problem, plan, op)),
    )


def _incoming_transfers(
    problem: Problem, timeline: Timeline, op: int, group_head: int
) -> tuple[TensorTransfer, ...]:
    """Transfers that an op reads; weights are streamed to its group's first member."""
    a, transfers = problem.arrays, timeline.transfers
    is_read = np.isin(transfers.tensor, a.inputs[a.first_input[op] : a.first_input[op + 1]])
    is_local = transfers.target == timeline.plan.placement[op]
    return _op_transfers(
        problem, timeline, is_read & is_local & np.isin(transfers.reader, (-1, group_head))
    )


def _op_transfers(
    problem: Problem, timeline: Timeline, selected: NDArray[np.bool_]
) -> tuple[TensorTransfer, ...]:
    """Rows of the transfers, each copy once, by time."""
    a, transfers = problem.arrays, timeline.transfers
    copies: dict[tuple[int, int, int], TensorTransfer] = {}
    for row in np.flatnonzero(selected).tolist():  # by start
        tensor, target, reader = (
            int(transfers.tensor[row]),
            int(transfers.target[row]),
            int(transfers.reader[row]),
        )
        previous = copies.get((tensor, target, reader))
        copies[tensor, target, reader] = TensorTransfer(
            op=int(a.producer[tensor]),
            source=int(transfers.source[row]),
            target=target,
            start=float(transfers.start[row]) if previous is None else previous.start,
            end=float(transfers.end[row]),
            bytes=int(a.sizes[tensor]),
            is_streamed=reader >= 0,
        )
    return tuple(copies.values())


def _slack(problem: Problem, plan: Plan, op: int) -> float:
    """By how much an op's time may grow, found by letting it take longer and longer.

    So everything counts that the rules know: who waits for whom, devices, channels, staging rooms.
    """
    if plan.fusion is not None:
        contracted = contract(problem, plan)
        problem, plan, op = contracted.problem, contracted.plan, int(contracted.contracted_op[op])
    device = int(plan.placement[op])

    def value(extra_seconds: float) -> float:
        compute = problem.arrays.compute.copy()
        compute[op, device] += extra_seconds
        slowed_problem = problem.with_arrays(compute=compute)
        verdict = simulator.judge(slowed_problem, plan.placement, plan.priority, plan.staging)
        return float(verdict.value[0])

    current = value(0.0)
    threshold = current * (1 + 1e-12)
    low, high = 0.0, current
    if value(high) <= threshold:
        return float("inf")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if value(middle) <= threshold:
            low = middle
        else:
            high = middle
    return low
