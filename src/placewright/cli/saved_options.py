"""Saves problem options in result files, and restores them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.cli.options import DisciplineChoice, ObjectiveChoice
from placewright.cli.problem_options import ProblemOptions
from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.plan import Plan
    from placewright.result import Result

SavedWords = dict[str, str | bool | tuple[str, ...]]

_LIST_OPTIONS = ("reserve", "limit", "pin", "forbid", "colocate", "dims")
_FLAG_OPTIONS = ("training",)
_ENUM_OPTIONS = {"objective": ObjectiveChoice, "discipline": DisciplineChoice}


def options_to_dict(options: ProblemOptions) -> SavedWords:
    """What is asked for, option by option; what is left at its default is left out."""
    saved: SavedWords = {}
    for option in fields(options):
        value = getattr(options, option.name)
        if isinstance(value, list):
            saved |= {option.name: tuple(value)} if value else {}
        elif isinstance(value, bool):
            saved |= {option.name: value} if value else {}
        elif value is not None:
            saved[option.name] = str(value)
    return saved


def options_from_files(
    paths: Sequence[Path], nouns: Sequence[Plan | Result], arguments: Mapping[str, Any]
) -> ProblemOptions:
    """What the problem is: as the first file that knows it says, but for what is typed now.

    Raises:
        ConfigError: No file says which problem it is of, and no model is named.
    """
    from placewright.result import Result

    saved = next((noun.options for noun in nouns if isinstance(noun, Result) and noun.options), {})
    if not saved and arguments["model"] is None:
        raise ConfigError(
            f"{paths[0]}: does not say which problem it is of: name the model with --model and "
            "the cluster with --on, as when it was made"
        )
    return options_from_dict(saved, arguments)


def options_from_dict(saved: Mapping[str, object], arguments: Mapping[str, Any]) -> ProblemOptions:
    """What was once asked for, but for what is typed now.

    Raises:
        ConfigError: A word is unknown or ill-typed, or names a Python file, which is run only where
            a person typed its name.
    """
    known = [option.name for option in fields(ProblemOptions)]
    overrides = {name: value for name, value in arguments.items() if name in known and value}
    restored: dict[str, Any] = {}
    for name, value in saved.items():
        if name not in known:
            raise ConfigError(f"the result was asked for with {name!r}: {nearest(name, known)}")
        if name not in overrides:
            restored[name] = _restore_value(name, value)
    model = restored.get("model", "")
    if model.partition(":")[0].endswith(".py"):
        raise ConfigError(
            f"the result is of {model!r}, which has to be run: name it with --model if you trust it"
        )
    return ProblemOptions(**(restored | overrides))


def _restore_value(name: str, value: object) -> Any:
    kind, expected = (
        (tuple, "a list of texts")
        if name in _LIST_OPTIONS
        else (bool, "true or false")
        if name in _FLAG_OPTIONS
        else (str, "text")
    )
    if not isinstance(value, kind):
        raise ConfigError(f"the result was asked for with {name} {value!r}: expected {expected}")
    if isinstance(value, tuple):
        return list(value)
    if name in _ENUM_OPTIONS and value not in list(_ENUM_OPTIONS[name]):
        raise ConfigError(
            f"the result was asked for with {name} {value!r}: {nearest(str(value), _ENUM_OPTIONS[name])}"
        )
    if name in _ENUM_OPTIONS:
        return _ENUM_OPTIONS[name](str(value))
    return Path(str(value)) if name == "costs" else value
