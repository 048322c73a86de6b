"""Undoes what calls of a model change in it: `place` makes calls that its program has not made.

A forward may write to buffers, assign attributes, or append to lists. Without this a placed model
would go on from other states than an untouched one; and an output that depends on them would differ
from the one of the call before, though the plan is right.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLES = frozenset({"_parameters", "_modules"})
"""What is no state: weights, and the modules themselves."""
_CONTAINERS = dict, OrderedDict, list, set


@contextlib.contextmanager
def unchanged_states(model: torch.nn.Module) -> Iterator[None]:
    """Restore buffers, attributes and random numbers of the host after the calls of a block.

    Values of weights, and what attributes refer to besides tensors, lists, dictionaries and sets,
    are not restored.
    """
    modules = [_Contents(vars(module)) for module in model.modules()]
    tensors = _Tensors(
        [*model.buffers(), *(value for module in modules for value in module.plain_tensors)]
    )
    random_state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(random_state)
        for contents in modules:
            contents.restore()
        tensors.restore()


def devices_of(model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.device]]:
    """Where each parameter and buffer of a model is."""
    return [(tensor, tensor.device) for tensor in (*model.parameters(), *model.buffers())]


class _Contents:
    """What a table of names refers to, and what its lists, dictionaries and sets have in them."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table, self.values = table, dict(table)
        self.containers = [
            (value, value.copy())
            for name, value in self.values.items()
            if name not in _TABLES and type(value) in _CONTAINERS
        ]

    @property
    def plain_tensors(self) -> list[torch.Tensor]:
        """Tensors that are attributes, and no parameters or buffers."""
        return [value for value in self.values.values() if isinstance(value, torch.Tensor)]

    def restore(self) -> None:
        for name in [name for name in self.table if name not in self.values]:
            del self.table[name]
        self.table.update(self.values)
        for value, before in self.containers:
            if isinstance(value, list):
                value[:] = before
            else:
                value.clear()
                value.update(before)


class _Tensors:
    """The numbers of tensors."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        known = {id(tensor): tensor for tensor in tensors if _has_numbers(tensor)}
        self.pairs = [(tensor, tensor.detach().clone()) for tensor in known.values()]

    def restore(self) -> None:
        for tensor, before in self.pairs:
            if not torch.equal(tensor.detach().to(before.device), before):
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(before)


def _has_numbers(tensor: torch.Tensor) -> bool:
    return not (tensor.is_meta or is_lazy(tensor)) and tensor.layout == torch.strided
