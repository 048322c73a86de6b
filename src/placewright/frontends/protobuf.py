"""Reads the bytes of protobuf files and checks their text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import FileError
from placewright.frontends.text_files import file_label

if TYPE_CHECKING:
    from pathlib import Path

MAX_MESSAGE_BYTES = 2**31  # the limit of protobuf


def read_bytes(path: Path) -> bytes:
    """The contents of a binary file, if it is no larger than a protobuf message may be.

    Raises:
        FileError: It is missing, may not be read, or is too large.
    """
    try:
        size = path.stat().st_size
        if size > MAX_MESSAGE_BYTES:
            raise FileError(
                f"{file_label(path)} has {size:,} bytes: a model has at most {MAX_MESSAGE_BYTES:,}"
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte in it
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(f"{file_label(path)} cannot be read: {reason.lower()}") from None


def is_utf8(message: Any) -> bool:
    """Whether all text in a message is UTF-8; proto2 messages are not checked when parsed."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        is_repeated = not isinstance(value, str | bytes) and hasattr(value, "__len__")
        for item in value if is_repeated else (value,):
            is_valid = is_utf8(item) if field.type == field.TYPE_MESSAGE else isinstance(item, str)
            if not is_valid:
                return False
    return True
