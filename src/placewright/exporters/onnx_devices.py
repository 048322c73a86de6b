"""Exports a plan as an ONNX file with ONNX's own device configurations (IR version 11).

The model names the devices. A node says, for each tensor that it makes, which device holds it, and
its pipeline stage where the plan is a chain of stages.
"""

from __future__ import annotations

import json

import numpy as np

from placewright.exporters import onnx_files
from placewright.exporters.base import (
    ExportedPlan,
    ExportRequest,
    evaluate_export,
    general_notes,
)
from placewright.exporters.device_names import target_names

CONFIGURATION = "placewright"
IR_VERSION = 11


def export(request: ExportRequest) -> ExportedPlan:
    """A model whose nodes name their device.

    Raises:
        ConfigError: No file is given.
        PlanError: The file is not the one that the graph was read from.
    """
    model, ops = onnx_files.load_model(request, "onnx")
    model.ir_version = max(model.ir_version, IR_VERSION)
    for entry in [existing for existing in model.configuration if existing.name == CONFIGURATION]:
        model.configuration.remove(entry)
    names = target_names(request, "gpu{}", "cpu{}")
    model.configuration.add(name=CONFIGURATION, num_devices=len(names), device=names)
    stages = _pipeline_stages(request)
    nodes: dict[str, int] = {}
    device = request.plan.placement.copy()
    for node, device_index in onnx_files.node_devices(request, model, ops, device):
        for entry in [e for e in node.device_configurations if e.configuration_id == CONFIGURATION]:
            node.device_configurations.remove(entry)
        configuration = node.device_configurations.add(configuration_id=CONFIGURATION)
        if stages:
            configuration.pipeline_stage = stages[device_index]
        for tensor in filter(None, node.output):
            configuration.sharding_spec.add(tensor_name=tensor, device=[device_index])
        nodes[node.name or next(filter(None, node.output))] = device_index
    plan, cost, extra = evaluate_export(request, device)
    data = {
        "devices": names,
        "stages": {names[at]: stage for at, stage in stages.items()},
        "nodes": nodes,
    }
    notes = general_notes(request, "ONNX")
    if not stages:
        notes.append("stages: the plan goes back and forth between devices, so none is written")
    return ExportedPlan(
        target="onnx",
        text=json.dumps(data, indent=2) + "\n",
        data=data,
        usage=f"model.configuration and node.device_configurations, named {CONFIGURATION!r}",
        notes=(*notes, *onnx_files.external_data_note(request, model), *extra),
        cost=cost,
        plan=plan,
        model=model.SerializeToString(),
        source=request.model,
    )


def _pipeline_stages(request: ExportRequest) -> dict[int, int]:
    """Each device's stage, if tensors only ever go to a later one."""
    a, device = request.problem.arrays, request.plan.placement
    used_devices = np.unique(device[a.scheduled])
    first_op = {
        int(at): int(np.flatnonzero(a.scheduled & (device == at))[0]) for at in used_devices
    }
    stage = {at: number for number, at in enumerate(sorted(first_op, key=lambda at: first_op[at]))}
    source = a.producer[a.inputs]
    for start, end in zip(source[a.scheduled[source]], a.reader[a.scheduled[source]], strict=True):
        if stage[int(device[start])] > stage[int(device[end])]:
            return {}
    return stage
