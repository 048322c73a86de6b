"""A program, its model and a script in; where weights and states live out, moved there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from placewright.errors import ExecutionError
from placewright.runtime.program.sources import stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.instructions import Part, Script
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import Place
    from placewright.runtime.staging import Copy

Home = dict["Tensor", torch.Tensor]
"""The stored tensors of one device."""


def settle(
    program: Program,
    model: torch.nn.Module,
    script: Script,
    places: Sequence[Place],
    lay_out: bool = True,
) -> list[Home]:
    """Move the model's weights and states where the plan has them, and say where they are.

    The model keeps its parameters and buffers; their data move. Those that are streamed to a GPU
    become pinned, so that copies run beside everything else.

    Args:
        lay_out: Whether they may also move next to each other, to be copied together.

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
    for place, part in zip(places, script.parts, strict=True):
        if lay_out and part.staging is not None and place.kind == "cuda":
            for haul in part.staging.hauls:
                _side_by_side(program, tensors, haul)
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
        add_views(program, part, place, home)
    for place, home, part in zip(places, homes, script.parts, strict=True):
        if place.kind == "cpu":  # threads share their memory
            for tensor in part.borrowed:
                home[tensor] = homes[script.device[tensor[0]]][tensor]
    return homes


@torch.no_grad()
def add_views(program: Program, part: Part, place: Place, home: Home) -> None:
    """Add the views of weights, which are there already, to what is stored on a device."""
    for position in dict.fromkeys(position for position, _ in part.stored):
        op = program.graph.ops[position]
        if op.inputs:
            run = program.runner(position, place.torch_name)
            for output, value in enumerate(run([home[tensor] for tensor in op.inputs])):
                home[position, output] = value


def _side_by_side(
    program: Program, tensors: Mapping[int, torch.Tensor], haul: Sequence[Copy]
) -> None:
    """Give the weights of a haul to a GPU pinned memory as they will stand there.

    Copies of them are then one copy. They stay where they are, and are copied one by one, if one is
    not dense, not on the host yet or in the haul twice, or if together they took more memory.
    """
    if len(haul) < 2:
        return
    first = haul[0].offset
    found: list[tuple[int, torch.Tensor]] = []
    for copy in haul:
        position = copy.tensor[0]
        while position not in tensors and program.graph.ops[position].inputs:
            position = program.graph.ops[position].inputs[0][0]  # what it is a view of
        weight = tensors.get(position)
        if weight is None or weight.device.type != "cpu" or weight.nbytes != copy.size:
            return
        found.append((copy.offset - first, weight))
    if len({id(weight) for _, weight in found}) < len(found) or not all(map(_dense, found)):
        return
    if len({weight.data_ptr() - offset for offset, weight in found}) == 1:
        return  # they do already
    offset, last = found[-1]
    size = offset + last.nbytes
    if _pinned(size) > sum(_pinned(weight.nbytes) for _, weight in found):
        return
    room = torch.empty(size, dtype=torch.uint8).pin_memory()
    with torch.no_grad():
        for offset, weight in found:
            data = room[offset : offset + weight.nbytes].view(weight.dtype)
            data = data.as_strided(weight.shape, weight.stride())
            data.copy_(weight)
            weight.data = data


def _pinned(size: int) -> int:
    """Bytes that PyTorch pins for so many: the next power of two."""
    return 1 << (size - 1).bit_length()


def _dense(place: tuple[int, torch.Tensor]) -> bool:
    """Whether a weight fills the memory that it spans, and can stand at its place."""
    offset, weight = place
    span = 1 + sum(
        step * (size - 1) for size, step in zip(weight.shape, weight.stride(), strict=True)
    )
    return span == weight.numel() > 0 and offset % weight.element_size() == 0


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
