"""Single moves: what the objective becomes with one op on another device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.plan_batch import PlanBatch
from placewright.transforms import dissolve_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem

    Flags = NDArray[np.bool_]

MIN_GAIN = 1e-3
"""The share of time that a move must gain to be shown."""
_MAX_WORK = 20_000_000  # ops × plans to evaluate for the critical path at most: some seconds


@dataclass(frozen=True)
class OpMove:
    """A plan with one op, and those that move with it, on another device.

    Args:
        op: The op that moves.
        follower_count: How many ops move with it: its unit, and weights that follow it.
        device: The device that it moves to.
        value: The objective after the move; None if the constraints forbid it.
        overflow: Bytes over the memory limits after the move.
        current_key: Overflow and objective of the plan before the move.
        unfused_count: Ops that are no longer fused, since their group would be on two devices.
    """

    op: int
    follower_count: int
    device: int
    value: float | None
    overflow: int
    current_key: tuple[int, float]
    unfused_count: int = 0

    @property
    def relative_change(self) -> float:
        """The relative change of the objective; negative for a gain."""
        if self.value is None:
            return float("inf")
        return self.value / self.current_key[1] - 1 if self.current_key[1] > 0 else 0.0

    @property
    def is_improvement(self) -> bool:
        """Whether it gains enough to be shown: a per mille, or bytes where a plan does not fit."""
        if self.value is None:
            return False
        overflow, value = self.current_key
        return self.overflow < overflow or (
            self.overflow == overflow and self.value < value * (1 - MIN_GAIN)
        )

    @property
    def key(self) -> tuple[float, float]:
        """Moves are compared by overflow, then by the objective."""
        return (np.inf, np.inf) if self.value is None else (self.overflow, self.value)


def move_mask(problem: Problem, plan: Plan, op: int) -> Flags:
    """The ops that move with an op: its unit, and its followers on the same device.

    Weights that a plan keeps elsewhere, to be sent or streamed, stay there.
    """
    a = problem.arrays
    unit = a.unit == a.unit[op]
    followers = (a.leader == a.leader[op]) & (plan.placement == plan.placement[op])
    mask: Flags = unit | (followers & (a.unit[a.leader[op]] == a.unit[op]))
    return mask


def op_moves(problem: Problem, plan: Plan, op: int) -> list[OpMove]:
    """An op on every other device, the best first; forbidden ones last."""
    other_devices = [
        device for device in range(len(problem.cluster)) if device != plan.placement[op]
    ]
    return judge_moves(problem, plan, [(op, device) for device in other_devices])


@dataclass(frozen=True)
class Neighbours:
    """Plans that differ from one by a single move.

    Args:
        moves: The best first.
        tried_ops: Ops that were moved.
        binding_ops: Ops that bind the plan.
        location: Where these are, in words.
    """

    moves: tuple[OpMove, ...]
    tried_ops: int
    binding_ops: int
    location: str

    @property
    def improving_moves(self) -> list[OpMove]:
        """The best move of each op that gains, the best first."""
        best: dict[int, OpMove] = {}
        for move in self.moves:
            if move.is_improvement:
                best.setdefault(move.op, move)
        return list(best.values())


def neighbours(problem: Problem, plan: Plan) -> Neighbours:
    """Single moves of the ops that bind the plan.

    These are on the critical path or, for a period, on the busiest device or at either end of the
    busiest channel. If there are many, the ops that take longest are moved.
    """
    a = problem.arrays
    if problem.objective == "step":
        location, ops = "on the critical path", _critical_ops(problem, plan)
    else:
        location, ops = _bottleneck_ops(problem, plan)
    op_seconds: dict[int, float] = {}
    first_op: dict[int, int] = {}  # ops that move together are moved once, by the first of them
    for op, seconds in ops:
        representative = first_op.setdefault(int(a.leader[op]), op)
        op_seconds[representative] = op_seconds.get(representative, 0.0) + seconds
    devices = len(problem.cluster)
    max_ops = max(1, _MAX_WORK // (a.ops * max(devices - 1, 1)))
    tried_ops = sorted(op_seconds, key=lambda op: -op_seconds[op])[:max_ops]
    pairs = [
        (op, device)
        for op in tried_ops
        for device in range(devices)
        if device != plan.placement[op]
    ]
    moves = judge_moves(problem, plan, pairs)
    return Neighbours(tuple(moves), len(tried_ops), len(op_seconds), location)


def _critical_ops(problem: Problem, plan: Plan) -> list[tuple[int, float]]:
    """Ops that run on the critical path, and for how long."""
    path = simulator.find_critical_path(problem, simulator.simulate(problem, plan))
    position = problem.graph.position
    return [
        (position[path.op_names[segment.op]], segment.seconds)
        for segment in path.segments
        if segment.kind == "compute"
    ]


def _bottleneck_ops(problem: Problem, plan: Plan) -> tuple[str, list[tuple[int, float]]]:
    """Ops on the busiest device, or producers and readers of the busiest channel's tensors."""
    a, load = problem.arrays, simulator.loads(problem, plan)
    device = int(load.device.argmax())
    channels = load.channel if problem.overlap else np.zeros(1)
    if not len(channels) or load.device[device] >= channels.max():
        local_ops = np.flatnonzero(a.scheduled & (plan.placement == device))
        location = f"on {problem.cluster.devices[device].name}, the busiest device"
        return location, [(int(op), float(a.compute[op, device])) for op in local_ops]
    transfers = simulator.simulate(problem, plan).transfers
    rows = np.flatnonzero(transfers.channel == channels.argmax())
    ops: list[tuple[int, float]] = []
    for row in rows.tolist():
        tensor, seconds = (
            int(transfers.tensor[row]),
            float(transfers.end[row] - transfers.start[row]),
        )
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        endpoints = [a.producer[tensor], *readers[plan.placement[readers] == transfers.target[row]]]
        ops += [(int(op), seconds) for op in endpoints]
    return "at the ends of the busiest channel", ops


