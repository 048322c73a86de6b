"""What all exporters share: the request, the exported plan and its cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import FileError, PlanError
from placewright.files import plan_for
from placewright.plan import NO_STAGING, Plan
from placewright.simulator import simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.timeline import Timeline


@dataclass(frozen=True, eq=False)
class ExportRequest:
    """What is to be exported.

    Args:
        plan: Fitted onto the problem.
        model: The file that the graph was read from, for targets that write it anew.
        names: What the target calls a device, where that is not what the cluster's order says.
        dims: Sizes of the file's symbolic dimensions, as the graph was read with.
        shapes: Shapes that the file leaves open, as the graph was read with.
    """

    problem: Problem
    plan: Plan
    model: Path | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanMetrics:
    """How good a plan is, simulated: seconds, seconds, and bytes over the memory."""

    step_time: float
    period: float
    overflow: int

    @classmethod
    def of(cls, timeline: Timeline) -> PlanMetrics:
        return cls(timeline.step_time, timeline.period, timeline.overflow)


@dataclass(frozen=True)
class ExportCost:
    """What is lost on the way to a target that cannot express the whole plan.

    Args:
        moved_time: The share of the plan's computing time that the target spends on another device.
        moved_bytes: The share of the weights' bytes whose home is another device.
        planned: The plan as it is.
        exported: What the target will run.
    """

    moved_time: float
    moved_bytes: float
    planned: PlanMetrics
    exported: PlanMetrics


@dataclass(frozen=True, eq=False)
class ExportedPlan:
    """A plan in another runtime's own words.

    Args:
        text: What to paste, or what to write into a file.
        data: The same as Python values.
        usage: How the target is told, in a line or a few.
        notes: What the target cannot express, a sentence each.
        plan: What the target will run.
        model: The model's file with the plan written into it, for targets that read one.
    """

    target: str
    text: str
    data: Any
    usage: str
    notes: tuple[str, ...]
    cost: ExportCost
    plan: Plan
    model: bytes | None = None
    source: Path | None = None

    def save(self, path: str | Path) -> list[Path]:
        """Write the text, or the model and beside it the text, and say which files those are.

        Raises:
            FileError: A file cannot be written, or the model's weights would not be found there.
        """
        path = Path(path)
        contents: list[tuple[Path, bytes]] = [(path, self.text.encode())]
        if self.model is not None:
            if self.source is not None and path.resolve() == self.source.resolve():
                raise FileError(f"{path}: is the model itself: give the export another name")
            contents = [
                (path, self.model),
                (path.with_name(f"{path.name}.json"), self.text.encode()),
            ]
        for file, content in contents:
            try:
                file.write_bytes(content)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise FileError(f"{file}: cannot be written: {reason}") from None
        return [file for file, _ in contents]


def fit_plan(problem: Problem, plan: Plan) -> Plan:
    """The plan as one of this problem's.

    Raises:
        PlanError: It was made for another graph, or its ops and devices are not the problem's.
    """
    graph = problem.graph
    if plan.graph and plan.graph != graph.fingerprint:
        raise PlanError(
            f"the plan was made for graph {plan.graph[:8]}, but {graph.name!r} is "
            f"{graph.fingerprint[:8]}: give the model as it was when the plan was made"
        )
    return plan_for(problem, plan)


def evaluate_export(
    request: ExportRequest,
    placement: NDArray[np.integer[Any]],
    weights_follow: bool = False,
    streaming_device: int | None = None,
    target_problem: Problem | None = None,
) -> tuple[Plan, ExportCost, list[str]]:
    """What a target will run, what that costs, and a note where it breaks a constraint.

    Args:
        placement: Each op's device as the target places it; ops run in the graph's order.
        weights_follow: Whether each weight is where it is read first, whatever `placement` says.
        streaming_device: The device to which weights from elsewhere are copied, op by op.
        target_problem: The problem with the costs of the target's own runtime.
    """
    problem, plan = request.problem, request.plan
    a = problem.arrays
    requested = np.asarray(placement, dtype=np.int32)
    unit_placement = requested[a.leader] if weights_follow else requested[a.unit_head]
    is_allowed = a.allowed[np.arange(a.ops), unit_placement]
    allowed_placement = np.where(is_allowed, unit_placement, plan.placement).astype(np.int32)
    allowed_placement = allowed_placement[a.leader] if weights_follow else allowed_placement
    allowed_placement = np.where(
        a.allowed[np.arange(a.ops), allowed_placement], allowed_placement, plan.placement
    )[a.unit_head]
    executed = target_problem or problem
    staging = (
        None
        if streaming_device is None
        else _one_op_staging(problem, allowed_placement, streaming_device)
    )
    exported_plan = Plan.of(executed, allowed_placement, staging=staging)
    seconds = a.compute[np.arange(a.ops), plan.placement] * a.scheduled
    weight_bytes = np.where(a.is_resident, a.resident, 0)
    cost = ExportCost(
        moved_time=_share(seconds, allowed_placement != plan.placement),
        moved_bytes=_share(weight_bytes, allowed_placement != plan.placement),
        planned=PlanMetrics.of(simulate(problem, plan)),
        exported=PlanMetrics.of(simulate(executed, exported_plan)),
    )
    notes = []
    moved_ops = [
        problem.graph.ops[at].name
        for at in np.flatnonzero(a.scheduled & (requested != allowed_placement))
    ]
    if moved_ops:
        notes.append(
            f"constraints: the target puts {moved_ops[0]!r}"
            + (f" and {len(moved_ops) - 1} other ops" if len(moved_ops) > 1 else "")
            + " where the problem does not allow it; the figures leave it where the plan has it"
        )
    return exported_plan, cost, notes


def general_notes(
    request: ExportRequest, target: str, can_stream: bool = False, can_train: bool = False
) -> list[str]:
    """What almost no target can express, where the plan has it.

    Args:
        can_stream: Whether the target streams weights.
        can_train: Whether the target runs training steps under a placement.
    """
    plan, graph = request.plan, request.problem.graph
    notes = []
    if plan.priority is not None and (np.diff(plan.priority) < 0).any():
        notes.append(f"order: {target} runs ops in its own order, not in the plan's")
    if plan.fusion is not None and (plan.fusion >= 0).any():
        notes.append(f"fusion: {target} decides itself which ops are fused")
    if not can_stream and streamed_weights(request).any():
        notes.append(f"streaming: {target} keeps each weight on the device that reads it first")
    if not can_train and any(op.phase != "forward" for op in graph.ops):
        notes.append(f"training: {target} places the forward ops, and this is for inference")
    return notes


def streamed_weights(request: ExportRequest) -> NDArray[np.bool_]:
    """Ops that are weights with a home away from the op that reads them first.

    One that is home there and read elsewhere too is shared, which is another matter.
    """
    a, device, graph = request.problem.arrays, request.plan.placement, request.problem.graph
    is_streamed = np.zeros(a.ops, dtype=bool)
    for op in np.flatnonzero(a.is_weight).tolist():
        readers = [
            reader
            for output in range(len(graph.ops[op].outputs))
            for reader in graph.readers.get((op, output), ())
            if a.scheduled[reader]
        ]
        is_streamed[op] = bool(readers) and device[min(readers)] != device[op]
    return is_streamed


def _one_op_staging(
    problem: Problem, placement: NDArray[np.integer[Any]], target: int
) -> NDArray[np.int64]:
    """A staging room on one device that holds any one op's weights from elsewhere, no more."""
    a = problem.arrays
    staging = np.full(a.devices, NO_STAGING, dtype=np.int64)
    staging[target] = a.required_staging(placement)[target]
    return staging


def _share(amount: NDArray[Any], mask: NDArray[np.bool_]) -> float:
    total = float(amount.sum())
    return float(amount[mask].sum()) / total if total > 0 else 0.0
