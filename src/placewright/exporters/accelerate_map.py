"""Exports a plan as a `device_map` of Hugging Face Accelerate and Transformers.

In a map, a number is an accelerator. `"cpu"` and `"disk"` store weights and do not compute: such a
module's weights are copied to the main device each time it is called. A module that is computed on
the host is `torch.device("cpu")`, which Accelerate treats like any other device; the export calls
it `"host"`, and its text is Python, which can express it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import MissingDependency, PlanError
from placewright.exporters.base import (
    ExportedPlan,
    ExportRequest,
    evaluate_export,
    general_notes,
    streamed_weights,
)
from placewright.exporters.device_names import is_host, target_names
from placewright.exporters.module_paths import ROOT, enclosing_paths, nearest_value
from placewright.exporters.whole_modules import (
    ANYWHERE,
    ModulePlacement,
    ModuleUnits,
)
from placewright.graph import INPUT, STATE, WEIGHT
from placewright.solvers.accelerate_map import Accelerate

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

OFFLOAD_DEVICE = "cpu"  # where offloaded weights are
HOST_DEVICE = "host"  # a module that is computed on the host


def export(request: ExportRequest) -> ExportedPlan:
    """A map from modules to devices that `dispatch_model` and `from_pretrained` take.

    A module that the plan splits, but Accelerate cannot, goes where most of its time is planned.
    """
    names = target_names(request, "{}", HOST_DEVICE)
    main_device = _main_device(request)
    modules = ModuleUnits(request)
    placement = modules.place_units(main_device)
    offloaded = _offloaded_modules(request, modules, placement, main_device)
    if offloaded:
        placement = _with_offloaded(placement, offloaded, main_device)
    unit_names = {
        unit: OFFLOAD_DEVICE if unit in offloaded else names[at]
        for unit, at in placement.unit_device.items()
    }
    device_map = _shortest_map(request, modules, placement, unit_names, names[main_device])
    device = np.where(placement.op_device == ANYWHERE, main_device, placement.op_device)
    for position, op in enumerate(request.problem.graph.ops):
        if op.kind == WEIGHT and modules.unit(op.module) in offloaded:
            device[position] = request.plan.placement[position]
        if op.kind == INPUT:
            device[position] = request.plan.placement[position]
    target_problem = Accelerate().as_executed(request.problem) if offloaded else None
    plan, cost, notes = evaluate_export(
        request,
        device,
        streaming_device=main_device if offloaded else None,
        target_problem=target_problem,
    )
    data = {
        "device_map": {key: _map_value(name) for key, name in device_map.items()},
        "main_device": _map_value(names[main_device]),
        "force_hooks": set(device_map.values()) == {OFFLOAD_DEVICE},
    }
    extra = ", force_hooks=True" if data["force_hooks"] else ""
    return ExportedPlan(
        target="accelerate",
        text=_python_source(data),
        data=data,
        usage=f"dispatch_model(model, device_map, main_device=main_device{extra})",
        notes=(*_notes(request, modules, placement, offloaded, main_device), *notes),
        cost=cost,
        plan=plan,
    )


def dispatch(
    model: torch.nn.Module, exported: ExportedPlan, offload_dir: str | Path | None = None
) -> torch.nn.Module:
    """Add Accelerate's hooks to a model by an export, and check the device of each weight.

    Args:
        offload_dir: A folder for offloaded weights, instead of the host's memory.

    Raises:
        PlanError: A weight has no device in the map, or is on another one afterwards.
        MissingDependency: Accelerate is not installed.
    """
    try:
        import torch
        from accelerate import dispatch_model
    except ImportError:
        raise MissingDependency("accelerate", "export") from None
    device_map: dict[str, Any] = exported.data["device_map"]
    for name in model.state_dict():
        if nearest_value(name, device_map) is None:
            raise PlanError(f"weight {name!r} of the model has no device: export with its own plan")
    host = torch.device("cpu")
    torch_devices: dict[Any, Any] = {
        HOST_DEVICE: host,
        OFFLOAD_DEVICE: OFFLOAD_DEVICE if offload_dir is None else "disk",
    }
    dispatched: torch.nn.Module = dispatch_model(
        model,
        {key: torch_devices.get(target, target) for key, target in device_map.items()},
        main_device=torch_devices.get(exported.data["main_device"], exported.data["main_device"]),
        offload_dir=offload_dir,
        force_hooks=exported.data["force_hooks"],
    )
    for name, parameter in dispatched.named_parameters():
        target: Any = nearest_value(name, device_map)
        expected = torch.device(
            "meta" if target == OFFLOAD_DEVICE else torch_devices.get(target, target)
        )
        if parameter.device != expected:
            raise PlanError(f"weight {name!r} is on {parameter.device}: the map says {expected}")
    return dispatched


def _python_source(data: dict[str, Any]) -> str:
    """The map as Python."""
    host = HOST_DEVICE in (*data["device_map"].values(), data["main_device"])
    lines = ["import torch", "", 'host = torch.device("cpu")  # computes here', ""] if host else []

    def literal(device: int | str) -> str:
        return HOST_DEVICE if device == HOST_DEVICE else repr(device)

    lines.append("device_map = {")
    lines += [f"    {key!r}: {literal(device)}," for key, device in data["device_map"].items()]
    lines += ["}", f"main_device = {literal(data['main_device'])}"]
    return "\n".join(lines) + "\n"


def _main_device(request: ExportRequest) -> int:
    """The device that computes offloaded modules and receives the model's inputs."""
    a, plan = request.problem.arrays, request.plan
    is_streamed = streamed_weights(request)[a.producer[a.inputs]] & a.scheduled[a.reader]
    streamed_bytes = np.bincount(
        plan.placement[a.reader[is_streamed]],
        weights=a.sizes[a.inputs[is_streamed]],
        minlength=a.devices,
    )
    streamed_bytes[a.is_host] = 0
    if streamed_bytes.any():
        return int(streamed_bytes.argmax())
    seconds = a.compute[np.arange(a.ops), plan.placement] * a.scheduled
    computing = np.flatnonzero(seconds > 0)
    return int(plan.placement[computing[0]]) if len(computing) else int(plan.placement[0])