def judge_moves(problem: Problem, plan: Plan, pairs: Sequence[tuple[int, int]]) -> list[OpMove]:
    """Evaluate (op, device) pairs, the best first."""
    a = problem.arrays
    verdict = simulator.judge(
        problem, plan.placement, plan.priority, plan.staging, fusion=plan.fusion
    )
    current_key = verdict.key(0)
    moves: list[OpMove] = []
    allowed_moves: list[tuple[int, int, Flags]] = []
    for op, device in pairs:
        mask = move_mask(problem, plan, op)
        if a.allowed[mask, device].all():
            allowed_moves.append((op, device, mask))
        else:
            moves.append(OpMove(op, int(mask.sum()) - 1, device, None, 0, current_key))
    batch = max(1, 2_000_000 // a.ops)
    for offset in range(0, len(allowed_moves), batch):
        moves += _judge_batch(problem, plan, allowed_moves[offset : offset + batch], current_key)
    return sorted(moves, key=lambda move: (move.key, move.op, move.device))


def _judge_batch(
    problem: Problem,
    plan: Plan,
    allowed_moves: Sequence[tuple[int, int, Flags]],
    current_key: tuple[int, float],
) -> list[OpMove]:
    count = len(allowed_moves)
    rows = PlanBatch.repeat(plan, count)
    placements, staging, fusion = rows.placement, rows.staging, rows.fusion
    unfused_counts = [0] * count
    for row, (_, target, mask) in enumerate(allowed_moves):
        placements[row, mask] = target
        if fusion is not None:
            fusion[row] = _intact_groups(fusion[row], placements[row])
            assert plan.fusion is not None
            unfused_counts[row] = int(((plan.fusion >= 0) & (fusion[row] < 0)).sum())
        if staging is not None:
            groups = None if fusion is None else fusion[row]
            staging[row] = _required_staging(problem, placements[row], staging[row], groups)
    verdict = simulator.judge_batch(problem, rows)
    return [
        OpMove(
            op,
            int(mask.sum()) - 1,
            target,
            float(verdict.value[row]),
            int(verdict.overflow[row]),
            current_key,
            unfused_counts[row],
        )
        for row, (op, target, mask) in enumerate(allowed_moves)
    ]


def _intact_groups(fusion: NDArray[np.int32], placement: NDArray[np.int32]) -> NDArray[np.int32]:
    """The fused groups without those that are on two devices now."""
    group_ids, group = np.unique(fusion, return_inverse=True)
    lowest = np.full(len(group_ids), placement.max())
    highest = np.zeros(len(group_ids), dtype=np.int64)
    np.minimum.at(lowest, group, placement)
    np.maximum.at(highest, group, placement)
    return dissolve_groups(fusion, (fusion >= 0) & (lowest != highest)[group])


def _required_staging(
    problem: Problem,
    placement: NDArray[np.int32],
    staging: NDArray[np.int64],
    fusion: NDArray[np.int32] | None,
) -> NDArray[np.int64]:
    """Staging buffers that hold all weights that one op, or one fused group, streams."""
    a = problem.arrays
    group_of = (
        np.arange(a.ops) if fusion is None else np.where(fusion >= 0, fusion, np.arange(a.ops))
    )
    source = a.producer[a.inputs]
    is_streamed = (
        a.is_weight[source]
        & a.scheduled[a.reader]
        & (placement[source] != placement[a.reader])
        & (staging[placement[a.reader]] >= 0)
    )
    # Group numbers are arbitrary: count by the first op of each.
    _, first_op, group_index = np.unique(group_of, return_index=True, return_inverse=True)
    required_bytes = np.bincount(
        group_index[a.reader[is_streamed]], a.sizes[a.inputs[is_streamed]], len(first_op)
    )
    sizes = staging.copy()
    group_device = placement[first_op]
    has_staging = sizes[group_device] >= 0
    np.maximum.at(sizes, group_device[has_staging], required_bytes[has_staging].astype(np.int64))
    return sizes
