"""Keys of captured calls, and a fingerprint that tells whether the model has changed.

A captured program is reused for calls to which it gives the right answer.
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
    """What a captured call depends on: shapes, plain values, modes; None if that is unknown.

    Arguments that are the same tensor are captured as one, so the key tells which ones are.
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
    """What captured programs rely on: a model's modules, hooks and addresses of tensors.

    It is compared in every call, so it is fast rather than complete: attributes of modules that are
    not tensors are ignored.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = list(model.modules())
        table_groups = [
            (module._modules, module._parameters, module._buffers) for module in self.modules
        ]
        self._tables: list[dict[str, Any]] = [table for group in table_groups for table in group]
        # The model's own hooks run outside a program.
        submodules = [module for module in self.modules if module is not model]
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
        """Whether the model has changed since."""
        return self.stamp != self._stamp()

    def _stamp(self) -> tuple[list[int], list[int], int]:
        return (
            [id(value) for table in self._tables for value in table.values()],
            [tensor.data_ptr() for tensor in self._tensors],
            sum(map(len, self._hooks)),
        )

    def modes(self) -> Hashable:
        """Which modules are in training mode, and the dtypes of autocast."""
        casts = tuple(
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            for kind in _AUTOCAST_DEVICES
        )
        return tuple([module.training for module in self.modules]), casts


def unplaced_copy(
    model: torch.nn.Module, excluded: Sequence[str], hooks: bool = True
) -> torch.nn.Module:
    """A copy of a model that shares its parameters, buffers and modules.

    Args:
        excluded: Attributes that are left out.
        hooks: Whether to keep the model's own hooks; those of its modules are kept always.
    """
    clone = model.__class__.__new__(model.__class__)
    clone.__dict__.update((k, v) for k, v in model.__dict__.items() if k not in excluded)
    clone.__dict__["_load_state_dict_post_hooks"] = OrderedDict()  # no state is loaded into it
    if not hooks:
        clone.__dict__.update((name, OrderedDict()) for name in _MODULE_HOOKS)
    return clone


def to_caller_device(outputs: Any, args: Any, kwargs: Any) -> Any:
    """Outputs on the device of the first tensor among the arguments."""
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
