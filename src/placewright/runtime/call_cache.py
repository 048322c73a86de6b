"""A model and a call's arguments in; what tells the call from others, and the model from itself.

A captured program is used again for calls that it would give the right answer to.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_CAST = ("cpu", "cuda")
_AROUND = ("_forward_hooks", "_forward_pre_hooks")
_HOOKS = (
    *_AROUND,
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def call_key(watched: Watched, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable | None:
    """What a captured call depends on: shapes, plain values, modes; None if there is no telling.

    Arguments that are one tensor are captured as one, so which of them are counts, too.
    """
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    key: list[Hashable] = [str(spec), watched.modes()]
    first: dict[Hashable, int] = {}
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            same = first.setdefault(_memory(leaf), at)
            key.append((tuple(leaf.shape), leaf.dtype, same))
        elif isinstance(leaf, _PLAIN):
            key.append((type(leaf).__name__, leaf))
        else:
            return None
    return tuple(key)


class Watched:
    """A model as captured programs know it: its modules, their hooks, and where tensors lie.

    It is looked at in every call, so it is quick rather than thorough: attributes of modules that
    are no tensors do not count.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = list(model.modules())
        parts = [(one._modules, one._parameters, one._buffers) for one in self.modules]
        self._parts: list[dict[str, Any]] = [part for three in parts for part in three]
        inner = [one for one in self.modules if one is not model]  # its own run around a program
        self._hooks = [one.__dict__[name] for one in inner for name in _AROUND]
        self._tensors = [
            tensor
            for _, parameters, buffers in parts
            for tensor in (*parameters.values(), *buffers.values())
            if tensor is not None
        ]
        self.stamp = self._stamp()

    @property
    def changed(self) -> bool:
        """Whether it is another one now."""
        return self.stamp != self._stamp()

    def _stamp(self) -> tuple[list[int], list[int], int]:
        return (
            [id(one) for part in self._parts for one in part.values()],
            [tensor.data_ptr() for tensor in self._tensors],
            sum(map(len, self._hooks)),
        )

    def modes(self) -> Hashable:
        """Which modules train, and what is cast by itself."""
        casts = tuple(
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in _CAST
        )
        return tuple([module.training for module in self.modules]), casts


def bare(model: torch.nn.Module, without: Sequence[str], hooks: bool = True) -> torch.nn.Module:
    """A model like another, whose parameters, buffers and modules it shares.

    Args:
        without: Attributes that are left out.
        hooks: With its own; those of its modules it has in any case.
    """
    found = model.__class__.__new__(model.__class__)
    found.__dict__.update((k, v) for k, v in model.__dict__.items() if k not in without)
    found.__dict__["_load_state_dict_post_hooks"] = OrderedDict()  # nothing is loaded into it
    if not hooks:
        found.__dict__.update((name, OrderedDict()) for name in _HOOKS)
    return found


def back(made: Any, args: Any, kwargs: Any) -> Any:
    """Outputs on the device of the first tensor that was given."""
    leaves = pytree.tree_leaves((args, kwargs))
    first = next((one for one in leaves if isinstance(one, torch.Tensor)), None)
    if first is None:
        return made

    def moved(value: Any) -> Any:
        return value.to(first.device) if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(moved, made)


def _memory(tensor: torch.Tensor) -> Hashable:
    start = tensor.untyped_storage().data_ptr()
    return (start, tensor.storage_offset()) if start else id(tensor)