def _offloaded_modules(
    request: ExportRequest, modules: ModuleUnits, placement: ModulePlacement, main_device: int
) -> set[str]:
    """The modules with most of their weights on a host and read on an accelerator."""
    if is_host(request, main_device):
        return set()
    a, graph = request.problem.arrays, request.problem.graph
    is_streamed = streamed_weights(request)
    host_bytes: dict[str, int] = {}
    total_bytes: dict[str, int] = {}
    for position, op in enumerate(graph.ops):
        unit = modules.unit(op.module)
        if op.kind != WEIGHT or unit is None:
            continue
        size = int(a.resident[position])
        total_bytes[unit] = total_bytes.get(unit, 0) + size
        if is_streamed[position] and a.is_host[request.plan.placement[position]]:
            host_bytes[unit] = host_bytes.get(unit, 0) + size
    return {
        unit
        for unit, size in host_bytes.items()
        if 2 * size > total_bytes[unit]
        and not is_host(request, placement.unit_device[unit])
        and not modules.is_read_by_root(unit)
    }


def _with_offloaded(
    placement: ModulePlacement, offloaded: set[str], main_device: int
) -> ModulePlacement:
    """The placement, with offloaded modules computed on the main device."""
    unit_numbers = [at for unit, at in placement.units.items() if unit in offloaded]
    placement.op_device[np.isin(placement.op_unit, unit_numbers)] = main_device
    placement.unit_device.update(dict.fromkeys(offloaded, main_device))
    return placement


def _shortest_map(
    request: ExportRequest,
    modules: ModuleUnits,
    placement: ModulePlacement,
    unit_names: dict[str, str],
    main_device: str,
) -> dict[str, str]:
    """The equivalent map with the fewest keys, in order of first use."""
    fixed = {
        unit: name for unit, name in unit_names.items() if placement.unit_device[unit] != ANYWHERE
    }
    names_inside: dict[str, set[str]] = {}  # a module → the names of the units in it
    own_devices: dict[str, set[int]] = {}  # a module → the devices of its ops outside units
    for unit, name in fixed.items():
        for path in enclosing_paths(unit):
            names_inside.setdefault(path, set()).add(name)
    own_weights: list[str] = []
    for position, op in enumerate(request.problem.graph.ops):
        if (
            placement.op_unit[position] >= 0
            or op.kind == INPUT
            or placement.op_device[position] == ANYWHERE
        ):
            continue
        if op.kind in (WEIGHT, STATE):
            own_weights.append(op.name)
        if op.phase == "forward":
            for path in enclosing_paths(op.module):
                own_devices.setdefault(path, set()).add(int(placement.op_device[position]))
    device_map: dict[str, str] = {}
    for unit, name in fixed.items():
        equal_paths = [
            path
            for path in enclosing_paths(unit)
            if names_inside[path] == {name}
            and own_devices.get(path, set()) <= {placement.unit_device[unit]}
        ]
        device_map.setdefault(equal_paths[-1], name)
    if ROOT not in device_map:
        # The root's own weights go to the main device anyway, but the map must name them.
        device_map.update(dict.fromkeys(own_weights, main_device))
    return device_map or {ROOT: main_device}


def _map_value(name: str) -> int | str:
    return int(name) if name.isdecimal() else name


def _notes(
    request: ExportRequest,
    modules: ModuleUnits,
    placement: ModulePlacement,
    offloaded: set[str],
    main_device: int,
) -> list[str]:
    notes = general_notes(request, "Accelerate", can_stream=True)
    split = [(path, reason) for path, reason in modules.reasons.items() if _is_split(request, path)]
    if split:
        path, reason = split[0]
        suffix = f"; {len(split) - 1} other modules likewise" if len(split) > 1 else ""
        subject = f"module {path!r}" if path else "the model"
        notes.append(f"split: {subject} stays whole, as {reason}{suffix}")
    mixed = [
        unit for unit in placement.units if unit not in modules.reasons and _is_split(request, unit)
    ]
    if mixed:
        suffix = f"; {len(mixed) - 1} other modules likewise" if len(mixed) > 1 else ""
        notes.append(f"split: ops of module {mixed[0]!r} are not placed one by one{suffix}")
    if offloaded:
        name = request.problem.cluster.devices[main_device].name
        notes.append(
            f"streaming: Accelerate copies the weights of {len(offloaded)} modules to {name} op "
            "by op, from pageable memory and without prefetching"
        )
        if request.plan.staging is not None and (request.plan.staging > 0).sum() > 1:
            notes.append(f"streaming: all offloaded modules are computed on {name}")
    hosts = [
        device for at, device in enumerate(request.problem.cluster.devices) if is_host(request, at)
    ]
    if len(hosts) > 1:
        notes.append("hosts: Accelerate has one host, so all hosts become one")
    return notes


def _is_split(request: ExportRequest, path: str) -> bool:
    a = request.problem.arrays
    devices: NDArray[np.int32] = np.array(
        [
            request.plan.placement[at]
            for at, op in enumerate(request.problem.graph.ops)
            if a.scheduled[at] and path in enclosing_paths(op.module)
        ],
        dtype=np.int32,
    )
    return len(np.unique(devices)) > 1
