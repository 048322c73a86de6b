"""Compares two plans: moved ops, priorities, fusion and staging."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import PlanError
from placewright.html_tables import html_card, html_table
from placewright.plan import NO_STAGING, Plan
from placewright.result import Result
from placewright.workload_plan import WorkloadPlan
from placewright.workload_result import WorkloadResult

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
    other_graph: bool = False
    """Whether the plans were made for different graphs."""
    other_cluster: bool = False
    """Whether the plans were made for different clusters."""

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


def diff(
    first: Plan | Result | WorkloadPlan | WorkloadResult,
    second: Plan | Result | WorkloadPlan | WorkloadResult,
) -> PlanDiff:
    """What differs between two plans; ops and devices are matched by name.

    Of two workloads' plans, calls are matched by name, too: an op is `call/op`, a staging buffer
    `call/device`, and a weight or state, which all calls share, has its own name.

    Raises:
        PlanError: One is the plan of a workload and the other that of one problem.
    """
    first_workload, second_workload = _workload_plan_of(first), _workload_plan_of(second)
    if first_workload is not None and second_workload is not None:
        return _diff_workloads(first_workload, second_workload)
    if first_workload is not None or second_workload is not None:
        raise PlanError("a workload's plan and a plan of one problem: compare two of a kind")
    assert isinstance(first, Plan | Result)
    assert isinstance(second, Plan | Result)
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
        other_graph=_differ(first_plan.graph, second_plan.graph),
        other_cluster=_differ(first_plan.cluster, second_plan.cluster),
    )


def _differ(first: str, second: str) -> bool:
    """Whether two fingerprints are known and differ."""
    return bool(first and second) and first != second


def _workload_plan_of(noun: object) -> WorkloadPlan | None:
    if isinstance(noun, WorkloadResult):
        return noun.plan
    return noun if isinstance(noun, WorkloadPlan) else None


def _diff_workloads(first: WorkloadPlan, second: WorkloadPlan) -> PlanDiff:
    shared_weights = set(first.weights) & set(second.weights)
    moves = [
        PlacementChange(name, first.weights[name], second.weights[name])
        for name in first.weights
        if name in shared_weights and first.weights[name] != second.weights[name]
    ]
    shared_ops = len(shared_weights)
    unshared: tuple[list[str], list[str]] = (
        [name for name in first.weights if name not in shared_weights],
        [name for name in second.weights if name not in shared_weights],
    )
    staging: list[tuple[str, int, int]] = []
    priorities: list[int | None] = []
    fusions: list[int | None] = []
    weights = {*first.weights, *second.weights}
    for plan, other, ops in ((first, second, unshared[0]), (second, first, unshared[1])):
        for call in plan.calls:
            if call not in other.calls:
                ops += [f"{call}/{op}" for op in plan[call].ops if op not in weights]
    for call in first.calls:
        if call not in second.calls:
            continue
        each = diff(first[call], second[call])
        moves += [
            PlacementChange(f"{call}/{move.op}", move.source, move.target)
            for move in each.moves
            if move.op not in weights
        ]
        for ops, own in zip(unshared, each.unshared_ops, strict=True):
            ops += [f"{call}/{op}" for op in own if op not in weights]
        shared_ops += sum(op not in weights for op in first[call].ops if op in {*second[call].ops})
        staging += [(f"{call}/{name}", *sizes) for name, *sizes in each.staging_changes]  # type: ignore[misc]
        priorities.append(each.priority_changes)
        fusions.append(each.fusion_changes)
    return PlanDiff(
        shared_ops,
        (tuple(unshared[0]), tuple(unshared[1])),
        tuple(moves),
        _total(priorities),
        _total(fusions),
        tuple(staging),
    )


def _total(counts: list[int | None]) -> int | None:
    """The sum of those that are known; None where none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


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
