"""Compares two plans: moved ops, priorities, fusion and staging."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.html_tables import html_card, html_table
from placewright.plan import NO_STAGING, Plan
from placewright.result import Result

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class PlacementChange:
    """An op that two plans put on different devices."""

    op: str
    source: str
    target: str

    @property
    def module(self) -> str:
        """All but the last part of the op's name, which is all that a plan knows of modules."""
        return self.op.rpartition(".")[0]


@dataclass(frozen=True)
class PlanDiff:
    """What differs between a first and a second plan; ops and devices are matched by name."""

    shared_ops: int
    """Ops that both plans have."""
    unshared_ops: tuple[tuple[str, ...], tuple[str, ...]]
    """Ops that one of them has."""
    moves: tuple[PlacementChange, ...]
    priority_changes: int | None
    """Ops of another priority; None where neither plan has any."""
    fusion_changes: int | None
    """Ops fused with others than before; None where neither plan fuses."""
    staging_changes: tuple[tuple[str, int, int], ...]
    """(device, bytes before, bytes after) of staging buffers, -1 for no buffer."""

    @property
    def is_empty(self) -> bool:
        counts = (
            len(self.moves),
            self.priority_changes or 0,
            self.fusion_changes or 0,
            len(self.staging_changes),
        )
        return not any((*counts, *map(len, self.unshared_ops)))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        if self.is_empty:
            return html_card("the plans are the same")
        lines = [
            f"{len(ops):,} ops are in the {which} plan alone"
            for which, ops in zip(("first", "second"), self.unshared_ops, strict=True)
            if ops
        ]
        if self.priority_changes:
            lines.append(f"{self.priority_changes:,} ops have another priority")
        if self.fusion_changes:
            lines.append(f"{self.fusion_changes:,} ops are fused with others")
        lines += [f"another staging buffer on {name}" for name, _, _ in self.staging_changes]
        pairs = [(source, target, f"{ops:,}") for source, target, ops in self.device_pairs]
        modules = [(name or "(none)", f"{ops:,}") for name, ops in self.modules(limit=20)]
        tables = [
            html_table(("from", "to", "ops moved"), pairs, text_columns=2),
            html_table(("module", "ops moved"), modules, limit=20),
        ]
        title = f"{len(self.moves):,} of {self.shared_ops:,} ops are on another device"
        return html_card(title, lines, *(tables if self.moves else ()))

    @property
    def device_pairs(self) -> list[tuple[str, str, int]]:
        """From where to where, and how many ops; the most first."""
        counted = Counter((move.source, move.target) for move in self.moves)
        return [(source, target, count) for (source, target), count in counted.most_common()]

    def modules(self, limit: int | None = None) -> list[tuple[str, int]]:
        """How many ops of each module moved, in the order of the first plan.

        Args:
            limit: Modules to list at most: the inner ones are counted with those around them, and
                where even the outermost are too many, all of these are listed.
        """
        paths = [move.module.split(".") for move in self.moves]
        for depth in range(max(map(len, paths), default=1), 0, -1):
            counted = Counter(".".join(path[:depth]) for path in paths)
            if limit is None or len(counted) <= limit:
                break
        return list(counted.items())


def diff(first: Plan | Result, second: Plan | Result) -> PlanDiff:
    """What differs between two plans; ops and devices are matched by name."""
    first_plan, second_plan = plan_of(first), plan_of(second)
    first_devices, second_devices = _device_by_op(first_plan), _device_by_op(second_plan)
    shared = [op for op in first_devices if op in second_devices]
    moves = (
        PlacementChange(op, first_devices[op], second_devices[op])
        for op in shared
        if first_devices[op] != second_devices[op]
    )
    staging = _staging_by_device(first_plan), _staging_by_device(second_plan)
    return PlanDiff(
        shared_ops=len(shared),
        unshared_ops=(
            tuple(op for op in first_devices if op not in second_devices),
            tuple(op for op in second_devices if op not in first_devices),
        ),
        moves=tuple(moves),
        priority_changes=_count_changes(
            _value_by_op(first_plan, first_plan.priority),
            _value_by_op(second_plan, second_plan.priority),
            shared,
        ),
        fusion_changes=_count_changes(
            _fusion_groups(first_plan), _fusion_groups(second_plan), shared
        ),
        staging_changes=tuple(
            (name, staging[0].get(name, NO_STAGING), staging[1].get(name, NO_STAGING))
            for name in dict.fromkeys((*staging[0], *staging[1]))
            if staging[0].get(name) != staging[1].get(name)
        ),
    )


def plan_of(noun: Plan | Result) -> Plan:
    """The plan, or the result's plan."""
    return noun.plan if isinstance(noun, Result) else noun


def _device_by_op(plan: Plan) -> dict[str, str]:
    return {
        op: plan.device_names[at] for op, at in zip(plan.ops, plan.placement.tolist(), strict=True)
    }


def _staging_by_device(plan: Plan) -> dict[str, int]:
    if plan.staging is None:
        return {}
    buffers = zip(plan.device_names, plan.staging.tolist(), strict=True)
    return {name: size for name, size in buffers if size != NO_STAGING}


def _value_by_op(plan: Plan, values: NDArray[Any] | None) -> dict[str, Any]:
    return {} if values is None else dict(zip(plan.ops, values.tolist(), strict=True))


def _fusion_groups(plan: Plan) -> dict[str, Any]:
    """Each fused op with all ops it is fused with: numbers of groups mean nothing."""
    members: dict[int, list[str]] = {}
    number = {op: group for op, group in _value_by_op(plan, plan.fusion).items() if group >= 0}
    for op, group in number.items():
        members.setdefault(group, []).append(op)
    return {op: frozenset(members[group]) for op, group in number.items()}


def _count_changes(ours: dict[str, Any], theirs: dict[str, Any], shared: list[str]) -> int | None:
    if not (ours or theirs):
        return None
    return sum(1 for op in shared if ours.get(op) != theirs.get(op))
