"""Files: saves and loads the library's objects as versioned JSON or TOML."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from placewright.errors import ConfigError, FileError, PlacewrightError
from placewright.files.plan import plan_for
from placewright.files.registry import (
    Noun,
    from_data,
    to_data,
)
from placewright.files.storage import is_toml, read_data, to_json, write_data
from placewright.files.workload import workload_plan_for
from placewright.plan import Plan
from placewright.plan_diff import plan_of
from placewright.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.cluster import Cluster
    from placewright.costs import Roofline, Table
    from placewright.graph import Graph
    from placewright.problem import Constraints, Problem
    from placewright.timeline import Timeline
    from placewright.workload import Workload
    from placewright.workload_plan import WorkloadPlan
    from placewright.workload_result import WorkloadResult

__all__ = [
    "Noun",
    "from_data",
    "load",
    "plan_for",
    "read_plan",
    "save",
    "to_data",
    "to_json",
    "workload_plan_for",
]

FilePath = str | os.PathLike[str]


def save(noun: Noun, path: FilePath) -> None:
    """Write a noun to a file as JSON.

    Clusters and constraints may be `.toml`; a name that ends in `.gz` is compressed.

    Raises:
        FileError: It cannot be written; an older file of that name is then unchanged.
    """
    target = Path(path)
    try:
        data = to_data(noun)
        if is_toml(target) and data["placewright"] not in ("cluster", "constraints"):
            raise FileError(f"a {data['placewright']} is written as JSON: end the name in .json")
        write_data(data, target)
    except PlacewrightError as error:
        raise _with_path(path, error) from error


@overload
def load(path: FilePath, kind: Literal["graph"]) -> Graph: ...
@overload
def load(path: FilePath, kind: Literal["cluster"]) -> Cluster: ...
@overload
def load(path: FilePath, kind: Literal["costs"]) -> Roofline | Table: ...
@overload
def load(path: FilePath, kind: Literal["constraints"]) -> Constraints: ...
@overload
def load(path: FilePath, kind: Literal["problem"]) -> Problem: ...
@overload
def load(path: FilePath, kind: Literal["plan"]) -> Plan: ...
@overload
def load(path: FilePath, kind: Literal["timeline"]) -> Timeline: ...
@overload
def load(path: FilePath, kind: Literal["result"]) -> Result: ...
@overload
def load(path: FilePath, kind: Literal["workload"]) -> Workload: ...
@overload
def load(path: FilePath, kind: Literal["workload_plan"]) -> WorkloadPlan: ...
@overload
def load(path: FilePath, kind: Literal["workload_result"]) -> WorkloadResult: ...
@overload
def load(path: FilePath, kind: str | None = None) -> Any: ...


def load(path: FilePath, kind: str | None = None) -> Any:
    """The noun in a file; where a plan is expected, a result's file works too.

    Args:
        kind: The expected kind, e.g. `"plan"`; None accepts any.

    Raises:
        FileError: The file is missing, truncated, or of another kind or version.
        PlacewrightError: The noun in it is malformed; the message starts with the file's name.
    """
    try:
        with _collector_paused():
            return from_data(read_data(Path(path)), kind)
    except RecursionError:
        raise _with_path(path, FileError("is nested too deeply to be read")) from None
    except PlacewrightError as error:
        raise _with_path(path, error) from error


def read_plan(source: Plan | Result | FilePath) -> Plan:
    """A plan: itself, that of a result, or that in a file of either.

    Raises:
        ConfigError: It is none of these.
        FileError: The file cannot be read.
    """
    if isinstance(source, Plan | Result):
        return plan_of(source)
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"the plan is of type {type(source).__name__!r}: expected a plan, a result, or the "
            "path of a file that holds one"
        )
    return load(source, "plan")


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause garbage collection: all objects of a large graph stay, and scanning them is slow."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _with_path(path: FilePath, error: PlacewrightError) -> PlacewrightError:
    """The same error with the file's name before it."""
    return type(error)(f"{os.fspath(path)}: {error}")
