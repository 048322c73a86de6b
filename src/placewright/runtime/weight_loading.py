"""Weight loading: reads safetensors files straight to the devices of a plan."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import FileError, MissingDependency
from placewright.runtime.model_buffers import compute_buffers

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping

INDEX_FILE, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"


def check_weights(model: torch.nn.Module, path: str | os.PathLike[str]) -> None:
    """Compare a model on `meta` with the names and shapes of a file, an index or their folder.

    Weights that the model says are tied are tied.

    Raises:
        FileError: As of `load_weights`.
    """
    _find_tensors(model, Path(path), frozenset())


def load_weights(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    devices: Mapping[str, str],
    skipped: Collection[str] = (),
) -> None:
    """Fill a model on `meta` from a file, an index of several files, or their folder.

    Tensors go straight to their devices, one by one, so that at most one of them is in memory
    twice. Buffers that transformers computes from a configuration are computed.

    Args:
        devices: The PyTorch device of each parameter and buffer, by name; others go to the CPU.
        skipped: Names of tensors that are not loaded, and stay on `meta`.

    Raises:
        FileError: A file is missing or broken, or lacks a tensor that the model has.
    """
    names_by_file, buffers = _find_tensors(model, Path(path), frozenset(skipped))
    for file, names in names_by_file.items():
        with _open_file(file) as reader:
            for name in names:
                _set_tensor(model, name, reader.get_tensor(name), devices.get(name, "cpu"))
    for name, value in buffers.items():
        _set_tensor(model, name, value, devices.get(name, "cpu"))


def _find_tensors(
    model: torch.nn.Module, path: Path, skipped: Collection[str]
) -> tuple[dict[Path, list[str]], dict[str, torch.Tensor]]:
    """The names of the model's tensors in each file, and the buffers that are computed.

    Raises:
        FileError: A file is missing or broken, or lacks a tensor, or has it in another shape.
    """
    shapes: dict[Path, dict[str, tuple[int, ...]]] = {}
    for file in _weight_files(path):
        with _open_file(file) as reader:
            shapes[file] = {
                name: tuple(reader.get_slice(name).get_shape())
                for name in reader.keys()  # noqa: SIM118
            }
    in_files = {name for file_shapes in shapes.values() for name in file_shapes}
    missing = _missing_names(model, in_files) - set(skipped)
    tie: Any = getattr(model, "tie_weights", None)
    if missing and tie is not None:
        tie()
        missing = _missing_names(model, in_files) - set(skipped)
    buffers = compute_buffers(model, missing) if missing else {}
    missing -= buffers.keys()
    if missing:
        raise FileError(
            f"{path}: lacks {len(missing)} of the model's tensors, such as {min(missing)!r}: "
            f"expected all that are on meta{_advice(model)}"
        )
    tensors = {name: tensor for name, tensor in _named_tensors(model) if name not in skipped}
    for file_shapes in shapes.values():
        for name, shape in file_shapes.items():
            if name in tensors and shape != tensors[name].shape:
                raise FileError(
                    f"tensor {name!r} has shape {shape} in the file: "
                    f"the model's has {tuple(tensors[name].shape)}"
                )
    return {
        file: [name for name in file_shapes if name in tensors]
        for file, file_shapes in shapes.items()
    }, buffers


def _advice(model: torch.nn.Module) -> str:
    """What to do where the files of a model lack some of its tensors."""
    if hasattr(model, "from_pretrained"):
        return "; load the model with from_pretrained, and give no weights"
    return "; build buffers that no file has on the CPU"


@contextlib.contextmanager
def _open_file(file: Path) -> Iterator[Any]:
    """A reader of a safetensors file; what is wrong with the file is a `FileError`."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingDependency("safetensors", "torch") from None
    try:
        with safe_open(file, framework="pt") as reader:
            yield reader
    except (OSError, SafetensorError) as error:
        raise FileError(f"{file}: cannot be read as safetensors: {error}") from error


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


def _missing_names(model: torch.nn.Module, in_files: Collection[str]) -> set[str]:
    """Names of the tensors that have no data, and that no file has under any of their names."""
    tensors = _named_tensors(model)
    found = {id(tensor) for name, tensor in tensors if name in in_files}
    return {name for name, tensor in tensors if tensor.is_meta and id(tensor) not in found}


def _set_tensor(model: torch.nn.Module, name: str, value: torch.Tensor, device: str) -> None:
    """Set a tensor of the model, under all names that share it."""
    tensors = _named_tensors(model)
    old = dict(tensors)[name]
    loaded: torch.Tensor = value.to(device=device, dtype=old.dtype)
    if isinstance(old, torch.nn.Parameter):
        loaded = torch.nn.Parameter(loaded, old.requires_grad)
    for alias, tensor in tensors:
        if tensor is old:
            path, _, attribute = alias.rpartition(".")
            owner = model.get_submodule(path)
            table: Any = owner._parameters if attribute in owner._parameters else owner._buffers
            table[attribute] = loaded
