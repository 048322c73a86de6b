"""A model and its arguments in, copies out whose tensors have no data, or data to try out."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Call = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
"""A model, and the positional and keyword arguments it is called with."""


def copy_shapes(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Copies on the CPU in which every tensor has its shape, its layout and no data.

    To be called while fake tensors are on. What shares memory still does, to whatever device,
    `meta` or fake mode it belongs.
    """
    bases: dict[int, torch.Tensor] = {}

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in bases:
            bases[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8)
        base = bases[storage._cdata].untyped_storage()
        made = torch.empty(0, dtype=tensor.dtype)
        made.set_(base, tensor.storage_offset(), tensor.shape, tensor.stride())
        return made

    return _copy((model, args, dict(kwargs)), convert)


def copy_values(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    """Copies on the CPU with the data that there are; what has none is all zeros."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
            return torch.zeros(tensor.shape, dtype=tensor.dtype)
        return tensor.detach().to("cpu", copy=True)

    return _copy((model, args, dict(kwargs)), convert)


class _Copies(torch.overrides.TorchFunctionMode):
    """While it is on, a deep copy of a tensor is what `convert` makes of it."""

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


def _copy(call: Call, convert: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    def make(tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            made = convert(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)

    model = call[0]
    # A parameter's own way to copy itself reads its data, so those are copied beforehand.
    memo: dict[int, Any] = {id(one): make(one) for one in (*model.parameters(), *model.buffers())}
    with _Copies(make):
        return copy.deepcopy(call, memo)
