"""One op moved: a problem and a plan in, what the objective becomes with an op elsewhere out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.transforms import dissolved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem

    Flags = NDArray[np.bool_]

_WORK = 20_000_000  # ops × plans that a look at the critical path judges at most: some seconds


@dataclass(frozen=True)
class Move:
    """A plan with one op, and what goes with it, on another device.

    Args:
        op: The op that was asked about.
        along: How many ops move with it: its unit, and weights that follow it.
        device: Where it goes.
        value: The objective then; None where the constraints forbid it.
        overflow: Bytes over the memory limits then.
        before: Bytes over and objective of the plan as it is.
        parted: Ops that are fused no more, since their group would be on two devices.
    """

    op: int
    along: int
    device: int
    value: float | None
    overflow: int
    before: tuple[int, float]
    parted: int = 0

    @property
    def change(self) -> float:
        """How much longer the objective gets, as a share; less than nothing for a gain."""
        if self.value is None:
            return float("inf")
        return self.value / self.before[1] - 1 if self.before[1] > 0 else 0.0

    @property
    def gains(self) -> bool:
        return self.value is not None and (self.overflow, self.value) < self.before

    @property
    def key(self) -> tuple[float, float]:
        """What moves are compared by."""
        return (np.inf, np.inf) if self.value is None else (self.overflow, self.value)


def goes_along(problem: Problem, plan: Plan, op: int) -> Flags:
    """The ops that move with an op: its unit, and what follows the unit and is with it now.

    Weights that a plan keeps elsewhere, to be sent or streamed, stay there.
    """
    a = problem.arrays
    unit = a.unit == a.unit[op]
    followers = (a.leader == a.leader[op]) & (plan.device == plan.device[op])
    along: Flags = unit | (followers & (a.unit[a.leader[op]] == a.unit[op]))
    return along


def moves_of(problem: Problem, plan: Plan, op: int) -> list[Move]:
    """An op on every other device, the best first; forbidden ones last."""
    others = [at for at in range(len(problem.cluster)) if at != plan.device[op]]
    return judge_moves(problem, plan, [(op, at) for at in others])


@dataclass(frozen=True)
class Neighbours:
    """Plans that differ from one by a single move.

    Args:
        moves: The best first.
        tried: Ops that were moved.
        ops: Ops that could have been.
        where: Where these are, in words.
    """

    moves: tuple[Move, ...]
    tried: int
    ops: int
    where: str

    @property
    def gaining(self) -> list[Move]:
        """Each op's best move, where it gains, the best first."""
        best: dict[int, Move] = {}
        for move in self.moves:
            if move.gains:
                best.setdefault(move.op, move)
        return list(best.values())


