"""A plan and what another runtime can express of it in, the export and what it costs out."""

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
class Ask:
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
class Figures:
    """How good a plan is, simulated: seconds, seconds, and bytes over the memory."""

    step_time: float
    period: float
    overflow: int

    @classmethod
    def of(cls, timeline: Timeline) -> Figures:
        return cls(timeline.step_time, timeline.period, timeline.overflow)


@dataclass(frozen=True)
class Cost:
    """What is lost on the way to a target that cannot express the whole plan.

    Args:
        time: The share of the plan's computing time that the target spends on another device.
        bytes: The share of the weights' bytes whose home is another device.
        planned: The plan as it is.
        exported: What the target will run.
    """

    time: float
    bytes: float
    planned: Figures
    exported: Figures


@dataclass(frozen=True, eq=False)
class Exported:
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
    cost: Cost
    plan: Plan
    model: bytes | None = None
    source: Path | None = None

    def save(self, path: str | Path) -> list[Path]:
        """Write the text, or the model and beside it the text, and say which files those are.

        Raises:
            FileError: A file cannot be written, or the model's weights would not be found there.
        """
        path = Path(path)
        written: list[tuple[Path, bytes]] = [(path, self.text.encode())]
        if self.model is not None:
            if self.source is not None and path.resolve() == self.source.resolve():
                raise FileError(f"{path}: is the model itself: give the export another name")
            written = [
                (path, self.model),
                (path.with_name(f"{path.name}.json"), self.text.encode()),
            ]
        for file, content in written:
            try:
                file.write_bytes(content)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise FileError(f"{file}: cannot be written: {reason}") from None
        return [file for file, _ in written]


def fitted(problem: Problem, plan: Plan) -> Plan:
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


def priced(
    ask: Ask,
    device: NDArray[np.integer[Any]],
    weights_follow: bool = False,
    streams_to: int | None = None,
    as_run: Problem | None = None,
) -> tuple[Plan, Cost, list[str]]:
    """What a target will run, what that costs, and a note where it breaks a constraint.

    Args:
        device: Each op's device as the target places it; ops run in the graph's order.
        weights_follow: Whether each weight is where it is read first, whatever `device` says.
        streams_to: The device to which weights from elsewhere are copied, op by op.
        as_run: The problem with the costs of the target's own runtime.
    """
    problem, plan = ask.problem, ask.plan
    a = problem.arrays
    wanted = np.asarray(device, dtype=np.int32)
    placed = wanted[a.leader] if weights_follow else wanted[a.head]
    legal = a.allowed[np.arange(a.ops), placed]
    lawful = np.where(legal, placed, plan.device).astype(np.int32)
    lawful = lawful[a.leader] if weights_follow else lawful
    lawful = np.where(a.allowed[np.arange(a.ops), lawful], lawful, plan.device)[a.head]
    target = as_run or problem
    staging = None if streams_to is None else _one_op_ahead(problem, lawful, streams_to)
    coarse = Plan.of(target, lawful, staging=staging)
    busy = a.compute[np.arange(a.ops), plan.device] * a.turn
    sizes = np.where(a.stored, a.resident, 0)
    cost = Cost(
        time=_share(busy, lawful != plan.device),
        bytes=_share(sizes, lawful != plan.device),
        planned=Figures.of(simulate(problem, plan)),
        exported=Figures.of(simulate(target, coarse)),
    )
    notes = []
    moved = [problem.graph.ops[at].name for at in np.flatnonzero(a.turn & (wanted != lawful))]
    if moved:
        notes.append(
            f"constraints: the target puts {moved[0]!r}"
            + (f" and {len(moved) - 1} other ops" if len(moved) > 1 else "")
            + " where the problem does not allow it; the figures leave it where the plan has it"
        )
    return coarse, cost, notes


def general_notes(ask: Ask, target: str, streams: bool = False, trains: bool = False) -> list[str]:
    """What almost no target can express, where the plan has it.

    Args:
        streams: Whether the target streams weights.
        trains: Whether the target runs training steps under a placement.
    """
    plan, graph = ask.plan, ask.problem.graph
    notes = []
    if plan.priority is not None and (np.diff(plan.priority) < 0).any():
        notes.append(f"order: {target} runs ops in its own order, not in the plan's")
    if plan.fusion is not None and (plan.fusion >= 0).any():
        notes.append(f"fusion: {target} decides itself which ops are fused")
    if not streams and streamed(ask).any():
        notes.append(f"streaming: {target} keeps each weight on the device that reads it first")
    if not trains and any(op.phase != "forward" for op in graph.ops):
        notes.append(f"training: {target} places the forward ops, and this is for inference")
    return notes


def streamed(ask: Ask) -> NDArray[np.bool_]:
    """Ops that are weights with a home away from the op that reads them first.

    One that is home there and read elsewhere too is shared, which is another matter.
    """
    a, device, graph = ask.problem.arrays, ask.plan.device, ask.problem.graph
    found = np.zeros(a.ops, dtype=bool)
    for op in np.flatnonzero(a.weight).tolist():
        readers = [
            reader
            for output in range(len(graph.ops[op].outputs))
            for reader in graph.readers.get((op, output), ())
            if a.turn[reader]
        ]
        found[op] = bool(readers) and device[min(readers)] != device[op]
    return found


def _one_op_ahead(
    problem: Problem, device: NDArray[np.integer[Any]], place: int
) -> NDArray[np.int64]:
    """A staging room on one device that holds any one op's weights from elsewhere, no more."""
    a = problem.arrays
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    apart = a.weight[source] & a.turn[reader] & (device[reader] == place)
    apart &= device[source] != place
    sums = np.bincount(reader[apart], weights=a.sizes[a.inputs[apart]], minlength=1)
    rooms = np.full(a.devices, NO_STAGING, dtype=np.int64)
    rooms[place] = int(sums.max())
    return rooms


def _share(amount: NDArray[Any], where: NDArray[np.bool_]) -> float:
    total = float(amount.sum())
    return float(amount[where].sum()) / total if total > 0 else 0.0
