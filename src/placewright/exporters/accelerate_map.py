"""A plan in, a `device_map` of Hugging Face Accelerate and Transformers out.

In a map, a number is an accelerator. `"cpu"` and `"disk"` are homes, not places to compute: such a
module's weights are copied to the main device each time it is called. A module that is computed on
the host is `torch.device("cpu")`, which Accelerate takes for a device like any other; the export
calls it `"host"`, and its text is Python, where that can be written down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import MissingDependency, PlanError
from placewright.exporters.base import (
    Ask,
    Exported,
    general_notes,
    priced,
    streamed,
)
from placewright.exporters.device_names import is_host, named
from placewright.exporters.module_flow import (
    ANYWHERE,
    ROOT,
    Flow,
    Modules,
    upwards,
)
from placewright.graph import INPUT, STATE, WEIGHT
from placewright.solvers.accelerate_map import Accelerate

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

HOME = "cpu"  # where offloaded weights are
COMPUTES = "host"  # a module that is computed on the host


def export(ask: Ask) -> Exported:
    """A map from modules to devices that `dispatch_model` and `from_pretrained` take.

    A module that the plan splits and Accelerate cannot goes where most of its time is planned.
    """
    names = named(ask, "{}", COMPUTES)
    main = _main_device(ask)
    modules = Modules(ask)
    flow = modules.settle(main)
    away = _offloaded(ask, modules, flow, main)
    if away:
        flow = _with_away(flow, away, main)
    words = {unit: HOME if unit in away else names[at] for unit, at in flow.device.items()}
    found = _shortest(ask, modules, flow, words, names[main])
    device = np.where(flow.at == ANYWHERE, main, flow.at)
    for position, op in enumerate(ask.problem.graph.ops):
        if op.kind == WEIGHT and modules.unit(op.module) in away:
            device[position] = ask.plan.device[position]
        if op.kind == INPUT:
            device[position] = ask.plan.device[position]
    as_run = Accelerate().as_run(ask.problem) if away else None
    plan, cost, notes = priced(ask, device, streams_to=main if away else None, as_run=as_run)
    data = {
        "device_map": {key: _value(word) for key, word in found.items()},
        "main_device": _value(names[main]),
        "force_hooks": set(found.values()) == {HOME},
    }
    more = ", force_hooks=True" if data["force_hooks"] else ""
    return Exported(
        target="accelerate",
        text=_source(data),
        data=data,
        usage=f"dispatch_model(model, device_map, main_device=main_device{more})",
        notes=(*_notes(ask, modules, flow, away, main), *notes),
        cost=cost,
        plan=plan,
    )


def dispatch(
    model: torch.nn.Module, exported: Exported, offload_dir: str | Path | None = None
) -> torch.nn.Module:
    """The model with Accelerate's hooks on it, as the export says, and each weight's home checked.

    Args:
        offload_dir: A folder for the weights that would be offloaded to the host.

    Raises:
        PlanError: A weight of the model has no device in the map, or ended up on another.
        MissingDependency: Accelerate is not installed.
    """
    try:
        import torch
        from accelerate import dispatch_model
    except ImportError:
        raise MissingDependency("accelerate", "export") from None
    words: dict[str, Any] = exported.data["device_map"]
    for name in model.state_dict():
        if _word(words, name) is None:
            raise PlanError(f"weight {name!r} of the model has no device: export with its own plan")
    host = torch.device("cpu")
    real: dict[Any, Any] = {COMPUTES: host, HOME: HOME if offload_dir is None else "disk"}
    placed: torch.nn.Module = dispatch_model(
        model,
        {key: real.get(word, word) for key, word in words.items()},
        main_device=real.get(exported.data["main_device"], exported.data["main_device"]),
        offload_dir=offload_dir,
        force_hooks=exported.data["force_hooks"],
    )
    for name, parameter in placed.named_parameters():
        word = _word(words, name)
        wanted = torch.device("meta" if word == HOME else real.get(word, word))
        if parameter.device != wanted:
            raise PlanError(f"weight {name!r} is on {parameter.device}: the map says {wanted}")
    return placed


def _word(words: dict[str, Any], name: str) -> Any:
    return next((words[path] for path in upwards(name) if path in words), None)


def _source(data: dict[str, Any]) -> str:
    """The map as Python."""
    host = COMPUTES in (*data["device_map"].values(), data["main_device"])
    lines = ["import torch", "", 'host = torch.device("cpu")  # computes here', ""] if host else []

    def written(word: int | str) -> str:
        return COMPUTES if word == COMPUTES else repr(word)

    lines.append("device_map = {")
    lines += [f"    {key!r}: {written(word)}," for key, word in data["device_map"].items()]
    lines += ["}", f"main_device = {written(data['main_device'])}"]
    return "\n".join(lines) + "\n"


def _main_device(ask: Ask) -> int:
    """Where offloaded modules are computed and the model's inputs go."""
    a, plan = ask.problem.arrays, ask.plan
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    weights = streamed(ask)[a.producer[a.inputs]] & a.turn[reader]
    bytes_to = np.bincount(
        plan.device[reader[weights]], weights=a.sizes[a.inputs[weights]], minlength=a.devices
    )
    bytes_to[a.host] = 0
    if bytes_to.any():
        return int(bytes_to.argmax())
    seconds = a.compute[np.arange(a.ops), plan.device] * a.turn
    first = np.flatnonzero(seconds > 0)
    return int(plan.device[first[0]]) if len(first) else int(plan.device[0])


