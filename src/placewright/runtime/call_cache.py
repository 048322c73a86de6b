"""Keys of captured calls, and a fingerprint that tells whether the model has changed.

A captured program is used again for calls that it would give the right answer to.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

_PLAIN_TYPES = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
_AUTOCAST_DEVICES = ("cpu", "cuda")
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_MODULE_HOOKS = (
    *_FORWARD_HOOKS,
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def call_key(
    fingerprint: ModelFingerprint, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Hashable | None:
    """What a captured call depends on: shapes, plain values, modes; None if there is no telling.

    Arguments that are one tensor are captured as one, so which of them are counts, too.
    """
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    key: list[Hashable] = [str(spec), fingerprint.modes()]
    first_index: dict[Hashable, int] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            same_as = first_index.setdefault(_memory_key(leaf), index)
            key.append((tuple(leaf.shape), leaf.dtype, same_as))
        elif isinstance(leaf, _PLAIN_TYPES):
            key.append((type(leaf).__name__, leaf))
        else:
            return None
    return tuple(key)


class ModelFingerprint:
    """A model as captured programs know it: its modules, their hooks, and where tensors lie.

    It is looked at in every call, so it is quick rather than thorough: attributes of modules that
    are no tensors do not count.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = list(model.modules())
        table_groups = [
            (module._modules, module._parameters, module._buffers) for module in self.modules
        ]
        self._tables: list[dict[str, Any]] = [table for group in table_groups for table in group]
        submodules = [
            module for module in self.modules if module is not model
        ]  # its own run around a program
        self._hooks = [module.__dict__[name] for module in submodules for name in _FORWARD_HOOKS]
        self._tensors = [
            tensor
            for _, parameters, buffers in table_groups
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
            [id(value) for table in self._tables for value in table.values()],
            [tensor.data_ptr() for tensor in self._tensors],
            sum(map(len, self._hooks)),
        )

    def modes(self) -> Hashable:
        """Which modules train, and what is cast by itself."""
        casts = tuple(
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in _AUTOCAST_DEVICES
        )
        return tuple([module.training for module in self.modules]), casts


def unplaced_copy(
    model: torch.nn.Module, excluded: Sequence[str], hooks: bool = True
) -> torch.nn.Module:
    """A model like another, whose parameters, buffers and modules it shares.

    Args:
        excluded: Attributes that are left out.
        hooks: With its own; those of its modules it has in any case.
    """
    clone = model.__class__.__new__(model.__class__)
    clone.__dict__.update((k, v) for k, v in model.__dict__.items() if k not in excluded)
    clone.__dict__["_load_state_dict_post_hooks"] = OrderedDict()  # nothing is loaded into it
    if not hooks:
        clone.__dict__.update((name, OrderedDict()) for name in _MODULE_HOOKS)
    return clone


def to_caller_device(outputs: Any, args: Any, kwargs: Any) -> Any:
    """Outputs on the device of the first tensor that was given."""
    leaves = pytree.tree_leaves((args, kwargs))
    caller_tensor = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), None)
    if caller_tensor is None:
        return outputs

    def move(value: Any) -> Any:
        return value.to(caller_tensor.device) if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(move, outputs)


def _memory_key(tensor: torch.Tensor) -> Hashable:
    start = tensor.untyped_storage().data_ptr()
    return (start, tensor.storage_offset()) if start else id(tensor)