def neighbours(problem: Problem, plan: Plan) -> Neighbours:
    """Single moves of the ops that bind the plan: on the critical path or, for a period, on the
    busiest device or at either end of the busiest channel.

    Of many the ops that take longest are moved.
    """
    a = problem.arrays
    if problem.objective == "step":
        where, ops = "on the critical path", _on_path(problem, plan)
    else:
        where, ops = _at_busiest(problem, plan)
    spent: dict[int, float] = {}
    first: dict[int, int] = {}  # what moves together is moved once, for its first op here
    for op, seconds in ops:
        leading = first.setdefault(int(a.leader[op]), op)
        spent[leading] = spent.get(leading, 0.0) + seconds
    devices = len(problem.cluster)
    most = max(1, _WORK // (a.ops * max(devices - 1, 1)))
    tried = sorted(spent, key=lambda op: -spent[op])[:most]
    wanted = [(op, at) for op in tried for at in range(devices) if at != plan.device[op]]
    moves = judge_moves(problem, plan, wanted)
    return Neighbours(tuple(moves), len(tried), len(spent), where)


def _on_path(problem: Problem, plan: Plan) -> list[tuple[int, float]]:
    """Ops that run on the critical path, and for how long."""
    path = simulator.critical_path(problem, simulator.simulate(problem, plan))
    position = problem.graph.position
    return [
        (position[path.names[piece.op]], piece.seconds)
        for piece in path.pieces
        if piece.kind == "compute"
    ]


def _at_busiest(problem: Problem, plan: Plan) -> tuple[str, list[tuple[int, float]]]:
    """Ops on the busiest device, or those that make or read what the busiest channel carries."""
    a, load = problem.arrays, simulator.loads(problem, plan)
    place = int(load.device.argmax())
    channels = load.channel if problem.overlap else np.zeros(1)
    if not len(channels) or load.device[place] >= channels.max():
        here = np.flatnonzero(a.turn & (plan.device == place))
        where = f"on {problem.cluster.devices[place].name}, the busiest device"
        return where, [(int(op), float(a.compute[op, place])) for op in here]
    moved = simulator.simulate(problem, plan).transfers
    rows = np.flatnonzero(moved.channel == channels.argmax())
    ops: list[tuple[int, float]] = []
    for row in rows.tolist():
        tensor, seconds = int(moved.tensor[row]), float(moved.end[row] - moved.start[row])
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        ends = [a.producer[tensor], *readers[plan.device[readers] == moved.target[row]]]
        ops += [(int(op), seconds) for op in ends]
    return "at the ends of the busiest channel", ops


def judge_moves(problem: Problem, plan: Plan, wanted: Sequence[tuple[int, int]]) -> list[Move]:
    """Judge (op, device) pairs, the best first."""
    a = problem.arrays
    own = simulator.judge(problem, plan.device, plan.priority, plan.staging, fusion=plan.fusion)
    before = own.key(0)
    moves: list[Move] = []
    lawful: list[tuple[int, int, Flags]] = []
    for op, device in wanted:
        along = goes_along(problem, plan, op)
        if a.allowed[along, device].all():
            lawful.append((op, device, along))
        else:
            moves.append(Move(op, int(along.sum()) - 1, device, None, 0, before))
    batch = max(1, 2_000_000 // a.ops)
    for first in range(0, len(lawful), batch):
        moves += _judged(problem, plan, lawful[first : first + batch], before)
    return sorted(moves, key=lambda move: (move.key, move.op, move.device))


def _judged(
    problem: Problem,
    plan: Plan,
    lawful: Sequence[tuple[int, int, Flags]],
    before: tuple[int, float],
) -> list[Move]:
    count = len(lawful)
    device = np.repeat(plan.device[None], count, axis=0)
    fusion = None if plan.fusion is None else np.repeat(plan.fusion[None], count, axis=0)
    staging = None if plan.staging is None else np.repeat(plan.staging[None], count, axis=0)
    priority = None if plan.priority is None else np.repeat(plan.priority[None], count, axis=0)
    parted = [0] * count
    for row, (_, target, along) in enumerate(lawful):
        device[row, along] = target
        if fusion is not None:
            fusion[row] = _kept_groups(fusion[row], device[row])
            assert plan.fusion is not None
            parted[row] = int(((plan.fusion >= 0) & (fusion[row] < 0)).sum())
        if staging is not None:
            groups = None if fusion is None else fusion[row]
            staging[row] = _large_enough(problem, device[row], staging[row], groups)
    verdict = simulator.judge(problem, device, priority, staging, fusion=fusion)
    return [
        Move(
            op,
            int(along.sum()) - 1,
            target,
            float(verdict.value[row]),
            int(verdict.overflow[row]),
            before,
            parted[row],
        )
        for row, (op, target, along) in enumerate(lawful)
    ]


def _kept_groups(fusion: NDArray[np.int32], device: NDArray[np.int32]) -> NDArray[np.int32]:
    """The fused groups but for those that are on two devices now."""
    number, group = np.unique(fusion, return_inverse=True)
    low = np.full(len(number), device.max())
    high = np.zeros(len(number), dtype=np.int64)
    np.minimum.at(low, group, device)
    np.maximum.at(high, group, device)
    return dissolved(fusion, (fusion >= 0) & (low != high)[group])


def _large_enough(
    problem: Problem,
    device: NDArray[np.int32],
    staging: NDArray[np.int64],
    fusion: NDArray[np.int32] | None,
) -> NDArray[np.int64]:
    """Staging rooms that hold all weights which any one op, or fused group, streams."""
    a = problem.arrays
    whole = np.arange(a.ops) if fusion is None else np.where(fusion >= 0, fusion, np.arange(a.ops))
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    streams = (
        a.weight[source]
        & a.turn[reader]
        & (device[source] != device[reader])
        & (staging[device[reader]] >= 0)
    )
    # Group numbers may be any: count by the first op of each.
    _, first, name = np.unique(whole, return_index=True, return_inverse=True)
    need = np.bincount(name[reader[streams]], a.sizes[a.inputs[streams]], len(first))
    rooms = staging.copy()
    places = device[first]
    held = rooms[places] >= 0
    np.maximum.at(rooms, places[held], need[held].astype(np.int64))
    return rooms
