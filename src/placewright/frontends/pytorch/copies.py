"""Copies a model and its arguments to the CPU, with or without their data."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ModelCall = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
"""A model, its positional and its keyword arguments."""


def copy_shapes(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ModelCall:
    """Copies on the CPU whose tensors have their shape and layout and no data.

    Call it under a fake tensor mode. Tensors that share storage still do, whatever their device or
    fake mode.
    """
    bases: dict[int, torch.Tensor] = {}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in bases:
            bases[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8)
        base = bases[storage._cdata].untyped_storage()
        result = torch.empty(0, dtype=tensor.dtype)
        result.set_(base, tensor.storage_offset(), tensor.shape, tensor.stride())
        return result

    return _deep_copy((model, args, dict(kwargs)), convert)


def copy_values(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ModelCall:
    """Copies on the CPU with data; tensors without data become zeros."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
            return torch.zeros(tensor.shape, dtype=tensor.dtype)
        return tensor.detach().to("cpu", copy=True)

    return _deep_copy((model, args, dict(kwargs)), convert)


class _CopyMode(torch.overrides.TorchFunctionMode):
    """A mode in which `convert` makes the deep copy of a tensor."""

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.convert = convert

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = self.convert(tensor)
        return memo[id(tensor)]


def _deep_copy(call: ModelCall, convert: Callable[[torch.Tensor], torch.Tensor]) -> ModelCall:
    def make(tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            converted = convert(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(converted, tensor.requires_grad)
        return converted.requires_grad_(tensor.requires_grad)

    model = call[0]
    # Parameter.__deepcopy__ reads the data, so parameters are copied beforehand.
    memo: dict[int, Any] = {
        id(source): make(source) for source in (*model.parameters(), *model.buffers())
    }
    with _CopyMode(make):
        return copy.deepcopy(call, memo)
