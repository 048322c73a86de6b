"""A model without data and safetensors files in, its weights where a plan has them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import FileError, MissingDependency

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"


def load_weights(
    model: torch.nn.Module, path: str | os.PathLike[str], homes: Mapping[str, str]
) -> None:
    """Fill a model on `meta` from a file, an index of several files, or their folder.

    Tensors go straight to their homes, one by one, so that at no time is more than one of them in
    memory twice.

    Args:
        homes: The PyTorch device of each parameter and buffer, by name; others go to the CPU.

    Raises:
        FileError: A file is missing or broken, or lacks a tensor that the model has.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingDependency("safetensors", "torch") from None
    waiting = _waiting(model)
    stored = {name for name, _ in _named(model)}
    for file in _files(Path(path)):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    if name in stored:
                        _put(model, name, opened, homes.get(name, "cpu"), waiting)
        except (OSError, SafetensorError) as error:
            raise FileError(f"{file}: cannot be read as safetensors: {error}") from error
    tie: Any = getattr(model, "tie_weights", None)
    if tie is not None and waiting:
        tie()
        waiting &= _waiting(model)
    if waiting:
        raise FileError(
            f"{path}: lacks {len(waiting)} of the model's tensors, such as {min(waiting)!r}: "
            "expected all that are on meta; build buffers that no file has on the CPU"
        )


def _files(path: Path) -> list[Path]:
    """The files that hold tensors."""
    if path.is_dir():
        path = path / INDEX if (path / INDEX).exists() else path / WHOLE
    if not path.exists():
        raise FileError(f"{path}: does not exist: expected a safetensors file, index or folder")
    if path.suffix != ".json":
        return [path]
    try:
        names = set(json.loads(path.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path}: is no index of safetensors files: expected weight_map") from error
    return [path.parent / name for name in sorted(names)]


def _named(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def _waiting(model: torch.nn.Module) -> set[str]:
    """What has no data yet."""
    return {name for name, tensor in _named(model) if tensor.is_meta}


def _put(model: torch.nn.Module, name: str, opened: Any, device: str, waiting: set[str]) -> None:
    """Set a tensor of the model, under all names that share it."""
    before = dict(_named(model))[name]
    tensor = opened.get_tensor(name)
    if tensor.shape != before.shape:
        raise FileError(
            f"tensor {name!r} has shape {tuple(tensor.shape)} in the file: "
            f"the model's has {tuple(before.shape)}"
        )
    made: torch.Tensor = tensor.to(device=device, dtype=before.dtype)
    if isinstance(before, torch.nn.Parameter):
        made = torch.nn.Parameter(made, before.requires_grad)
    for other, tensor in _named(model):
        if tensor is before:
            path, _, last = other.rpartition(".")
            owner = model.get_submodule(path)
            table: Any = owner._parameters if last in owner._parameters else owner._buffers
            table[last] = made
            waiting.discard(other)
