"""Reads and writes a JSON file with a safetensors file next to it.

The JSON file names the other one, whose name holds a digest of its content. The tensors are written
first, so at any moment the JSON file names a complete tensor file. Pickle is never read.
"""

from __future__ import annotations

import glob
import hashlib
import re
import reprlib
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError, MissingDependency
from placewright.files.storage import is_temporary, read_data, write_bytes, write_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from placewright.files.validation import Data

_RENAMED_SETTINGS = {  # version 1 -> version 2, of all policies
    "learned": "learn_fraction",
    "looks": "candidates",
    "most": "max_groups",
    "rule": "grouping",
    "stay": "stay_bias",
    "together": "correlated",
    "wide": "head_width",
}
_TENSOR_FILE = re.compile(r"[^/\\]+\.[0-9a-f]{32}\.safetensors")


def settings_of(data: Mapping[str, Any]) -> Data:
    """A policy's settings in a file, also under the names that version 1 had for them.

    Raises:
        KeyError, TypeError: There are none.
    """
    settings: Any = data["settings"] if "settings" in data else data["shape"]
    if not isinstance(settings, dict):
        raise TypeError(f"settings is {reprlib.repr(settings)}: expected an object")
    return {_RENAMED_SETTINGS.get(str(key), str(key)): value for key, value in settings.items()}


def save_with_tensors(path: Path, data: Data, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write both files; afterwards they are either the new ones or untouched.

    Raises:
        FileError: They cannot be written there.
    """
    content = _safetensors().save({name: tensor.contiguous() for name, tensor in tensors.items()})
    new_name = f"{path.stem}.{_digest(content)}.safetensors"
    old_name = _tensor_file_of(path)
    try:
        write_bytes(content, path.with_name(new_name), sync=True)
        write_data({**data, "tensors": new_name}, path, sync=True)
        if old_name is not None and old_name != new_name:
            path.with_name(old_name).unlink(missing_ok=True)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    except OSError:  # the old tensors are left, which does no harm
        pass


def load_with_tensors(path: Path) -> tuple[Data, dict[str, torch.Tensor]]:
    """What `save_with_tensors` wrote.

    Raises:
        FileError: A file is missing or damaged.
    """
    try:
        data = read_data(path)
        file_name = data.pop("tensors", None) if isinstance(data, dict) else None
        if (
            not isinstance(data, dict)
            or not isinstance(file_name, str)
            or not _TENSOR_FILE.fullmatch(file_name)
        ):
            raise FileError('names no tensors: expected "tensors" with a safetensors file beside')
        try:
            content = path.with_name(file_name).read_bytes()
        except OSError:
            raise FileError(
                f"its tensors {file_name} cannot be read: keep both files together"
            ) from None
        if _digest(content) != file_name.split(".")[-2]:
            raise FileError(f"its tensors {file_name} are damaged: the digest is another one")
        return data, _tensors_in(content, file_name)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


def clear_orphans(paths: Sequence[Path]) -> None:
    """Remove what a killed process left of these files: unfinished ones, and tensors unnamed.

    Only for a folder that no other process writes to.
    """
    for path in paths:
        named = _tensor_file_of(path)
        for file in path.parent.glob(f"{glob.escape(path.stem)}.*.safetensors"):
            if _TENSOR_FILE.fullmatch(file.name) and file.name != named:
                file.unlink(missing_ok=True)
    for folder in {path.parent for path in paths}:
        for file in folder.glob(".*.tmp"):
            if is_temporary(file):
                file.unlink(missing_ok=True)


def tensors_to_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    content: bytes = _safetensors().save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    )
    return content


def tensors_from_bytes(content: bytes) -> dict[str, torch.Tensor]:
    """The tensors of `tensors_to_bytes`.

    Raises:
        FileError: They are no safetensors.
    """
    return _tensors_in(content, "of a message")


def _tensors_in(content: bytes, file_name: str) -> dict[str, torch.Tensor]:
    """The tensors of a file's content, which may be made to match its digest and be damaged."""
    library = _safetensors()
    from safetensors import SafetensorError

    try:
        tensors: dict[str, torch.Tensor] = library.load(content)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileError(f"its tensors {file_name} are no safetensors: {error}") from None
    return tensors


def _tensor_file_of(path: Path) -> str | None:
    """The tensor file that an existing JSON file names, if there is one."""
    try:
        data = read_data(path)
    except FileError:
        return None
    file_name = data.get("tensors") if isinstance(data, dict) else None
    return file_name if isinstance(file_name, str) and _TENSOR_FILE.fullmatch(file_name) else None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise MissingDependency("safetensors", "torch") from None
    return safetensors.torch
