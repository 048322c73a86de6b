"""Weight storage: moves weights and states to their devices, and pins streamed ones.

Weights of CPU workers are in huge pages where the system has them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from placewright.errors import ExecutionError
from placewright.runtime.huge_pages import use_huge_pages
from placewright.runtime.pinned_memory import pinned_copy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.instructions import DeviceInstructions, Instructions
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice
    from placewright.runtime.staging_layout import StagedCopy

ResidentTensors = dict["Tensor", torch.Tensor]
"""The resident tensors of one device."""


def place_weights(
    program: Program,
    tensors: Mapping[int, torch.Tensor],
    instructions: Instructions,
    real_devices: Sequence[RealDevice],
    pack_weights: bool = True,
    shared: Collection[int] = (),
) -> list[ResidentTensors]:
    """Move a model's weights and states to the devices of the plan.

    The model keeps its parameters and buffers; their data move. Those that are streamed to a GPU
    become pinned, so that copies run asynchronously.

    Args:
        tensors: The model's own tensor of each weight and stored state, by position.
        pack_weights: Whether streamed weights may also become adjacent, to be copied together.
        shared: Positions of weights that share memory with tensors of the program, so that they
            must not move in the host's memory: they are streamed from there, pinned or not.

    Returns:
        The resident tensors of each device.

    Raises:
        ExecutionError: A weight has no data yet, or does not fit its device.
    """
    pinned: set[int] = set()
    to_pin = [
        tensor for tensor, target in _outgoing_weights(instructions) if real_devices[target].is_gpu
    ]
    while to_pin:
        position = to_pin.pop()
        if position not in pinned:
            pinned.add(position)  # and if it is a view, its base
            to_pin += [source for source, _ in program.graph.ops[position].inputs]
    _evict_weights(tensors, instructions, real_devices)
    for real_device, device_instructions in zip(real_devices, instructions.per_device, strict=True):
        if pack_weights and device_instructions.staging is not None and real_device.is_gpu:
            for batch in device_instructions.staging.batches:
                if not any(copy.tensor[0] in shared for copy in batch):
                    _pack_contiguous(program, tensors, batch)
    all_resident: list[ResidentTensors] = [{} for _ in real_devices]
    for real_device, resident, device_instructions in zip(
        real_devices, all_resident, instructions.per_device, strict=True
    ):
        for tensor in device_instructions.resident:
            position, _ = tensor
            if position in tensors:
                weight = tensors[position]
                if weight.is_meta:
                    raise ExecutionError(
                        f"{program.graph.ops[position].name!r} has no data yet: load the model's "
                        "weights first, or give them to apply(weights=...)"
                    )
                is_pinned = position in pinned and position not in shared
                data = _move_weight(weight, real_device, is_pinned)
                # PyTorch's products sum in another order where a weight needs no gradient.
                resident[tensor] = data.requires_grad_(weight.requires_grad)
        add_views(program, device_instructions, real_device, resident)
    for real_device, resident, device_instructions in zip(
        real_devices, all_resident, instructions.per_device, strict=True
    ):
        if not real_device.is_gpu:  # threads share their memory
            for tensor in device_instructions.shared:
                resident[tensor] = all_resident[instructions.placement[tensor[0]]][tensor]
    return all_resident


@torch.no_grad()
def add_views(
    program: Program,
    instructions: DeviceInstructions,
    real_device: RealDevice,
    resident: ResidentTensors,
) -> None:
    """Add views of resident weights to a device's resident tensors."""
    for position in dict.fromkeys(position for position, _ in instructions.resident):
        op = program.graph.ops[position]
        if op.inputs:
            run = program.runner(position, real_device.torch_name)
            for output, value in enumerate(run([resident[tensor] for tensor in op.inputs])):
                resident[position, output] = value


