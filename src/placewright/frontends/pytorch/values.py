"""Finds the tensors in arguments or outputs, and names the leaves of arguments."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Mapping


def tensors_in(value: Any, depth: int = 4) -> list[torch.Tensor]:
    """The tensors in a value; objects of unknown type, such as caches, are searched too."""
    tensors = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif depth and hasattr(leaf, "__dict__") and not isinstance(leaf, torch.nn.Module):
            tensors += tensors_in(list(vars(leaf).values()), depth - 1)
    return tensors


def input_names(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[str]:
    """A name for each leaf of a call's arguments, e.g. `tokens` or `cache.0.keys`."""
    signature = inspect.signature(model.forward)
    signature.bind(*args, **kwargs)
    positional = [
        parameter.name for parameter in signature.parameters.values() if parameter.kind <= 1
    ]
    names = []
    for at, value in enumerate(args):
        root = positional[at] if at < len(positional) else f"args.{at - len(positional)}"
        names += _leaf_names(root, value)
    for root, value in kwargs.items():
        names += _leaf_names(root, value)
    stored_names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return [f"{name}.input" if name in stored_names else name for name in names]


def _leaf_names(root: str, value: Any) -> list[str]:
    paths, _ = pytree.tree_flatten_with_path(value)
    return [".".join([root, *re.findall(r"\w+", pytree.keystr(path))]) for path, _ in paths]
