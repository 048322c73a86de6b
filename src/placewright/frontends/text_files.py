"""Reads text files, and names files in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.errors import FileError

if TYPE_CHECKING:
    from pathlib import Path


def file_label(path: Path) -> str:
    """A file's name in messages."""
    return f"file {str(path)!r}"


def read_text(path: Path) -> str:
    """The contents of a text file.

    Raises:
        FileError: It is missing, may not be read, or is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{file_label(path)} is not text: byte {error.start} is not UTF-8"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte in it
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{file_label(path)} cannot be read: {reason.lower()}") from None
