"""A plan and an ONNX file in, the file with ONNX's own device configurations out (IR version 11).

The model names the devices. A node says, for each tensor that it makes, which device holds it, and
its pipeline stage where the plan is a chain of stages.
"""

from __future__ import annotations

import json

import numpy as np

from placewright.exporters import onnx_files
from placewright.exporters.base import (
    Ask,
    Exported,
    general_notes,
    priced,
)
from placewright.exporters.device_names import named

CONFIGURATION = "placewright"
IR_VERSION = 11


def export(ask: Ask) -> Exported:
    """A model whose nodes name their device.

    Raises:
        ConfigError: No file is given.
        PlanError: The file is not the one that the graph was read from.
    """
    model, ops = onnx_files.load(ask, "onnx")
    model.ir_version = max(model.ir_version, IR_VERSION)
    for entry in [each for each in model.configuration if each.name == CONFIGURATION]:
        model.configuration.remove(entry)
    names = named(ask, "gpu{}", "cpu{}")
    model.configuration.add(name=CONFIGURATION, num_devices=len(names), device=names)
    stages = _stages(ask)
    nodes: dict[str, int] = {}
    device = ask.plan.device.copy()
    for node, place in onnx_files.node_devices(ask, model, ops, device):
        for entry in [e for e in node.device_configurations if e.configuration_id == CONFIGURATION]:
            node.device_configurations.remove(entry)
        said = node.device_configurations.add(configuration_id=CONFIGURATION)
        if stages:
            said.pipeline_stage = stages[place]
        for tensor in filter(None, node.output):
            said.sharding_spec.add(tensor_name=tensor, device=[place])
        nodes[node.name or next(filter(None, node.output))] = place
    plan, cost, more = priced(ask, device)
    data = {
        "devices": names,
        "stages": {names[at]: stage for at, stage in stages.items()},
        "nodes": nodes,
    }
    notes = general_notes(ask, "ONNX")
    if not stages:
        notes.append("stages: the plan goes back and forth between devices, so none is written")
    return Exported(
        target="onnx",
        text=json.dumps(data, indent=2) + "\n",
        data=data,
        usage=f"model.configuration and node.device_configurations, named {CONFIGURATION!r}",
        notes=(*notes, *onnx_files.external_note(ask, model), *more),
        cost=cost,
        plan=plan,
        model=model.SerializeToString(),
        source=ask.model,
    )


def _stages(ask: Ask) -> dict[int, int]:
    """Each device's stage, if tensors only ever go to a later one."""
    a, device = ask.problem.arrays, ask.plan.device
    used = np.unique(device[a.turn])
    first = {int(at): int(np.flatnonzero(a.turn & (device == at))[0]) for at in used}
    stage = {at: number for number, at in enumerate(sorted(first, key=lambda at: first[at]))}
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    for start, end in zip(source[a.turn[source]], reader[a.turn[source]], strict=True):
        if stage[int(device[start])] > stage[int(device[end])]:
            return {}
    return stage
