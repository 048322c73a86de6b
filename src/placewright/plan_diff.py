"""Two plans in, what differs between them out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.plan import NO_STAGING, Plan
from placewright.result import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Move:
    """An op that two plans put on different devices."""

    op: str
    source: str
    target: str

    @property
    def module(self) -> str:
        """All but the last part of the op's name, which is all that a plan knows of modules."""
        return self.op.rpartition(".")[0]


@dataclass(frozen=True)
class Difference:
    """What differs between a first and a second plan; ops and devices are matched by name."""

    shared: int
    """Ops that both plans have."""
    only: tuple[tuple[str, ...], tuple[str, ...]]
    """Ops that one of them has."""
    moves: tuple[Move, ...]
    priorities: int | None
    """Ops of another priority; None where neither plan has any."""
    fusions: int | None
    """Ops fused with others than before; None where neither plan fuses."""
    staging: tuple[tuple[str, int, int], ...]
    """(device, bytes before, bytes after), -1 for no room."""

    @property
    def same(self) -> bool:
        counts = len(self.moves), self.priorities or 0, self.fusions or 0, len(self.staging)
        return not any((*counts, *map(len, self.only)))

    @property
    def ways(self) -> list[tuple[str, str, int]]:
        """From where to where, and how many ops; the most first."""
        counted = Counter((move.source, move.target) for move in self.moves)
        return [(source, target, count) for (source, target), count in counted.most_common()]

    def modules(self, most: int | None = None) -> list[tuple[str, int]]:
        """How many ops of each module moved, in the order of the first plan.

        Args:
            most: Modules to list at most: the inner ones are counted with those around them, and
                where even the outermost are too many, all of these are listed.
        """
        paths = [move.module.split(".") for move in self.moves]
        for depth in range(max(map(len, paths), default=1), 0, -1):
            counted = Counter(".".join(path[:depth]) for path in paths)
            if most is None or len(counted) <= most:
                break
        return list(counted.items())


def difference(first: Plan | Result, second: Plan | Result) -> Difference:
    """What differs between two plans."""
    one, other = plan_of(first), plan_of(second)
    ours, theirs = _devices(one), _devices(other)
    shared = [op for op in ours if op in theirs]
    moves = (Move(op, ours[op], theirs[op]) for op in shared if ours[op] != theirs[op])
    rooms = _rooms(one), _rooms(other)
    return Difference(
        shared=len(shared),
        only=(
            tuple(op for op in ours if op not in theirs),
            tuple(op for op in theirs if op not in ours),
        ),
        moves=tuple(moves),
        priorities=_changed(_by_op(one, one.priority), _by_op(other, other.priority), shared),
        fusions=_changed(_groups(one), _groups(other), shared),
        staging=tuple(
            (name, rooms[0].get(name, NO_STAGING), rooms[1].get(name, NO_STAGING))
            for name in dict.fromkeys((*rooms[0], *rooms[1]))
            if rooms[0].get(name) != rooms[1].get(name)
        ),
    )


def plan_of(noun: Plan | Result) -> Plan:
    """The plan, or the result's plan."""
    return noun.plan if isinstance(noun, Result) else noun


def _devices(plan: Plan) -> dict[str, str]:
    return {op: plan.devices[at] for op, at in zip(plan.ops, plan.device.tolist(), strict=True)}


def _rooms(plan: Plan) -> dict[str, int]:
    if plan.staging is None:
        return {}
    rooms = zip(plan.devices, plan.staging.tolist(), strict=True)
    return {name: size for name, size in rooms if size != NO_STAGING}


def _by_op(plan: Plan, values: NDArray[Any] | None) -> dict[str, Any]:
    return {} if values is None else dict(zip(plan.ops, values.tolist(), strict=True))


def _groups(plan: Plan) -> dict[str, Any]:
    """Each fused op with all ops it is fused with: numbers of groups mean nothing."""
    members: dict[int, list[str]] = {}
    number = {op: group for op, group in _by_op(plan, plan.fusion).items() if group >= 0}
    for op, group in number.items():
        members.setdefault(group, []).append(op)
    return {op: frozenset(members[group]) for op, group in number.items()}


def _changed(ours: dict[str, Any], theirs: dict[str, Any], shared: list[str]) -> int | None:
    if not (ours or theirs):
        return None
    return sum(1 for op in shared if ours.get(op) != theirs.get(op))