def _offloaded(ask: Ask, modules: Modules, flow: Flow, main: int) -> set[str]:
    """The modules most of whose weights live on a host and are read on an accelerator."""
    if is_host(ask, main):
        return set()
    a, graph = ask.problem.arrays, ask.problem.graph
    apart = streamed(ask)
    at_home: dict[str, int] = {}
    total: dict[str, int] = {}
    for position, op in enumerate(graph.ops):
        unit = modules.unit(op.module)
        if op.kind != WEIGHT or unit is None:
            continue
        size = int(a.resident[position])
        total[unit] = total.get(unit, 0) + size
        if apart[position] and a.host[ask.plan.device[position]]:
            at_home[unit] = at_home.get(unit, 0) + size
    return {
        unit
        for unit, size in at_home.items()
        if 2 * size > total[unit]
        and not is_host(ask, flow.device[unit])
        and not modules.read_by_root(unit)
    }


def _with_away(flow: Flow, away: set[str], main: int) -> Flow:
    """The same, with offloaded modules computed on the main device."""
    moved = [at for unit, at in flow.units.items() if unit in away]
    flow.at[np.isin(flow.group, moved)] = main
    flow.device.update(dict.fromkeys(away, main))
    return flow


def _shortest(
    ask: Ask, modules: Modules, flow: Flow, words: dict[str, str], main: str
) -> dict[str, str]:
    """The map with as few keys as say the same, in order of first use."""
    placed = {unit: word for unit, word in words.items() if flow.device[unit] != ANYWHERE}
    inside: dict[str, set[str]] = {}  # a module → what the modules in it say
    itself: dict[str, set[int]] = {}  # a module → where it and they compute between these
    for unit, word in placed.items():
        for path in upwards(unit):
            inside.setdefault(path, set()).add(word)
    own: list[str] = []
    for position, op in enumerate(ask.problem.graph.ops):
        if flow.group[position] >= 0 or op.kind == INPUT or flow.at[position] == ANYWHERE:
            continue
        if op.kind in (WEIGHT, STATE):
            own.append(op.name)
        if op.phase == "forward":
            for path in upwards(op.module):
                itself.setdefault(path, set()).add(int(flow.at[position]))
    found: dict[str, str] = {}
    for unit, word in placed.items():
        same = [
            path
            for path in upwards(unit)
            if inside[path] == {word} and itself.get(path, set()) <= {flow.device[unit]}
        ]
        found.setdefault(same[-1], word)
    if ROOT not in found:
        # The root's own weights go to the main device whatever is said, but they must be named.
        found.update(dict.fromkeys(own, main))
    return found or {ROOT: main}


def _value(word: str) -> int | str:
    return int(word) if word.isdecimal() else word


def _notes(ask: Ask, modules: Modules, flow: Flow, away: set[str], main: int) -> list[str]:
    notes = general_notes(ask, "Accelerate", streams=True)
    split = [(path, why) for path, why in modules.why.items() if _was_split(ask, path)]
    if split:
        path, why = split[0]
        others = f"; {len(split) - 1} other modules likewise" if len(split) > 1 else ""
        what = f"module {path!r}" if path else "the model"
        notes.append(f"split: {what} stays whole, as {why}{others}")
    mixed = [unit for unit in flow.units if unit not in modules.why and _was_split(ask, unit)]
    if mixed:
        others = f"; {len(mixed) - 1} other modules likewise" if len(mixed) > 1 else ""
        notes.append(f"split: ops of module {mixed[0]!r} are not placed one by one{others}")
    if away:
        name = ask.problem.cluster.devices[main].name
        notes.append(
            f"streaming: Accelerate copies the weights of {len(away)} modules to {name} op by op, "
            "from pageable memory and with nothing ahead"
        )
        if ask.plan.staging is not None and (ask.plan.staging > 0).sum() > 1:
            notes.append(f"streaming: all offloaded modules are computed on {name}")
    kinds = [device for at, device in enumerate(ask.problem.cluster.devices) if is_host(ask, at)]
    if len(kinds) > 1:
        notes.append("hosts: Accelerate knows one host, so all of them are the same")
    return notes


def _was_split(ask: Ask, path: str) -> bool:
    a = ask.problem.arrays
    devices: NDArray[np.int32] = np.array(
        [
            ask.plan.device[at]
            for at, op in enumerate(ask.problem.graph.ops)
            if a.turn[at] and path in upwards(op.module)
        ],
        dtype=np.int32,
    )
    return len(np.unique(devices)) > 1
