"""A plan in, the affinities of OpenVINO's HETERO device out.

OpenVINO takes affinities for all ops of a model or for none, and makes ops of its own while it
reads a model, so `apply` gives those it does not find in the map their neighbours' device.
"""

from __future__ import annotations

import json
from typing import Any

from placewright.errors import PlanError
from placewright.exporters.base import (
    Ask,
    Exported,
    general_notes,
    priced,
)
from placewright.exporters.device_names import named
from placewright.exporters.module_flow import upwards

KEY = "affinity"
_TORCH = "__module."  # how OpenVINO begins the names of ops that come from PyTorch


def export(ask: Ask) -> Exported:
    """The device of each op by its name, of modules where they are on one, and the device list."""
    names = named(ask, "GPU.{}", "CPU")
    a, graph = ask.problem.arrays, ask.problem.graph
    placed = {op.name: names[ask.plan.device[at]] for at, op in enumerate(graph.ops) if a.turn[at]}
    times: dict[str, dict[str, float]] = {}
    for at, op in enumerate(graph.ops):
        if a.turn[at]:
            here = times.setdefault(op.module, {})
            here[placed[op.name]] = here.get(placed[op.name], 0.0) + float(
                a.compute[at, ask.plan.device[at]]
            )
    modules = {path: max(here, key=lambda word: here[word]) for path, here in times.items()}
    used = [name for name in dict.fromkeys(names) if name in placed.values()]
    used.sort(key=lambda name: name == "CPU")  # what OpenVINO falls back to comes last
    data = {"device": f"HETERO:{','.join(used)}", "affinity": placed, "modules": modules}
    device = ask.plan.device.copy()
    by_name = ask.model is not None and ask.model.suffix == ".onnx"
    if not by_name:  # OpenVINO keeps the modules' names of a PyTorch model, and no op's
        for at, op in enumerate(graph.ops):
            if a.turn[at]:
                device[at] = names.index(modules[op.module])
    notes = general_notes(ask, "OpenVINO")
    if (device != ask.plan.device).any():
        notes.append(
            "modules: of a PyTorch model OpenVINO knows modules and not ops; a module that is "
            "split goes where most of its time is"
        )
    plan, cost, more = priced(ask, device, weights_follow=True)
    return Exported(
        target="openvino",
        text=json.dumps(data, indent=2) + "\n",
        data=data,
        usage="placewright.exporters.openvino_hetero.apply(model, affinities); "
        f"core.compile_model(model, {data['device']!r})",
        notes=(
            *notes,
            "subgraphs: each stretch of ops on one device is compiled for itself, so nothing is "
            "fused across a cut",
            *more,
        ),
        cost=cost,
        plan=plan,
    )


def apply(model: Any, exported: Exported | dict[str, Any]) -> dict[str, str]:
    """Give every op of an OpenVINO model its affinity, and say which.

    Args:
        model: An `openvino.Model`.
        exported: The export, or what its file holds.

    Raises:
        PlanError: No op of the model is in the map.
    """
    data = exported.data if isinstance(exported, Exported) else exported
    ops = list(model.get_ordered_ops())
    found: dict[str, str] = {}
    for op in ops:
        word = _named(data, op.get_friendly_name())
        if word is not None:
            found[op.get_friendly_name()] = word
    if not found:
        raise PlanError("none of the model's ops is in the map: is it the model of the plan?")
    for op in ops:  # what is computed goes with what it reads
        if op.get_friendly_name() not in found:
            read = [source.get_node().get_friendly_name() for source in op.input_values()]
            word = next((found[name] for name in read if name in found), None)
            if word is not None:
                found[op.get_friendly_name()] = word
    for op in reversed(ops):  # what is stored goes with what reads it
        if op.get_friendly_name() not in found:
            readers = [
                target.get_node().get_friendly_name()
                for output in op.outputs()
                for target in output.get_target_inputs()
            ]
            word = next((found[name] for name in readers if name in found), None)
            found[op.get_friendly_name()] = word or next(iter(data["affinity"].values()))
    for op in ops:
        op.get_rt_info()[KEY] = found[op.get_friendly_name()]
    return found


def _named(data: dict[str, Any], name: str) -> str | None:
    """The device that the map has for a name of OpenVINO's, if any."""
    parts = name.split("/")
    for count in range(len(parts), 0, -1):  # an op of OpenVINO's own is named `op/part`
        whole = "/".join(parts[:count])
        if whole in data["affinity"]:
            return str(data["affinity"][whole])
    if name.startswith(_TORCH):
        path = name.removeprefix(_TORCH).partition("/")[0]
        known = next((each for each in upwards(path) if each in data["modules"]), None)
        return None if known is None else str(data["modules"][known])
    return None
