"""What a problem was asked for with in, words for a result file out, and back."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cli.options import Discipline, Objective
from placewright.cli.problem_options import Asked
from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.plan import Plan
    from placewright.result import Result

Words = dict[str, str | bool | tuple[str, ...]]

_LISTS = ("reserve", "limit", "pin", "forbid", "colocate", "dims")
_FLAGS = ("training",)
_ENUMS = {"objective": Objective, "discipline": Discipline}


def words_of(asked: Asked) -> Words:
    """What is asked for, option by option; what is left at its default is left out."""
    said: Words = {}
    for each in fields(asked):
        value = getattr(asked, each.name)
        if isinstance(value, list):
            said |= {each.name: tuple(value)} if value else {}
        elif isinstance(value, bool):
            said |= {each.name: value} if value else {}
        elif value is not None:
            said[each.name] = str(value)
    return said


def asked_of(
    paths: Sequence[Path], nouns: Sequence[Plan | Result], typed: Mapping[str, Any]
) -> Asked:
    """What the problem is: as the first file that knows it says, but for what is typed now.

    Raises:
        ConfigError: No file says which problem it is of, and no model is named.
    """
    from placewright.result import Result

    words = next((each.asked for each in nouns if isinstance(each, Result) and each.asked), {})
    if not words and typed["model"] is None:
        raise ConfigError(
            f"{paths[0]}: does not say which problem it is of: name the model with --model and "
            "the cluster with --on, as when it was made"
        )
    return asked_again(words, typed)


def asked_again(words: Mapping[str, object], typed: Mapping[str, Any]) -> Asked:
    """What was once asked for, but for what is typed now.

    Raises:
        ConfigError: A word is unknown or ill-typed, or names a Python file, which is run only where
            a person typed its name.
    """
    known = [each.name for each in fields(Asked)]
    now = {name: value for name, value in typed.items() if name in known and value}
    found: dict[str, Any] = {}
    for name, value in words.items():
        if name not in known:
            raise ConfigError(f"the result was asked for with {name!r}: {nearest(name, known)}")
        if name not in now:
            found[name] = _value(name, value)
    model = found.get("model", "")
    if model.partition(":")[0].endswith(".py"):
        raise ConfigError(
            f"the result is of {model!r}, which has to be run: name it with --model if you trust it"
        )
    return Asked(**(found | now))


def _value(name: str, value: object) -> Any:
    kind, what = (
        (tuple, "a list of texts")
        if name in _LISTS
        else (bool, "true or false")
        if name in _FLAGS
        else (str, "text")
    )
    if not isinstance(value, kind):
        raise ConfigError(f"the result was asked for with {name} {value!r}: expected {what}")
    if isinstance(value, tuple):
        return list(value)
    if name in _ENUMS and value not in list(_ENUMS[name]):
        raise ConfigError(
            f"the result was asked for with {name} {value!r}: {nearest(str(value), _ENUMS[name])}"
        )
    if name in _ENUMS:
        return _ENUMS[name](str(value))
    return Path(str(value)) if name == "costs" else value
