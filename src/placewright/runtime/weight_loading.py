"""Weight loading: reads safetensors files straight to the devices of a plan."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import FileError, MissingDependency

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping

INDEX_FILE, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"


def load_weights(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    devices: Mapping[str, str],
    skipped: Collection[str] = (),
) -> None:
    """Fill a model on `meta` from a file, an index of several files, or their folder.

    Tensors go straight to their devices, one by one, so that at most one of them is in memory
    twice.

    Args:
        devices: The PyTorch device of each parameter and buffer, by name; others go to the CPU.
        skipped: Names of tensors that are not loaded, and stay on `meta`.

    Raises:
        FileError: A file is missing or broken, or lacks a tensor that the model has.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingDependency("safetensors", "torch") from None
    missing = _missing_tensors(model) - set(skipped)
    known = {name for name, _ in _named_tensors(model)} - set(skipped)
    for file in _weight_files(Path(path)):
        try:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118
                    if name in known:
                        _set_tensor(model, name, reader, devices.get(name, "cpu"), missing)
        except (OSError, SafetensorError) as error:
            raise FileError(f"{file}: cannot be read as safetensors: {error}") from error
    tie: Any = getattr(model, "tie_weights", None)
    if tie is not None and missing:
        tie()
        missing &= _missing_tensors(model)
    if missing:
        raise FileError(
            f"{path}: lacks {len(missing)} of the model's tensors, such as {min(missing)!r}: "
            "expected all that are on meta; build buffers that no file has on the CPU"
        )


def _weight_files(path: Path) -> list[Path]:
    """The files that hold tensors."""
    if path.is_dir():
        path = path / INDEX_FILE if (path / INDEX_FILE).exists() else path / SINGLE_FILE
    if not path.exists():
        raise FileError(f"{path}: does not exist: expected a safetensors file, index or folder")
    if path.suffix != ".json":
        return [path]
    try:
        names = set(json.loads(path.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{path}: is not an index of safetensors files: expected weight_map"
        ) from error
    for name in names:
        if not isinstance(name, str) or not _is_within_folder(name):
            raise FileError(
                f"{path}: names the file {name!r}: expected names of files in the index's folder"
            )
    return [path.parent / name for name in sorted(names)]


def _is_within_folder(name: str) -> bool:
    """Whether a name leads to a file of the same folder or below, on any system.

    Symbolic links may lead elsewhere: the user's own downloads are made of them.
    """
    return (
        bool(name)
        and "\0" not in name
        and not any(
            path.is_absolute() or path.drive or ".." in path.parts
            for path in (PurePosixPath(name), PureWindowsPath(name))
        )
    )


def _named_tensors(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]


def _missing_tensors(model: torch.nn.Module) -> set[str]:
    """Names of the tensors that have no data yet."""
    return {name for name, tensor in _named_tensors(model) if tensor.is_meta}


def _set_tensor(
    model: torch.nn.Module, name: str, reader: Any, device: str, missing: set[str]
) -> None:
    """Set a tensor of the model, under all names that share it."""
    old = dict(_named_tensors(model))[name]
    tensor = reader.get_tensor(name)
    if tensor.shape != old.shape:
        raise FileError(
            f"tensor {name!r} has shape {tuple(tensor.shape)} in the file: "
            f"the model's has {tuple(old.shape)}"
        )
    loaded: torch.Tensor = tensor.to(device=device, dtype=old.dtype)
    if isinstance(old, torch.nn.Parameter):
        loaded = torch.nn.Parameter(loaded, old.requires_grad)
    for alias, tensor in _named_tensors(model):
        if tensor is old:
            path, _, attribute = alias.rpartition(".")
            owner = model.get_submodule(path)
            table: Any = owner._parameters if attribute in owner._parameters else owner._buffers
            table[attribute] = loaded
            missing.discard(alias)
