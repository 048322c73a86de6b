"""A plan in, the split points of `torch.distributed.pipelining` out.

A split point cuts the traced graph where a module is called: what comes before, in the order of the
trace, is one stage, what comes after the next. So a stage is a stretch of the graph, each device
has one, and a cut stands at the beginning of a module.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import PlanError
from placewright.exporters.base import (
    Ask,
    Exported,
    general_notes,
    priced,
)
from placewright.exporters.device_names import named
from placewright.exporters.module_flow import upwards
from placewright.exporters.module_votes import (
    loads,
    runs,
    stretches,
)
from placewright.graph import WEIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.graph import Graph


def export(ask: Ask) -> Exported:
    """A `split_spec`, and the device of each stage.

    Raises:
        PlanError: No op says which module it belongs to.
    """
    graph = ask.problem.graph
    cuts = _cuts(ask)
    if not cuts:
        raise PlanError(
            f"graph {graph.name!r} has no modules to split at: pipelining takes PyTorch models"
        )
    block = _blocks(ask, cuts)
    chosen = stretches(loads(ask, block, len(cuts) + 1))
    stages = runs(chosen.tolist())
    names = named(ask, "cuda:{}", "cpu")
    spec: dict[str, str] = {}
    first = 0
    for _, length in stages[:-1]:
        first += length
        spec[cuts[first - 1][1]] = "BEGINNING"
    devices = [names[at] for at, _ in stages]
    turns = ask.problem.arrays.turn
    device = np.where(turns, chosen[block], ask.plan.device)
    plan, cost, more = priced(ask, device, weights_follow=True)
    data = {"split_spec": spec, "devices": devices}
    return Exported(
        target="pipelining",
        text=_source(data),
        data=data,
        usage="pipe = pipeline(model, mb_args=example, split_spec=split_spec); "
        "stage = pipe.build_stage(rank, devices[rank])",
        notes=(*_notes(ask, block, device), *more),
        cost=cost,
        plan=plan,
    )


def _cuts(ask: Ask) -> list[tuple[int, str]]:
    """Where the trace can be cut: the position of an op, and the module whose call begins there.

    A module that is called several times would cut several times, and one that no op names may
    never be called: a list of modules is not.
    """
    graph, turn = ask.problem.graph, ask.problem.arrays.turn
    called = {op.module for op in graph.ops if op.module}
    often = _called_again(graph, turn)
    cuts: list[tuple[int, str]] = []
    seen: set[str] = set()
    started = False
    for position, op in enumerate(graph.ops):
        if not turn[position] or op.phase != "forward":
            continue
        new = [path for path in upwards(op.module) if path and path not in seen]
        seen.update(new)
        fit = [path for path in new if path in called and path not in often]
        if fit and started:
            cuts.append((position, fit[-1]))
        started = True
    return cuts


def _called_again(graph: Graph, turn: NDArray[np.bool_]) -> set[str]:
    """Modules whose ops do not stand together: they are called more than once."""
    inside: set[str] = set()
    left: set[str] = set()
    again: set[str] = set()
    for position, op in enumerate(graph.ops):
        if turn[position] and op.phase == "forward":
            now = {path for path in upwards(op.module) if path}
            again |= now & left
            left |= inside - now
            inside = now
    return again


def _blocks(ask: Ask, cuts: list[tuple[int, str]]) -> NDArray[np.int64]:
    """Each op's block, the graph between two cuts; backward ops go with their module's forward."""
    graph = ask.problem.graph
    bounds = np.array([position for position, _ in cuts])
    block = np.searchsorted(bounds, np.arange(len(graph)), side="right")
    home: dict[str, int] = {}
    for position, op in enumerate(graph.ops):
        if op.phase == "forward" and ask.problem.arrays.turn[position]:
            home.setdefault(op.module, int(block[position]))
        elif op.phase != "forward":
            known = next((home[path] for path in upwards(op.module) if path in home), 0)
            block[position] = known
    return np.where(ask.problem.arrays.turn, block, -1)


def _source(data: dict[str, Any]) -> str:
    """The data as Python that can be imported."""
    lines = ["from torch.distributed.pipelining import SplitPoint", "", "split_spec = {"]
    lines += [
        f"    {module!r}: SplitPoint.{point}," for module, point in data["split_spec"].items()
    ]
    lines += ["}", f"devices = {json.dumps(data['devices'])}  # of each stage"]
    return "\n".join(lines) + "\n"


def _shared(ask: Ask, device: NDArray[np.int32]) -> list[str]:
    """Weights that ops of several devices read."""
    graph = ask.problem.graph
    return [
        op.name
        for position, op in enumerate(graph.ops)
        if op.kind == WEIGHT
        and len({int(device[reader]) for reader in graph.readers.get((position, 0), ())}) > 1
    ]


def _notes(ask: Ask, block: NDArray[np.int64], device: NDArray[np.int32]) -> list[str]:
    notes = general_notes(ask, "pipelining", trains=True)
    inside = block >= 0
    wrong = int((inside & (device != ask.plan.device)).sum())
    if wrong:
        count = f"{wrong} of {int(inside.sum())} ops"
        planned = runs(ask.plan.device[inside].tolist())
        if len(planned) > len({at for at, _ in planned}):
            notes.append(
                f"stages: the plan is no chain of stages in the model's order; {count} are on "
                "another device in the nearest one that is"
            )
        else:
            notes.append(f"stages: the plan cuts inside a module; {count} are on another device")
    shared = _shared(ask, device)
    if shared:
        notes.append(f"weights: {shared[0]!r} is read by several stages, and is in each of them")
    return notes
