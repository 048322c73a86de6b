"""Validates values from files: returns a value of the expected type, or names its place.

`where` is the value's path in the file, e.g. `devices[2].memory`; every message starts with it.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from placewright.errors import ConfigError, nearest
from placewright.units import parse_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

Check = Callable[[Any, str], Any]
Data = dict[str, Any]
"""One object of a JSON file, or one table of a TOML file."""

THE_FILE = "the file"
"""The subject of messages about the top level."""
INFINITE = "inf"
"""An infinite number in files: JSON has no literal for it."""
_MAX_INTEGER = 2**63 - 1  # bytes are int64 in the kernels


def refuse(value: object, where: str, expected: str) -> NoReturn:
    """Raise an error with the value and what was expected."""
    raise ConfigError(f"{where} is {reprlib.repr(value)}: expected {expected}")


def fields(
    data: object,
    checks: Mapping[str, Check],
    where: str,
    required: Iterable[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> Data:
    """An object's values, each checked by the function of its key.

    Args:
        renamed: Keys of earlier versions of the file, and their current names.
    """
    values = {}
    prefix = f"{where}." if where else ""
    renamed = renamed or {}
    for written, value in table(data, where or THE_FILE).items():
        key = renamed.get(written, written)
        if key != written and key in data:  # type: ignore[operator]
            raise ConfigError(f"{where or THE_FILE} has {written!r} and {key!r}: keep {key!r}")
        check = checks.get(key)
        if check is None:
            subject = f"{where or THE_FILE} has an unknown key {reprlib.repr(key)}"
            raise ConfigError(f"{subject}: {nearest(key, checks)}")
        values[key] = check(value, f"{prefix}{written}")  # the key that the file has
    for key in required:
        if key not in values:
            raise ConfigError(f"{where or THE_FILE} has no {key!r}: add it")
    return values


def table(value: object, where: str) -> Data:
    """An object, or table."""
    if not isinstance(value, dict):
        refuse(value, where, "an object")
    return value


def items(value: object, where: str) -> list[Any]:
    """A list of anything."""
    if not isinstance(value, list):
        refuse(value, where, "a list")
    return value


def text(value: object, where: str) -> str:
    """A string."""
    if type(value) is not str:
        refuse(value, where, "text")
    return value


def flag(value: object, where: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        refuse(value, where, "true or false")
    return value


def integer(value: object, where: str) -> int:
    """A whole number that fits int64; true and false are refused."""
    if type(value) is not int:
        refuse(value, where, "a whole number")
    if not -_MAX_INTEGER <= value <= _MAX_INTEGER:
        refuse(value, where, "a whole number within 64 bits")
    return value


def int32(value: object, where: str) -> int:
    """A whole number that fits int32."""
    whole = integer(value, where)
    if not -(2**31) <= whole < 2**31:
        refuse(value, where, "a whole number within 32 bits")
    return whole


def size(value: object, where: str) -> int:
    """Bytes: a whole number, or text such as `16 GiB`."""
    if type(value) is str:
        try:
            value = parse_bytes(value)
        except ConfigError as error:
            raise ConfigError(f"{where} is {error}") from None
    return integer(value, where)


def number(value: object, where: str) -> float:
    """A finite number."""
    if type(value) not in (int, float):
        refuse(value, where, "a number")
    try:
        finite = float(value)  # type: ignore[arg-type]
    except OverflowError:  # a whole number of more than 308 digits
        finite = math.inf
    if not math.isfinite(finite):
        refuse(value, where, "a finite number")
    return finite


def rate(value: object, where: str) -> float:
    """A number that may be infinite."""
    return math.inf if value in (INFINITE, math.inf) else number(value, where)


def sizes(value: object, where: str) -> tuple[int, ...]:
    """A list of bytes."""
    return tuple([integer(item, where) for item in items(value, where)])


def texts(value: object, where: str) -> tuple[str, ...]:
    """A list of strings."""
    return tuple([text(item, where) for item in items(value, where)])


def list_of(check: Check) -> Check:
    """A check of a list whose items all pass `check`."""

    def check_all(value: object, where: str) -> list[Any]:
        return [check(item, f"{where}[{at}]") for at, item in enumerate(items(value, where))]

    return check_all


def mapping_of(check: Check) -> Check:
    """A check of an object whose keys are names and whose values all pass `check`."""

    def check_all(value: object, where: str) -> Data:
        return {
            name: check(item, f"{where}[{name!r}]") for name, item in table(value, where).items()
        }

    return check_all


def floats(value: object, where: str) -> NDArray[np.float64]:
    """A list of finite numbers as an array."""
    return np.array([number(item, where) for item in items(value, where)], dtype=np.float64)


def int64s(value: object, where: str) -> NDArray[np.int64]:
    """A list of whole numbers as an array."""
    return np.array([integer(item, where) for item in items(value, where)], dtype=np.int64)


def int32s(value: object, where: str) -> NDArray[np.int32]:
    """A list of whole numbers within 32 bits as an array."""
    return np.array([int32(item, where) for item in items(value, where)], dtype=np.int32)


def plain_number(value: float) -> float | str:
    """A number as written to a file."""
    return INFINITE if value == math.inf else float(value)
