"""Paths of modules, such as `layers.0.mlp`, and the modules that enclose them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = ""
_Value = TypeVar("_Value")


def enclosing_paths(path: str) -> Iterator[str]:
    """A path and those of the modules around it, the innermost first and the root last."""
    while path:
        yield path
        path = parent_path(path)
    yield ROOT


def nearest_value(path: str, values: Mapping[str, _Value]) -> _Value | None:
    """The value of the innermost module around a path that has one, if any."""
    return next((values[outer] for outer in enclosing_paths(path) if outer in values), None)


def parent_path(path: str) -> str:
    """The path of the module around a module."""
    return path.rpartition(".")[0]


def is_inside(path: str, outer: str) -> bool:
    """Whether a path is that of a module or of something in it."""
    return outer == ROOT or path == outer or path.startswith(f"{outer}.")
