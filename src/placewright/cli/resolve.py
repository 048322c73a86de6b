"""A name or a file, as typed, in, the noun that it stands for out."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, FileError, PlanError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from placewright.cluster import Cluster
    from placewright.costs import Table
    from placewright.graph import Graph
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.solvers import Solver

_ENDINGS = (".json", ".toml", ".gz", ".txt")


@dataclass(frozen=True)
class Reading:
    """How a model of another library is to be read."""

    training: bool = False
    optimizer: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def find_model(
    text: str, cluster: Cluster | None = None, reading: Reading | None = None
) -> Graph | Problem:
    """The network of that name, or what a file holds: a graph, a problem, a workload or a model.

    Args:
        cluster: Used in place of a workload's own.

    Raises:
        PlacewrightError: The name is unknown, or the file is missing or malformed.
    """
    from placewright import files, frontends, zoo
    from placewright.graph import Graph
    from placewright.problem import Problem

    how = reading or Reading()
    path, _, function = text.partition(":")
    if path.endswith(".py") and (function or _is_file(path)):
        return frontends.from_python(text, how.training, how.optimizer)
    if path.strip() in zoo.ENTRIES or not _is_file(text):
        return zoo.load(text, note=_note)
    if text.endswith(".onnx"):
        return frontends.from_onnx(text, how.dims, how.shapes)
    if text.endswith((".pb", ".pbtxt")) or os.path.exists(os.path.join(text, "saved_model.pb")):
        rows = {name: (size,) for name, size in how.dims.items()}
        return frontends.from_tensorflow(text, {**rows, **how.shapes})
    if frontends.is_workload(text):
        return frontends.from_workload(text, cluster=cluster)
    found = files.load(text)
    if not isinstance(found, Graph | Problem):
        raise FileError(f"{text}: holds {_kind(found)}: expected a graph, a problem or a workload")
    return found


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def find_cluster(text: str) -> Cluster:
    """The cluster that a string such as `2xP100+cpu` or a file describes; `here`: this machine."""
    from placewright import files
    from placewright.cluster import Cluster

    if is_here(text):
        from placewright.runtime.here import here, parse_here

        return here(parse_here(text), note=_note).cluster
    return files.load(text, "cluster") if _is_file(text) else Cluster.parse(text)


def as_run_here(problem: Problem, on: str) -> Problem:
    """A problem on this machine, with the starts of ops that the runtime will need."""
    from placewright.costs import Table
    from placewright.runtime.here import here, parse_here
    from placewright.runtime.replayed import as_run

    profile, costs = here(parse_here(on)), problem.costs
    if isinstance(costs, Table) and costs.machine and costs.machine != profile.machine.key:
        _note("the op times were measured on another machine, or before this one changed")
    return as_run(problem, profile)


def measure_costs(
    model: str, on: str, training: bool, optimizer: str | None, limits: Mapping[str, int]
) -> Table:
    """What each op of a model takes on each device of this machine."""
    from placewright.runtime.here import here, parse_here
    from placewright.runtime.models import find_program
    from placewright.runtime.ops import profile_ops
    from placewright.runtime.sites import sites_of

    workers = parse_here(on)
    program = find_program(model, training, optimizer)  # first: its file may change settings
    profile = here(workers, note=_note)
    chosen = sites_of(profile.machine, workers)
    _note(f"measuring the ops of {model}: up to a minute, once")
    found = profile_ops(program, profile.machine, profile.cluster, chosen, limits=limits)
    return found.table


def is_here(text: str) -> bool:
    """Whether a text that names a cluster means this machine: `here` or `here:workers=2`."""
    return text.strip().partition(":")[0].strip() == "here"


def find_plan(problem: Problem, path: Path) -> tuple[str, Plan]:
    """What made the plan of a plan, result or split file, and the plan, fitted onto the problem."""
    from placewright import files, frontends
    from placewright.result import Result

    if frontends.is_split(path):
        return "split", frontends.read_split(problem, path)
    found = load_plan(path)
    name, plan = (found.solver, found.plan) if isinstance(found, Result) else ("given", found)
    try:
        return name, files.plan_for(problem, plan)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def load_plan(path: Path) -> Plan | Result:
    """The plan or result that a file holds."""
    from placewright import files
    from placewright.plan import Plan
    from placewright.result import Result

    found = files.load(path)
    if not isinstance(found, Plan | Result):
        raise FileError(f"{path}: holds {_kind(found)}: expected a plan or a result")
    return found


def find_method(name: str) -> Solver:
    """The method of that name: a solver, or a policy that ships trained.

    `auto` comes with its proposers, if any are on by default.
    """
    from placewright.cli.proposers import DEFAULT, named
    from placewright.solvers import METHODS, Auto
    from placewright.training.placed import PLACED

    if name not in METHODS and name not in PLACED:
        raise ConfigError(f"no method is named {name!r}: {nearest(name, [*METHODS, *PLACED])}")
    if name == Auto.name:
        return Auto(proposers=named(DEFAULT))
    return PLACED[name]() if name in PLACED else METHODS[name]()


def check_writable(*paths: Path | None) -> None:
    """Raise FileError, before any work is done, where a file has no folder to go to."""
    for path in paths:
        if path is not None and path.is_dir():
            raise FileError(f"{path}: is a folder: expected the name of a file")
        if path is not None and not path.parent.is_dir():
            raise FileError(f"{path}: cannot be written: there is no folder {str(path.parent)!r}")


def find_folder(path: Path) -> Path | None:
    """The folder that a path means, made if need be: one that is there, or has no ending."""
    if path.is_dir():
        return path
    if path.suffix or path.exists():
        return None
    check_writable(path)
    try:
        path.mkdir()
    except OSError as error:
        raise FileError(f"{path}: cannot be made: {error.strerror}") from None
    return path


def _is_file(text: str) -> bool:
    """Whether a text names a file: one that is there, or one that should be."""
    return os.path.lexists(text) or "/" in text or os.sep in text or text.endswith(_ENDINGS)


def _kind(noun: object) -> str:
    return {"Table": "costs", "Roofline": "costs", "Constraints": "constraints"}.get(
        type(noun).__name__, f"a {type(noun).__name__.lower()}"
    )
