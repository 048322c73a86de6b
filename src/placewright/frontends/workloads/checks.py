"""Checks on the values of workload files, with errors that name the location."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping

from placewright.errors import FileError, GraphError

MAX_MILLISECONDS = 1e12  # about thirty years
MAX_BYTES = 1e15  # a petabyte: sums over a graph stay within 64 bits

Json = Mapping[str, object]


def parse_json(file: str, text: str) -> Json:
    """The JSON object in a text."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(
            f"{file} is not JSON at line {error.lineno}, column {error.colno}: is it truncated?"
        ) from None
    except (ValueError, RecursionError):
        raise FileError(
            f"{file} is nested too deeply or holds too long a number: expected a workload"
        ) from None
    if not isinstance(data, dict):
        raise FileError(f"{file} holds {reprlib.repr(data)}: expected an object")
    return data


def iter_objects(file: str, data: Json, key: str) -> Iterator[tuple[str, Json]]:
    """The objects of a list, each with its location in the file."""
    entries = data.get(key)
    if not isinstance(entries, list):
        raise FileError(f"{file} {describe_value(key, entries)}: expected a list of objects")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise FileError(f"{file}: {key}[{number}] is {reprlib.repr(entry)}: expected an object")
        yield f"{file}: {key}[{number}]", entry


def require_number(location: str, field: str, value: object, limit: float) -> float:
    """A number from 0 to `limit`; infinities, NaN, booleans and text are refused."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= limit:
        raise GraphError(
            f"{location} {describe_value(field, value)}: expected a number from 0 to {limit:g}"
        )
    return float(value)


def require_integer(location: str, field: str, value: object) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise GraphError(f"{location} {describe_value(field, value)}: expected a whole number")
    return value


def require_bool(location: str, field: str, value: object) -> bool:
    """True, false, 1 or 0."""
    if not isinstance(value, int) or value not in (0, 1):
        raise GraphError(f"{location} {describe_value(field, value)}: expected true or false")
    return bool(value)


def describe_value(field: str, value: object) -> str:
    """The value of a key in a message."""
    return f"has no {field}" if value is None else f"has {field} {reprlib.repr(value)}"
