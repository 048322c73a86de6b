"""A program, its model and a script in; where weights and states live out, moved there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from placewright.errors import ExecutionError
from placewright.frontends.torch_sources import stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from placewright.frontends.torch_program import Program
    from placewright.graph import Tensor
    from placewright.runtime.places import Place
    from placewright.runtime.script import Script

Home = dict["Tensor", torch.Tensor]
"""The stored tensors of one device."""


def settle(
    program: Program, model: torch.nn.Module, script: Script, places: Sequence[Place]
) -> list[Home]:
    """Move the model's weights and states where the plan has them, and say where they are.

    The model keeps its parameters and buffers; their data move. Those that are streamed to a GPU
    become pinned, so that copies run beside everything else.

    Raises:
        ExecutionError: A weight has no data yet, or a device has no room for it.
    """
    tensors = stored(program, model)
    pinned: set[int] = set()
    leaving = [tensor for tensor, target in _leaving(script) if places[target].kind == "cuda"]
    while leaving:
        position = leaving.pop()
        if position not in pinned:
            pinned.add(position)  # and of a view, what it is a view of
            leaving += [source for source, _ in program.graph.ops[position].inputs]
    _leave(tensors, script, places)
    homes: list[Home] = [{} for _ in places]
    for place, home, part in zip(places, homes, script.parts, strict=True):
        for tensor in part.stored:
            position, _ = tensor
            if position in tensors:
                kept = tensors[position]
                if kept.is_meta:
                    raise ExecutionError(
                        f"{program.graph.ops[position].name!r} has no data yet: load the model's "
                        "weights first, or give them to apply(weights=...)"
                    )
                home[tensor] = _move(kept, place, position in pinned)
        with torch.no_grad():
            for position in dict.fromkeys(position for position, _ in part.stored):
                op = program.graph.ops[position]
                if op.inputs:  # a view of weights, which are here too
                    run = program.runner(position, place.torch_name)
                    for output, value in enumerate(run([home[tensor] for tensor in op.inputs])):
                        home[position, output] = value
    for place, home, part in zip(places, homes, script.parts, strict=True):
        if place.kind == "cpu":  # threads share their memory
            for tensor in part.borrowed:
                home[tensor] = homes[script.device[tensor[0]]][tensor]
    return homes


def gather(model: torch.nn.Module) -> None:
    """Bring all of a model's parameters and buffers to the host."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta and tensor.device.type != "cpu":
            tensor.data = tensor.data.cpu()


def _leave(tensors: Mapping[int, torch.Tensor], script: Script, places: Sequence[Place]) -> None:
    """Clear GPUs of weights that belong elsewhere, before any come: both might not fit."""
    for position, tensor in tensors.items():
        home = torch.device(places[script.device[position]].torch_name)
        if tensor.device.type == "cuda" and tensor.device != home:
            tensor.data = tensor.data.cpu()


def _leaving(script: Script) -> Iterator[tuple[int, int]]:
    """Stored tensors' ops that are sent or streamed to other devices in every step."""
    for target, part in enumerate(script.parts):
        if part.staging is not None:
            for copy in part.staging.copies:
                yield copy.tensor[0], target
        for (position, _), other in part.sends:
            yield position, other


def _move(kept: torch.Tensor, place: Place, pinned: bool) -> torch.Tensor:
    """The tensor's data on its device; the tensor itself has them from now on."""
    data = kept.detach()
    target = torch.device(place.torch_name)
    if data.device != target:
        try:
            data = data.to(target)
        except RuntimeError as error:
            raise ExecutionError(f"no room for weights on {place.name!r}: {error}") from error
        kept.data = data
    if pinned and target.type == "cpu" and not data.is_pinned():
        data = data.pin_memory()
        kept.data = data
    return data
