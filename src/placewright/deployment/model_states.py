"""Undoes what calls of a model change in it: `place` makes calls that its program has not made.

A forward may write to buffers or weights, assign attributes, or append to lists. Without this a
placed model would go on from other states than an untouched one; and an output that depends on them
would differ from the one of the call before, though the plan is right.

Weights are many bytes, and few models write to them. Which ones do is learnt from the first calls,
of the model as it is: a weight is copied before an op writes to it.
"""

from __future__ import annotations

import contextlib
import random
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from placewright.runtime.weight_storage import storage_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CONTAINERS = dict, OrderedDict, list, set


@contextlib.contextmanager
def unchanged_states(
    model: torch.nn.Module, weights: Iterable[torch.Tensor] = ()
) -> Iterator[None]:
    """Restore buffers, attributes and random numbers of the host after the calls of a block.

    What attributes refer to besides tensors, lists, dictionaries and sets is not restored.

    Args:
        weights: Weights and gradients that the calls write to: they are restored, too.
    """
    modules = [_Contents(vars(module)) for module in model.modules()]
    gradients = [(weight, weight.grad) for weight in model.parameters()]
    plain_tensors = (value for module in modules for value in module.plain_tensors)
    tensors = _Tensors([*model.buffers(), *plain_tensors, *weights])
    random_states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(random_states[0])
        random.setstate(random_states[1])
        np.random.set_state(random_states[2])  # noqa: NPY002
        for contents in modules:
            contents.restore()
        for weight, gradient in gradients:
            if weight.grad is not gradient:
                weight.grad = gradient
        tensors.restore()


@contextlib.contextmanager
def unchanged_weights(model: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Restore the weights and gradients that the calls of a block write to; they are listed.

    The calls must run eagerly: only ops of this thread are seen.
    """
    weights = [weight for weight in model.parameters() if _has_numbers(weight)]
    data = [(weight, weight.data) for weight in weights]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    written: list[torch.Tensor] = []
    writes = _Writes([*weights, *(value for value in gradients if _has_numbers(value))])
    try:
        with writes:
            yield written
    finally:
        for weight, before in data:
            if weight.data_ptr() != before.data_ptr():  # `weight.data` was assigned
                weight.data = before
        writes.copies.restore()
        written += [tensor for tensor, _ in writes.copies.pairs]


def devices_of(model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.device]]:
    """Where each parameter and buffer of a model is."""
    return [(tensor, tensor.device) for tensor in (*model.parameters(), *model.buffers())]


class _Contents:
    """What a table of names refers to, and what its lists, dictionaries and sets have in them."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table, self.values = table, dict(table)
        self.containers = [
            (value, value.copy()) for value in self.values.values() if type(value) in _CONTAINERS
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

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for tensor in {id(tensor): tensor for tensor in tensors if _has_numbers(tensor)}.values():
            self.add(tensor)

    def add(self, tensor: torch.Tensor) -> None:
        """Copy what a tensor has now."""
        self.pairs.append((tensor, tensor.detach().clone()))

    def restore(self) -> None:
        for tensor, before in self.pairs:
            if not torch.equal(tensor.detach().to(before.device), before):
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(before)


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Copies tensors before an op writes to their memory."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies = _Tensors()
        self._at: dict[int, list[torch.Tensor]] = {}  # not yet copied, by the number of the memory
        for tensor in tensors:
            self._at.setdefault(storage_key(tensor), []).append(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[index] if index < len(args) else kwargs.get(argument.name)
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    self._before_write(tensor)
        return func(*args, **kwargs)

    def _before_write(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor) and _has_numbers(tensor):
            for owner in self._at.pop(storage_key(tensor), ()):
                self.copies.add(owner)


def _has_numbers(tensor: torch.Tensor) -> bool:
    return not (tensor.is_meta or is_lazy(tensor)) and tensor.layout == torch.strided
