"""Data and tensors in, a JSON file and a safetensors file beside it out, and back.

The JSON file names the other one, whose name holds a digest of its content. That one is written
first, so at any moment the JSON file names tensors that are whole. Pickle is never read.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError, MissingDependency
from placewright.files.storage import read_data, write_bytes, write_data

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from placewright.files.validation import Data

_NAME = re.compile(r"[^/\\]+\.[0-9a-f]{32}\.safetensors")


def save_with_tensors(path: Path, data: Data, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write both files, which afterwards are either the new ones or untouched.

    Raises:
        FileError: They cannot be written there.
    """
    content = _safetensors().save({name: each.contiguous() for name, each in tensors.items()})
    fresh = f"{path.stem}.{_digest(content)}.safetensors"
    old = _named(path)
    try:
        write_bytes(content, path.with_name(fresh))
        write_data({**data, "tensors": fresh}, path)
        if old is not None and old != fresh:
            path.with_name(old).unlink(missing_ok=True)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None
    except OSError:  # the old tensors stay behind, which does no harm
        pass


def load_with_tensors(path: Path) -> tuple[Data, dict[str, torch.Tensor]]:
    """What `save_with_tensors` wrote.

    Raises:
        FileError: A file is missing or damaged.
    """
    try:
        data = read_data(path)
        name = data.pop("tensors", None) if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(name, str) or not _NAME.fullmatch(name):
            raise FileError('names no tensors: expected "tensors" with a safetensors file beside')
        try:
            content = path.with_name(name).read_bytes()
        except OSError:
            raise FileError(
                f"its tensors {name} cannot be read: keep both files together"
            ) from None
        if _digest(content) != name.split(".")[-2]:
            raise FileError(f"its tensors {name} are damaged: the digest is another one")
        return data, _safetensors().load(content)
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


def _named(path: Path) -> str | None:
    """The tensors that a file written before names, if there is one."""
    try:
        data = read_data(path)
    except FileError:
        return None
    name = data.get("tensors") if isinstance(data, dict) else None
    return name if isinstance(name, str) and _NAME.fullmatch(name) else None


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise MissingDependency("safetensors", "torch") from None
    return safetensors.torch
