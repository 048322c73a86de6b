"""Exports a plan as affinities of OpenVINO's HETERO device.

OpenVINO needs affinities for all ops of a model or for none, and it adds ops when it reads a model,
so `apply` gives ops that are not in the map the device of their neighbours.
"""

from __future__ import annotations

import json
from typing import Any

from placewright.errors import PlanError
from placewright.exporters.base import (
    ExportedPlan,
    ExportRequest,
    evaluate_export,
    general_notes,
)
from placewright.exporters.device_names import target_names
from placewright.exporters.module_paths import nearest_value
from placewright.exporters.module_votes import busiest

AFFINITY_KEY = "affinity"
_TORCH_PREFIX = "__module."  # OpenVINO's prefix of op names from PyTorch


def export(request: ExportRequest) -> ExportedPlan:
    """The device of each op and of each module, by name, and the device list."""
    names = target_names(request, "GPU.{}", "CPU")
    a, graph = request.problem.arrays, request.problem.graph
    affinity = {
        op.name: names[request.plan.placement[at]]
        for at, op in enumerate(graph.ops)
        if a.scheduled[at]
    }
    module_ops: dict[str, list[int]] = {}
    for at, op in enumerate(graph.ops):
        if a.scheduled[at]:
            module_ops.setdefault(op.module, []).append(at)
    modules = {
        path: busiest(
            (affinity[graph.ops[at].name], float(a.compute[at, request.plan.placement[at]]))
            for at in ops
        )
        for path, ops in module_ops.items()
    }
    used_names = [name for name in dict.fromkeys(names) if name in affinity.values()]
    used_names.sort(key=lambda name: name == "CPU")  # the fallback comes last
    data = {"device": f"HETERO:{','.join(used_names)}", "affinity": affinity, "modules": modules}
    device = request.plan.placement.copy()
    by_name = request.model is not None and request.model.suffix == ".onnx"
    if not by_name:  # of a PyTorch model OpenVINO keeps the names of modules, not of ops
        for at, op in enumerate(graph.ops):
            if a.scheduled[at]:
                device[at] = names.index(modules[op.module])
    notes = general_notes(request, "OpenVINO")
    if (device != request.plan.placement).any():
        notes.append(
            "modules: of a PyTorch model OpenVINO has modules and not ops; a module that is "
            "split goes where most of its time is"
        )
    plan, cost, extra = evaluate_export(request, device, weights_follow=True)
    return ExportedPlan(
        target="openvino",
        text=json.dumps(data, indent=2) + "\n",
        data=data,
        usage="placewright.exporters.openvino_hetero.apply(model, affinities); "
        f"core.compile_model(model, {data['device']!r})",
        notes=(
            *notes,
            "subgraphs: each contiguous segment of ops on one device is compiled by itself, so "
            "nothing is fused across a cut",
            *extra,
        ),
        cost=cost,
        plan=plan,
    )


def apply(model: Any, exported: ExportedPlan | dict[str, Any]) -> dict[str, str]:
    """Set the affinity of every op of an OpenVINO model, and return the affinities.

    Args:
        model: An `openvino.Model`.
        exported: The export, or the contents of its file.

    Raises:
        PlanError: No op of the model is in the map.
    """
    data = exported.data if isinstance(exported, ExportedPlan) else exported
    ops = list(model.get_ordered_ops())
    affinities: dict[str, str] = {}
    for op in ops:
        device = _lookup_device(data, op.get_friendly_name())
        if device is not None:
            affinities[op.get_friendly_name()] = device
    if not affinities:
        raise PlanError("none of the model's ops is in the map: is it the model of the plan?")
    for op in ops:  # a computed op goes with its inputs
        if op.get_friendly_name() not in affinities:
            source_names = [source.get_node().get_friendly_name() for source in op.input_values()]
            device = next((affinities[name] for name in source_names if name in affinities), None)
            if device is not None:
                affinities[op.get_friendly_name()] = device
    for op in reversed(ops):  # a stored op goes with its readers
        if op.get_friendly_name() not in affinities:
            reader_names = [
                target.get_node().get_friendly_name()
                for output in op.outputs()
                for target in output.get_target_inputs()
            ]
            device = next((affinities[name] for name in reader_names if name in affinities), None)
            affinities[op.get_friendly_name()] = device or next(iter(data["affinity"].values()))
    for op in ops:
        op.get_rt_info()[AFFINITY_KEY] = affinities[op.get_friendly_name()]
    return affinities


def _lookup_device(data: dict[str, Any], name: str) -> str | None:
    """The device in the map of an op name of OpenVINO, if any."""
    parts = name.split("/")
    for count in range(len(parts), 0, -1):  # OpenVINO names the parts of an op `op/part`
        prefix = "/".join(parts[:count])
        if prefix in data["affinity"]:
            return str(data["affinity"][prefix])
    if name.startswith(_TORCH_PREFIX):
        path = name.removeprefix(_TORCH_PREFIX).partition("/")[0]
        device = nearest_value(path, data["modules"])
        return None if device is None else str(device)
    return None