def _pack_contiguous(
    program: Program, tensors: Mapping[int, torch.Tensor], batch: Sequence[StagedCopy]
) -> None:
    """Move the weights of a batch to one pinned buffer, laid out as in the staging buffer.

    They are then copied at once. They stay where they are, and are copied one by one, if one of
    them is not dense, not on the host yet or in the batch twice, or if they would take more memory.
    """
    if len(batch) < 2:
        return
    first_offset = batch[0].offset
    slots: list[tuple[int, torch.Tensor]] = []
    for copy in batch:
        position = copy.tensor[0]
        while position not in tensors and program.graph.ops[position].inputs:
            position = program.graph.ops[position].inputs[0][0]  # its base
        weight = tensors.get(position)
        if weight is None or weight.device.type != "cpu" or weight.nbytes != copy.size:
            return
        slots.append((copy.offset - first_offset, weight))
    if len({id(weight) for _, weight in slots}) < len(slots) or not all(map(_is_dense, slots)):
        return
    if len({weight.data_ptr() - offset for offset, weight in slots}) == 1:
        return  # they are adjacent already
    offset, last_weight = slots[-1]
    size = offset + last_weight.nbytes
    if _pinned_bytes(size) > sum(_pinned_bytes(weight.nbytes) for _, weight in slots):
        return
    buffer = pinned_copy(torch.empty(size, dtype=torch.uint8))
    with torch.no_grad():
        for offset, weight in slots:
            data = buffer[offset : offset + weight.nbytes].view(weight.dtype)
            data = data.as_strided(weight.shape, weight.stride())
            data.copy_(weight)
            weight.data = data


def _pinned_bytes(size: int) -> int:
    """Bytes that PyTorch pins for a block: the next power of two."""
    return 1 << (size - 1).bit_length()


def _is_dense(slot: tuple[int, torch.Tensor]) -> bool:
    """Whether a weight fills the memory that it spans, and its offset is aligned."""
    offset, weight = slot
    span = 1 + sum(
        stride * (size - 1) for size, stride in zip(weight.shape, weight.stride(), strict=True)
    )
    return span == weight.numel() > 0 and offset % weight.element_size() == 0


def shared_storages(known: Iterable[Any]) -> set[int]:
    """The storages of these tensors that tensors of others have, too, such as `weight.data`."""
    tensors = {id(value): value for value in known if isinstance(value, torch.Tensor)}
    counts = Counter(
        storage_key(tensor)
        for tensor in tensors.values()
        if tensor.layout == torch.strided and not is_lazy(tensor)
    )
    alone = torch.empty(1)
    own_count = _use_count(storage_key(alone)) - 1  # what counting itself adds
    return {key for key, count in counts.items() if _use_count(key) - own_count > count}


def shared_positions(weights: Mapping[int, torch.Tensor], known: Iterable[Any]) -> set[int]:
    """The weights on the host whose storage has tensors besides the known ones."""
    shared = shared_storages(known)
    return {
        position
        for position, weight in weights.items()
        if weight.device.type == "cpu" and storage_key(weight) in shared
    }


def _use_count(key: int) -> int:
    torch_c: Any = torch._C
    count: int = torch_c._storage_Use_Count(key)
    return count


def storage_key(tensor: torch.Tensor) -> int:
    """A number of a tensor's memory."""
    key: int = tensor.untyped_storage()._cdata
    return key


def gather_to_host(model: torch.nn.Module) -> None:
    """Move all of a model's parameters and buffers to the host."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta and tensor.device.type != "cpu":
            tensor.data = tensor.data.cpu()


def _evict_weights(
    tensors: Mapping[int, torch.Tensor],
    instructions: Instructions,
    real_devices: Sequence[RealDevice],
) -> None:
    """Move weights off GPUs that the plan has elsewhere, first: both might not fit."""
    for position, tensor in tensors.items():
        target = torch.device(real_devices[instructions.placement[position]].torch_name)
        if tensor.device.type == "cuda" and tensor.device != target:
            tensor.data = tensor.data.cpu()


def _outgoing_weights(instructions: Instructions) -> Iterator[tuple[int, int]]:
    """Ops of resident tensors that are sent or streamed in every step, and their targets."""
    for target, device_instructions in enumerate(instructions.per_device):
        if device_instructions.staging is not None:
            for copy in device_instructions.staging.copies:
                yield copy.tensor[0], target
        for (position, _), receiver in device_instructions.sends:
            yield position, receiver


def _move_weight(weight: torch.Tensor, real_device: RealDevice, pinned: bool) -> torch.Tensor:
    """Move a weight's data to its device; the moved data."""
    data = weight.detach()
    target = torch.device(real_device.torch_name)
    if data.device != target:
        try:
            data = data.to(target)
        except RuntimeError as error:
            raise ExecutionError(
                f"no memory for weights on {real_device.name!r}: {error}"
            ) from error
        weight.data = data
    # Weights that overlap themselves, such as expanded ones, cannot be written to as they are.
    if pinned and target.type == "cpu" and not data.is_pinned() and _is_dense((0, data)):
        data = pinned_copy(data)
        weight.data = data
    elif not pinned and not real_device.is_gpu:
        use_huge_pages(data)
    return data
