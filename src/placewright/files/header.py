"""The header of every file: a kind and a version, written first and checked before the rest."""

from __future__ import annotations

import reprlib

from placewright.errors import FileError
from placewright.files.validation import THE_FILE, Data

VERSION = 2
"""Version 2 has the field's words for some keys; those of version 1 are read as well."""
READABLE = (1, 2)


def make_header(kind: str) -> Data:
    """What the data of a noun of this kind starts with."""
    return {"placewright": kind, "version": VERSION}


def kind_of(data: object, where: str = "") -> str:
    """The kind that a file, or a part of it, says that it is.

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
