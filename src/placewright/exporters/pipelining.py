"""Exports a plan as split points of `torch.distributed.pipelining`.

A split point cuts the traced graph at the call of a module: the ops before it, in the order of the
trace, are one stage, the ops after it the next. So a stage is a contiguous segment of the graph,
each device has one stage, and a cut is at the beginning of a module.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import PlanError
from placewright.exporters.base import (
    ExportedPlan,
    ExportRequest,
    evaluate_export,
    general_notes,
)
from placewright.exporters.device_names import target_names
from placewright.exporters.module_paths import enclosing_paths, nearest_value
from placewright.exporters.module_votes import (
    contiguous_devices,
    group_loads,
    run_lengths,
)
from placewright.graph import WEIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.graph import Graph


def export(request: ExportRequest) -> ExportedPlan:
    """A `split_spec`, and the device of each stage.

    Raises:
        PlanError: No op has a module.
    """
    graph = request.problem.graph
    cuts = _cut_points(request)
    if not cuts:
        raise PlanError(
            f"graph {graph.name!r} has no modules to split at: pipelining takes PyTorch models"
        )
    block = _blocks(request, cuts)
    block_device = contiguous_devices(group_loads(request, block, len(cuts) + 1))
    stages = run_lengths(block_device.tolist())
    names = target_names(request, "cuda:{}", "cpu")
    spec: dict[str, str] = {}
    start = 0
    for _, length in stages[:-1]:
        start += length
        spec[cuts[start - 1][1]] = "BEGINNING"
    devices = [names[at] for at, _ in stages]
    scheduled = request.problem.arrays.scheduled
    placement = np.where(scheduled, block_device[block], request.plan.placement)
    plan, cost, extra = evaluate_export(request, placement, weights_follow=True)
    data = {"split_spec": spec, "devices": devices}
    return ExportedPlan(
        target="pipelining",
        text=_python_source(data),
        data=data,
        usage="pipe = pipeline(model, mb_args=example, split_spec=split_spec); "
        "stage = pipe.build_stage(rank, devices[rank])",
        notes=(*_notes(request, block, placement), *extra),
        cost=cost,
        plan=plan,
    )


def _cut_points(request: ExportRequest) -> list[tuple[int, str]]:
    """The possible cuts: the position of an op, and the module whose call begins there.

    A module that is called several times would cut several times. A module that no op names may
    never be called, as a list of modules is not.
    """
    graph, scheduled = request.problem.graph, request.problem.arrays.scheduled
    module_paths = {op.module for op in graph.ops if op.module}
    repeated = _repeated_modules(graph, scheduled)
    cuts: list[tuple[int, str]] = []
    visited: set[str] = set()
    has_started = False
    for position, op in enumerate(graph.ops):
        if not scheduled[position] or op.phase != "forward":
            continue
        entered = [path for path in enclosing_paths(op.module) if path and path not in visited]
        visited.update(entered)
        candidates = [path for path in entered if path in module_paths and path not in repeated]
        if candidates and has_started:
            cuts.append((position, candidates[-1]))
        has_started = True
    return cuts


def _repeated_modules(graph: Graph, scheduled: NDArray[np.bool_]) -> set[str]:
    """Modules whose ops are not contiguous: they are called more than once."""
    active: set[str] = set()
    past: set[str] = set()
    repeated: set[str] = set()
    for position, op in enumerate(graph.ops):
        if scheduled[position] and op.phase == "forward":
            current = {path for path in enclosing_paths(op.module) if path}
            repeated |= current & past
            past |= active - current
            active = current
    return repeated


def _blocks(request: ExportRequest, cuts: list[tuple[int, str]]) -> NDArray[np.int64]:
    """Each op's block between two cuts; backward ops are in the block of their module."""
    graph = request.problem.graph
    cut_positions = np.array([position for position, _ in cuts])
    block = np.searchsorted(cut_positions, np.arange(len(graph)), side="right")
    module_block: dict[str, int] = {}
    for position, op in enumerate(graph.ops):
        if op.phase == "forward" and request.problem.arrays.scheduled[position]:
            module_block.setdefault(op.module, int(block[position]))
        elif op.phase != "forward":
            block[position] = nearest_value(op.module, module_block) or 0
    return np.where(request.problem.arrays.scheduled, block, -1)


def _python_source(data: dict[str, Any]) -> str:
    """The data as Python that can be imported."""
    lines = ["from torch.distributed.pipelining import SplitPoint", "", "split_spec = {"]
    lines += [
        f"    {module!r}: SplitPoint.{point}," for module, point in data["split_spec"].items()
    ]
    lines += ["}", f"devices = {json.dumps(data['devices'])}  # of each stage"]
    return "\n".join(lines) + "\n"


def _shared_weights(request: ExportRequest, placement: NDArray[np.int32]) -> list[str]:
    """Weights that ops of several devices read."""
    graph = request.problem.graph
    return [
        op.name
        for position, op in enumerate(graph.ops)
        if op.kind == WEIGHT
        and len({int(placement[reader]) for reader in graph.readers.get((position, 0), ())}) > 1
    ]


def _notes(
    request: ExportRequest, block: NDArray[np.int64], placement: NDArray[np.int32]
) -> list[str]:
    notes = general_notes(request, "pipelining", can_train=True)
    is_scheduled = block >= 0
    moved_count = int((is_scheduled & (placement != request.plan.placement)).sum())
    if moved_count:
        count = f"{moved_count} of {int(is_scheduled.sum())} ops"
        planned = run_lengths(request.plan.placement[is_scheduled].tolist())
        if len(planned) > len({at for at, _ in planned}):
            notes.append(
                f"stages: the plan is not a chain of stages in the model's order; {count} are "
                "on another device in the nearest chain"
            )
        else:
            notes.append(f"stages: the plan cuts inside a module; {count} are on another device")
    shared_weights = _shared_weights(request, placement)
    if shared_weights:
        notes.append(
            f"weights: {shared_weights[0]!r} is read by several stages, and is in each of them"
        )
    return notes
