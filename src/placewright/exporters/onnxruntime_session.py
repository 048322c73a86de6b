"""A plan and an ONNX file in, the file with layer annotations and a session's settings out.

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
    Ask,
    Exported,
    general_notes,
    priced,
)
from placewright.exporters.device_names import is_host, numbered

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = "layer_ann"
SETTINGS = "session.layer_assignment_settings"
CPU = "CPUExecutionProvider"
_PROVIDERS = {"gpu": "CUDAExecutionProvider"}
_WORDS = ("gpu", "npu", "fpga")  # of the settings' own; anything else is an "accelerator"
UNLIMITED = 2**60


def export(ask: Ask) -> Exported:
    """An annotated model, session options and providers.

    Raises:
        ConfigError: No file is given.
        PlanError: The file is not the one that the graph was read from.
    """
    model, ops = onnx_files.load(ask, "onnxruntime")
    cluster = ask.problem.cluster
    device, chosen = _one_accelerator(ask)
    nodes: dict[str, str] = {}
    for node, place in onnx_files.node_devices(ask, model, ops, device):
        word = cluster.devices[place].name
        entry = next((each for each in node.metadata_props if each.key == KEY), None)
        entry = node.metadata_props.add(key=KEY) if entry is None else entry
        entry.value = word
        nodes[node.name or next(filter(None, node.output))] = word
    hosts = sorted({word for word in nodes.values() if is_host(ask, cluster.position[word])})
    rules = [f"cpu({', '.join(f'={name}' for name in hosts)})"] if hosts else []
    providers: list[Any] = [CPU]
    if chosen is not None:
        kind = cluster.devices[chosen].kind
        word = kind if kind in _WORDS else "accelerator"
        rules.insert(0, f"{word}(={cluster.devices[chosen].name})")
        options: dict[str, int] = {"device_id": _number(ask, chosen)}
        if ask.problem.arrays.capacity[chosen] < UNLIMITED:
            options["gpu_mem_limit"] = int(ask.problem.arrays.capacity[chosen])
        providers.insert(0, [_PROVIDERS.get(kind, kind), options])
    data = {
        "session_options": {
            SETTINGS: "; ".join(rules),
            "session.record_ep_graph_assignment_info": "1",
        },
        "providers": providers,
        "nodes": nodes,
    }
    plan, cost, more = priced(ask, device, weights_follow=True)
    return Exported(
        target="onnxruntime",
        text=json.dumps(data, indent=2) + "\n",
        data=data,
        usage="for key, value in settings['session_options'].items(): "
        "options.add_session_config_entry(key, value); "
        "InferenceSession(FILE, options, providers=settings['providers'])",
        notes=(
            *general_notes(ask, "ONNX Runtime"),
            *_notes(ask, chosen),
            *onnx_files.external_note(ask, model),
            *more,
        ),
        cost=cost,
        plan=plan,
        model=model.SerializeToString(),
        source=ask.model,
    )


def misplaced(session: Any, exported: Exported) -> list[str]:
    """The nodes that a session runs elsewhere than the export says; fused ones cannot be told.

    Args:
        session: An `onnxruntime.InferenceSession` made with the export's settings.
    """
    nodes, (first, *_) = exported.data["nodes"], exported.data["providers"]
    accelerator = first[0] if isinstance(first, list) else CPU
    hosts = exported.data["session_options"][SETTINGS].partition("cpu(")[2]
    hosted = {word.strip().removeprefix("=") for word in hosts.rstrip(")").split(",")}
    found = []
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            word = nodes.get(node.name)
            if word is not None and part.ep_name != (CPU if word in hosted else accelerator):
                found.append(node.name)
    return found


def _one_accelerator(ask: Ask) -> tuple[NDArray[np.int32], int | None]:
    """The plan with all accelerators in one: the busiest; None where there is none in use."""
    a, device = ask.problem.arrays, ask.plan.device
    seconds = a.compute[np.arange(a.ops), device] * a.turn
    busy = np.bincount(device, weights=seconds, minlength=a.devices)
    busy[a.host] = -1
    used = [at for at in range(a.devices) if not a.host[at] and (device[a.turn] == at).any()]
    if not used:
        return device.copy(), None
    chosen = max(used, key=lambda at: (busy[at], -at))
    return np.where(a.host[device], device, chosen).astype(np.int32), chosen


def _number(ask: Ask, device: int) -> int:
    word = ask.names.get(ask.problem.cluster.devices[device].name, str(numbered(ask)[device]))
    if not word.isdecimal():
        raise ConfigError(f"device {word!r} of ONNX Runtime: expected its number, such as 0")
    return int(word)


def _notes(ask: Ask, chosen: int | None) -> list[str]:
    cluster, a = ask.problem.cluster, ask.problem.arrays
    used = {int(at) for at in np.unique(ask.plan.device[a.turn])}
    others = [cluster.devices[at].name for at in sorted(used) if not a.host[at] and at != chosen]
    notes = []
    if others and chosen is not None:
        notes.append(
            f"devices: a session has one accelerator; ops of {', '.join(others)} go to "
            f"{cluster.devices[chosen].name}"
        )
    if sum(bool(a.host[at]) for at in used) > 1:
        notes.append("hosts: a session has one host, so all of them are the same")
    notes.append(
        "wishes: ONNX Runtime fuses nodes first, and takes another provider where one has no "
        "kernel; `misplaced` tells what it did"
    )
    return notes
