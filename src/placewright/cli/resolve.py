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
        _refuse_dims(text, how)
        return frontends.from_python(text, how.training, how.optimizer)
    if path.strip() in zoo.ENTRIES or not _is_file(text):
        refuse_training(text, how.training, how.optimizer)
        _refuse_dims(text, how)
        return zoo.load(text, note=_note)
    refuse_training(text, how.training, how.optimizer)
    if text.endswith(".onnx"):
        return frontends.from_onnx(text, how.dims, how.shapes)
    if text.endswith((".pb", ".pbtxt")) or os.path.exists(os.path.join(text, "saved_model.pb")):
        rows = {name: (size,) for name, size in how.dims.items()}
        return frontends.from_tensorflow(text, {**rows, **how.shapes})
    _refuse_dims(text, how)
    if frontends.is_workload(text):
        return frontends.from_workload(text, cluster=cluster)
    found = files.load(text)
    if not isinstance(found, Graph | Problem):
        raise FileError(f"{text}: holds {_kind(found)}: expected a graph, a problem or a workload")
    return found


def refuse_training(text: str, training: bool, optimizer: str | None) -> None:
    """Raise ConfigError where a step is asked for of what is no Python file's model.

    Raises:
        PlacewrightError: Also where the text names no network.
    """
    from placewright import zoo

    if text.partition(":")[0].endswith(".py") or not (training or optimizer is not None):
        return
    option, word = (
        ("--training", "training=true") if training else ("--optimizer", "optimizer=NAME")
    )
    what = "a file that says itself what its step is"
    if text.partition(":")[0].strip() in zoo.ENTRIES or not _is_file(text):
        name = zoo.parse(text)[0].name
        has = word.partition("=")[0] in zoo.ENTRIES[name].defaults
        what = "a network of the zoo" + (f": say {word} in its name" if has else ", drawn as it is")
    raise ConfigError(f"{option} is for model.py:build: {text!r} is {what}")


def step_of(text: str, training: bool, optimizer: str | None) -> tuple[bool, str | None]:
    """Whether a model's step trains, and how: as asked of a Python file's, else as its name says.

    Raises:
        PlacewrightError: The text names no network.
    """
    if text.partition(":")[0].endswith(".py"):
        return training, optimizer
    from placewright import zoo
    from placewright.zoo.capture import OPTIMIZER

    entry, chosen = zoo.parse(text)
    rule, size = chosen.pop("optimizer", OPTIMIZER), chosen.pop("size", "full")
    if entry.network is None or not entry.network.arguments(str(size), **chosen).get("training"):
        return False, None
    return True, str(rule)


def _refuse_dims(text: str, how: Reading) -> None:
    if how.dims or how.shapes:
        raise ConfigError(f"--dims is for ONNX and TensorFlow files: {text!r} leaves nothing open")


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def find_cluster(text: str) -> Cluster:
    """The cluster that a string such as `2xP100+cpu` or a file describes; `here`: this machine."""
    from placewright import files
    from placewright.cluster import Cluster

    if is_here(text):
        from placewright.profiling.machine_profile import here, parse_here

        return here(parse_here(text), note=_note).cluster
    return files.load(text, "cluster") if _is_file(text) else Cluster.parse(text)


def as_run_here(problem: Problem, on: str) -> Problem:
    """A problem on this machine, with the starts of ops that the runtime will need."""
    from placewright.costs import Table
    from placewright.profiling.as_executed import as_run
    from placewright.profiling.machine_profile import here, parse_here

    profile, costs = here(parse_here(on)), problem.costs
    if isinstance(costs, Table) and costs.machine and costs.machine != profile.machine.key:
        _note("the op times were measured on another machine, or before this one changed")
    return as_run(problem, profile)


def measure_costs(
    model: str, on: str, training: bool, optimizer: str | None, limits: Mapping[str, int]
) -> Table:
    """What each op of a model takes on each device of this machine."""
    from placewright.profiling.machine_profile import here, parse_here
    from placewright.profiling.op_costs import profile_ops
    from placewright.profiling.sites import sites_of
    from placewright.runtime.models import find_program

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
    from placewright.solvers import METHODS, Auto
    from placewright.training.policy_solver import PLACED
    from placewright.training.proposers import DEFAULT, named

    if name not in METHODS and name not in PLACED:
        raise ConfigError(f"no method is named {name!r}: {nearest(name, [*METHODS, *PLACED])}")
    if name == Auto.name:
        return Auto(proposers=named(DEFAULT))
    return PLACED[name]() if name in PLACED else METHODS[name]()


def check_writable(*paths: Path | None) -> None:
    """Raise FileError, before any work is done, where a file has no place of its own to go to."""
    taken: set[str] = set()
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise FileError(f"{path}: is a folder: expected the name of a file")
        if not path.parent.is_dir():
            raise FileError(f"{path}: cannot be written: there is no folder {str(path.parent)!r}")
        real = os.path.realpath(path)
        if real in taken and (path.is_file() or not path.exists()):  # /dev/null takes everything
            raise FileError(f"{path}: is to be written twice: give each output a file of its own")
        taken.add(real)


def check_json(path: Path | None, what: str) -> None:
    """Raise FileError, before any work is done, where what is written as JSON is to be TOML."""
    from placewright.files.storage import is_toml

    if path is not None and is_toml(path):
        raise FileError(f"{path}: {what} is written as JSON: end the name in .json")


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
