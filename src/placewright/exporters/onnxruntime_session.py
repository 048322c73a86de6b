"""Exports a plan as an annotated ONNX file with the settings of an ONNX Runtime session.

A node's `layer_ann` says which layer it belongs to, and `session.layer_assignment_settings` where
layers run (tried with ONNX Runtime 1.31); the layers are the plan's devices. A session has one
accelerator of a kind, so that ops of all accelerators go to the one that is busiest.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import ConfigError
from placewright.exporters import onnx_files
from placewright.exporters.base import (
    ExportedPlan,
    ExportRequest,
    evaluate_export,
    general_notes,
)
from placewright.exporters.device_names import device_numbers, is_host
from placewright.units import UNLIMITED

if TYPE_CHECKING:
    from numpy.typing import NDArray

ANNOTATION_KEY = "layer_ann"
ASSIGNMENT_KEY = "session.layer_assignment_settings"
CPU_PROVIDER = "CPUExecutionProvider"
_PROVIDERS = {"gpu": "CUDAExecutionProvider"}
_DEVICE_CLASSES = ("gpu", "npu", "fpga")  # of the settings' own; anything else is an "accelerator"


def export(request: ExportRequest) -> ExportedPlan:
    """An annotated model, session options and providers.

    Raises:
        ConfigError: No file is given.
        PlanError: The file is not the one that the graph was read from.
    """
    model, ops = onnx_files.load_model(request, "onnxruntime")
    cluster = request.problem.cluster
    device, accelerator = _one_accelerator(request)
    nodes: dict[str, str] = {}
    for node, device_index in onnx_files.node_devices(request, model, ops, device):
        device_word = cluster.devices[device_index].name
        entry = next((prop for prop in node.metadata_props if prop.key == ANNOTATION_KEY), None)
        entry = node.metadata_props.add(key=ANNOTATION_KEY) if entry is None else entry
        entry.value = device_word
        nodes[node.name or next(filter(None, node.output))] = device_word
    hosts = sorted(
        {
            device_word
            for device_word in nodes.values()
            if is_host(request, cluster.position[device_word])
        }
    )
    rules = [f"cpu({', '.join(f'={name}' for name in hosts)})"] if hosts else []
    providers: list[Any] = [CPU_PROVIDER]
    if accelerator is not None:
        kind = cluster.devices[accelerator].kind
        device_word = kind if kind in _DEVICE_CLASSES else "accelerator"
        rules.insert(0, f"{device_word}(={cluster.devices[accelerator].name})")
        options: dict[str, int] = {"device_id": _device_number(request, accelerator)}
        if request.problem.arrays.capacity[accelerator] < UNLIMITED:
            options["gpu_mem_limit"] = int(request.problem.arrays.capacity[accelerator])
        providers.insert(0, [_PROVIDERS.get(kind, kind), options])
    data = {
        "session_options": {
            ASSIGNMENT_KEY: "; ".join(rules),
            "session.record_ep_graph_assignment_info": "1",
        },
        "providers": providers,
        "nodes": nodes,
    }
    plan, cost, extra = evaluate_export(request, device, weights_follow=True)
    return ExportedPlan(
        target="onnxruntime",
        text=json.dumps(data, indent=2) + "\n",
        data=data,
        usage="for key, value in settings['session_options'].items(): "
        "options.add_session_config_entry(key, value); "
        "InferenceSession(FILE, options, providers=settings['providers'])",
        notes=(
            *general_notes(request, "ONNX Runtime"),
            *_notes(request, accelerator),
            *onnx_files.external_data_note(request, model),
            *extra,
        ),
        cost=cost,
        plan=plan,
        model=model.SerializeToString(),
        source=request.model,
    )


def misplaced(session: Any, exported: ExportedPlan) -> list[str]:
    """The nodes that a session runs elsewhere than the export says; fused ones cannot be told.

    Args:
        session: An `onnxruntime.InferenceSession` made with the export's settings.
    """
    nodes, (provider, *_) = exported.data["nodes"], exported.data["providers"]
    accelerator = provider[0] if isinstance(provider, list) else CPU_PROVIDER
    hosts = exported.data["session_options"][ASSIGNMENT_KEY].partition("cpu(")[2]
    host_names = {name.strip().removeprefix("=") for name in hosts.rstrip(")").split(",")}
    names = []
    for subgraph in session.get_provider_graph_assignment_info():
        for node in subgraph.get_nodes():
            name = nodes.get(node.name)
            if name is not None and subgraph.ep_name != (
                CPU_PROVIDER if name in host_names else accelerator
            ):
                names.append(node.name)
    return names


def _one_accelerator(request: ExportRequest) -> tuple[NDArray[np.int32], int | None]:
    """The plan with all accelerators in one: the busiest; None where there is none in use."""
    a, device = request.problem.arrays, request.plan.placement
    seconds = a.compute[np.arange(a.ops), device] * a.scheduled
    busy_seconds = np.bincount(device, weights=seconds, minlength=a.devices)
    busy_seconds[a.is_host] = -1
    used_accelerators = [
        at for at in range(a.devices) if not a.is_host[at] and (device[a.scheduled] == at).any()
    ]
    if not used_accelerators:
        return device.copy(), None
    accelerator = max(used_accelerators, key=lambda at: (busy_seconds[at], -at))
    return np.where(a.is_host[device], device, accelerator).astype(np.int32), accelerator


def _device_number(request: ExportRequest, device: int) -> int:
    name = request.names.get(
        request.problem.cluster.devices[device].name, str(device_numbers(request)[device])
    )
    if not name.isdecimal():
        raise ConfigError(f"device {name!r} of ONNX Runtime: expected its number, such as 0")
    return int(name)


def _notes(request: ExportRequest, accelerator: int | None) -> list[str]:
    cluster, a = request.problem.cluster, request.problem.arrays
    used_devices = {int(at) for at in np.unique(request.plan.placement[a.scheduled])}
    others = [
        cluster.devices[at].name
        for at in sorted(used_devices)
        if not a.is_host[at] and at != accelerator
    ]
    notes = []
    if others and accelerator is not None:
        notes.append(
            f"devices: a session has one accelerator; ops of {', '.join(others)} go to "
            f"{cluster.devices[accelerator].name}"
        )
    if sum(bool(a.is_host[at]) for at in used_devices) > 1:
        notes.append("hosts: a session has one host, so all of them are the same")
    notes.append(
        "wishes: ONNX Runtime fuses nodes first, and takes another provider where one has no "
        "kernel; `misplaced` tells what it did"
    )
    return notes
