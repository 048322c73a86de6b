"""The header of every file: its kind and version, checked before the rest."""

from __future__ import annotations

import reprlib

from placewright.errors import FileError
from placewright.files.validation import THE_FILE, Data

VERSION = 3
"""The version that is written; version 1 has other names for some keys."""
READABLE = (1, 2, 3)
"""The versions that are read."""
RESERVE_IN_LIMITS = 2
"""The last version whose memory limits include the devices' reserves."""


def make_header(kind: str) -> Data:
    """The first keys of the data of a noun of this kind."""
    return {"placewright": kind, "version": VERSION}


def kind_of(data: object, where: str = "") -> str:
    """The kind in the header of a file or of a part of it.

    Raises:
        FileError: It has no header, or is of another version.
    """
    subject = where or THE_FILE
    kind = data.get("placewright") if isinstance(data, dict) else None
    if not (isinstance(data, dict) and isinstance(kind, str)):
        raise FileError(
            f'{subject} does not say what it holds: expected "placewright" with a kind '
            f'and "version" {VERSION} at its head'
        )
    version = data.get("version")
    if type(version) is not int or version not in READABLE:
        actual = "no version" if version is None else f"version {reprlib.repr(version)}"
        raise FileError(
            f"{subject} has {actual}: this release of placewright reads versions "
            f"{READABLE[0]} to {VERSION}"
        )
    return kind


def version_of(data: object) -> int:
    """The version in a header that `kind_of` has checked."""
    assert isinstance(data, dict)
    return int(data["version"])


def body(data: object, kind: str, where: str = "") -> Data:
    """The data of a noun of this kind without the header.

    Raises:
        FileError: It is of another kind or version.
    """
    actual = kind_of(data, where)
    if actual != kind:
        raise FileError(f"{where or THE_FILE} is of kind {actual!r}: expected {kind!r}")
    assert isinstance(data, dict)
    return {key: value for key, value in data.items() if key not in ("placewright", "version")}
